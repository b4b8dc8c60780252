// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package bootdata

import (
	"bytes"
	"errors"
	"slices"
	"sort"
	"strings"
	"text/template"
	"text/template/parse"
)

// output is what a template renders to, with the way back: which place of the
// template each byte comes from. A fault that only shows in the rendered file is
// then reported where the user can mend it. It also ends a template that writes
// without end.
type output struct {
	bytes.Buffer
	full bool

	source   string
	texts    map[*byte]int // the first byte of each literal text, and where it stands
	segments []segment
	reached  int // the end of the literal text that was written last
}

// segment is a piece of the output that comes from one place: literal text byte
// by byte, a value all from its action.
type segment struct {
	from, source int
	literal      bool
}

// newOutput prepares for executing a parsed template.
func newOutput(tmpl *template.Template, source string) *output {
	o := &output{source: source, texts: map[*byte]int{}}
	for _, t := range tmpl.Templates() {
		if t.Tree != nil {
			o.collect(t.Root)
		}
	}
	return o
}

// collect notes the literal texts. text/template hands each to the writer as the
// very slice that the parser made, so its first byte's address tells which it is.
func (o *output) collect(list *parse.ListNode) {
	if list == nil {
		return
	}
	for _, node := range list.Nodes {
		switch n := node.(type) {
		case *parse.TextNode:
			if len(n.Text) > 0 {
				o.texts[&n.Text[0]] = int(n.Pos)
			}
		case *parse.IfNode:
			o.collect(n.List)
			o.collect(n.ElseList)
		case *parse.WithNode:
			o.collect(n.List)
			o.collect(n.ElseList)
		case *parse.RangeNode:
			o.collect(n.List)
			o.collect(n.ElseList)
		}
	}
}

// Write implements io.Writer for text/template.
func (o *output) Write(p []byte) (int, error) {
	if o.Len()+len(p) > MaxFileBytes {
		o.full = true
		return 0, errors.New("too large")
	}
	if len(p) > 0 {
		o.note(p)
	}
	return o.Buffer.Write(p)
}

func (o *output) note(p []byte) {
	if place, ok := o.texts[&p[0]]; ok {
		o.segments = append(o.segments, segment{from: o.Len(), source: place, literal: true})
		o.reached = place + len(p)
		return
	}
	place := o.reached
	if i := strings.Index(o.source[place:], "{{"); i >= 0 {
		place += i
	}
	o.segments = append(o.segments, segment{from: o.Len(), source: place})
}

// origin translates a place in the rendered file, counted from 1, into the place
// in the template that it comes from. Without a column the line's first word counts.
func (o *output) origin(line, column int) (int, int) {
	if line < 1 {
		return 0, 0
	}
	rendered := o.Bytes()
	start := lineStart(rendered, line)
	offset := start + max(column-1, 0)
	if column == 0 {
		rest := rendered[start:]
		offset += len(rest) - len(bytes.TrimLeft(rest, " \t"))
	}
	// The last segment that begins at or before it.
	i := sort.Search(len(o.segments), func(i int) bool { return o.segments[i].from > offset }) - 1
	if i < 0 {
		return line, column
	}
	s := o.segments[i]
	place := s.source
	if s.literal {
		place += offset - s.from
	}
	before := o.source[:min(place, len(o.source))]
	outLine := strings.Count(before, "\n") + 1
	if column == 0 {
		return outLine, 0
	}
	return outLine, len(before) - strings.LastIndexByte(before, '\n')
}

// lineStart is the offset of a line, or the end if there are not so many.
func lineStart(text []byte, line int) int {
	offset := 0
	for range line - 1 {
		next := slices.Index(text[offset:], '\n')
		if next < 0 {
			return len(text)
		}
		offset += next + 1
	}
	return offset
}
