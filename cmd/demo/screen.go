// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"io"
	"os"

	"golang.org/x/term"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/fleet/terminal"
)

// Screen prints lines, with colors on a terminal.
type Screen struct {
	out    io.Writer
	colors bool
}

// NewScreen returns a screen that writes to out.
func NewScreen(out *os.File) *Screen {
	_, noColor := os.LookupEnv("NO_COLOR")
	return &Screen{out: out, colors: !noColor && os.Getenv("TERM") != "dumb" && term.IsTerminal(int(out.Fd()))}
}

// Print writes a line.
func (s *Screen) Print(l terminal.Line) {
	_, _ = io.WriteString(s.out, l.Render(0, s.colors)+"\n") // nothing to do if the terminal is closed
}
