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
)

// Screen is where the demo shows itself: a view that is redrawn in place on a
// terminal, plain lines elsewhere.
type Screen struct {
	out     io.Writer
	live    bool
	colours bool
	size    func() (width, height int)

	mu    sync.Mutex
	drawn int // rows of the frame that stands now
	last  Scene
}

// NewScreen looks at what the output is.
func NewScreen(out *os.File) *Screen {
	fd := int(out.Fd())
	live := term.IsTerminal(fd) && os.Getenv("TERM") != "dumb"
	_, noColour := os.LookupEnv("NO_COLOR")
	s := &Screen{out: out, live: live, colours: live && !noColour}
	s.size = func() (int, int) {
		width, height, err := term.GetSize(fd)
		if err != nil || width < 20 || height < 5 {
			return 80, 24
		}
		return width, height
	}
	return s
}

// Live tells whether the view is redrawn in place.
func (s *Screen) Live() bool { return s.live }

// Draw shows the scene. Without a terminal there is nothing to redraw.
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
	frame.WriteString("\x1b[?25l") // a cursor that jumps about is no pleasure
	if s.drawn > 0 {
		fmt.Fprintf(&frame, "\x1b[%dA\r", s.drawn)
	}
	lines := s.last.Frame(width, height)
	for _, l := range lines {
		// Written over and not erased first, which would flicker.
		frame.WriteString(l.render(width, s.colours) + "\x1b[K\n")
	}
	frame.WriteString("\x1b[J")
	s.drawn = len(lines)
	_, _ = io.WriteString(s.out, frame.String()) // nobody to tell if the terminal is gone
}

// erase takes the frame away. The cursor stands below it.
func (s *Screen) erase() string {
	if s.drawn == 0 {
		return ""
	}
	return fmt.Sprintf("\x1b[%dA\r\x1b[J", s.drawn)
}

// Print writes a line that stays, above the live view.
func (s *Screen) Print(l line) {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, _ = io.WriteString(s.out, s.erase()+l.render(0, s.colours)+"\n")
	if s.drawn > 0 {
		s.drawn = 0
		s.draw()
	}
}

// Close leaves the terminal as it was, without the live view.
func (s *Screen) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.live {
		_, _ = io.WriteString(s.out, s.erase()+"\x1b[?25h")
		s.drawn = 0
	}
}
