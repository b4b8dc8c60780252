// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Package terminal draws a fleet.Map as lines of text, with colors or without. The plugin's
// "top" and the demo show these lines.
package terminal

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// Style is the style of a piece of text. It has no effect without colors.
type Style string

// Styles.
const (
	Plain   Style = ""
	Bold    Style = "1"
	Dim     Style = "2"
	Reverse Style = "7"
	Red     Style = "31"
	Green   Style = "32"
	Yellow  Style = "33"
	Blue    Style = "34"
	Cyan    Style = "36"
)

// Span is a piece of a line in one style.
type Span struct {
	Text  string
	Style Style
}

// Line is one line of the screen. All characters in use are one cell wide.
type Line []Span

// Text returns a line without style.
func Text(s string) Line { return Line{{s, Plain}} }

// Styled returns a line in one style.
func Styled(s string, st Style) Line { return Line{{s, st}} }

// And returns the line with a text appended.
func (l Line) And(s string) Line { return append(l, Span{s, Plain}) }

// In returns the line with a text in a style appended.
func (l Line) In(st Style, s string) Line { return append(l, Span{s, st}) }

// Restyled returns the line in one style and padded to so many cells, to mark it.
func (l Line) Restyled(st Style, width int) Line {
	return Styled(Pad(l.Render(0, false), width), st)
}

// Render returns the line in at most width cells; zero means no limit.
func (l Line) Render(width int, colors bool) string {
	var out strings.Builder
	left := width
	for _, s := range l {
		piece := Printable(s.Text)
		if width > 0 {
			piece = Cut(piece, left)
			left -= utf8.RuneCountInString(piece)
		}
		if piece == "" {
			continue
		}
		if colors && s.Style != Plain {
			out.WriteString("\x1b[" + string(s.Style) + "m" + piece + "\x1b[0m")
		} else {
			out.WriteString(piece)
		}
	}
	return strings.TrimRight(out.String(), " ")
}

// Printable replaces the control characters of a text by spaces. Other users write events and
// conditions: these must not contain line breaks or commands of the terminal.
func Printable(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, s)
}

// Cut shortens a text to so many cells and marks the cut.
func Cut(s string, cells int) string {
	if utf8.RuneCountInString(s) <= cells {
		return s
	}
	if cells <= 0 {
		return ""
	}
	return string([]rune(s)[:cells-1]) + "…"
}

// Pad fills a text up to so many cells, or shortens it.
func Pad(s string, cells int) string {
	s = Cut(s, cells)
	return s + strings.Repeat(" ", cells-utf8.RuneCountInString(s))
}

// Fit omits lines and shows how many.
func Fit(lines []Line, rows int) []Line {
	if len(lines) <= rows || rows < 1 {
		return lines
	}
	return append(lines[:rows-1:rows-1], Styled("  … "+plural(len(lines)-rows+1, "more line"), Dim))
}
