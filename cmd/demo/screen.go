// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"

	"golang.org/x/term"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/fleet/terminal"
)

// Screen shows the demo: a view that is redrawn in place on a terminal, or plain lines.
type Screen struct {
	out    io.Writer
	live   bool
	colors bool
	size   func() (width, height int)

	mu    sync.Mutex
	drawn int // rows of the current frame
	last  Scene
}

// NewScreen returns a live screen if out is a terminal.
func NewScreen(out *os.File) *Screen {
	fd := int(out.Fd())
	live := term.IsTerminal(fd) && os.Getenv("TERM") != "dumb"
	_, noColor := os.LookupEnv("NO_COLOR")
	s := &Screen{out: out, live: live, colors: live && !noColor}
	s.size = func() (int, int) {
		width, height, err := term.GetSize(fd)
		if err != nil || width < 20 || height < 5 {
			return 80, 24
		}
		return width, height
	}
	return s
}

// Live reports whether the view is redrawn in place.
func (s *Screen) Live() bool { return s.live }

// Draw shows the scene. Without a terminal it does nothing.
func (s *Screen) Draw(scene Scene) {
	if !s.live {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last = scene
	s.draw()
}

func (s *Screen) draw() {
	width, height := s.size()
	var frame strings.Builder
	frame.WriteString("\x1b[?25l") // hide the cursor
	if s.drawn > 0 {
		fmt.Fprintf(&frame, "\x1b[%dA\r", s.drawn)
	}
	lines := s.last.Frame(width, height)
	for _, l := range lines {
		// Overwritten instead of erased, which would flicker.
		frame.WriteString(l.Render(width, s.colors) + "\x1b[K\n")
	}
	frame.WriteString("\x1b[J")
	s.drawn = len(lines)
	_, _ = io.WriteString(s.out, frame.String()) // nothing to do if the terminal is closed
}

// erase returns the sequence that erases the frame. The cursor is below it.
func (s *Screen) erase() string {
	if s.drawn == 0 {
		return ""
	}
	return fmt.Sprintf("\x1b[%dA\r\x1b[J", s.drawn)
}

// Print writes a permanent line above the live view.
func (s *Screen) Print(l terminal.Line) {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, _ = io.WriteString(s.out, s.erase()+l.Render(0, s.colors)+"\n")
	if s.drawn > 0 {
		s.drawn = 0
		s.draw()
	}
}

// Close erases the live view and restores the cursor.
func (s *Screen) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.live {
		_, _ = io.WriteString(s.out, s.erase()+"\x1b[?25h")
		s.drawn = 0
	}
}
