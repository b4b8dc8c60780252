// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"unicode/utf8"
)

// style is the style of a piece of text. It has no effect without colors.
type style string

const (
	plain  style = ""
	bold   style = "1"
	dim    style = "2"
	red    style = "31"
	green  style = "32"
	yellow style = "33"
	blue   style = "34"
	cyan   style = "36"
)

// span is a piece of a line in one style.
type span struct {
	text  string
	style style
}

// line is one line of the screen. All characters in use are one cell wide.
type line []span

func text(s string) line                  { return line{{s, plain}} }
func styled(s string, st style) line      { return line{{s, st}} }
func (l line) and(s string) line          { return append(l, span{s, plain}) }
func (l line) in(st style, s string) line { return append(l, span{s, st}) }

func (l line) width() int {
	n := 0
	for _, s := range l {
		n += utf8.RuneCountInString(s.text)
	}
	return n
}

// render returns the line in at most width cells; zero means no limit.
func (l line) render(width int, colors bool) string {
	var out strings.Builder
	left := width
	for _, s := range l {
		piece := s.text
		if width > 0 {
			piece = cut(piece, left)
			left -= utf8.RuneCountInString(piece)
		}
		if piece == "" {
			continue
		}
		if colors && s.style != plain {
			out.WriteString("\x1b[" + string(s.style) + "m" + piece + "\x1b[0m")
		} else {
			out.WriteString(piece)
		}
	}
	return strings.TrimRight(out.String(), " ")
}

// cut shortens a text to so many cells and marks the cut.
func cut(s string, cells int) string {
	if utf8.RuneCountInString(s) <= cells {
		return s
	}
	if cells <= 0 {
		return ""
	}
	return string([]rune(s)[:cells-1]) + "…"
}

// pad fills a text up to so many cells, or shortens it.
func pad(s string, cells int) string {
	s = cut(s, cells)
	return s + strings.Repeat(" ", cells-utf8.RuneCountInString(s))
}
