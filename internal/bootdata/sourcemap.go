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

// output collects what a template renders, and maps each byte to its position in the
// template source. An error in the rendered file is reported at that position. Writing
// fails after MaxFileBytes.
type output struct {
	bytes.Buffer
	isFull bool

	source   string
	texts    map[*byte]int // position of each literal text by the address of its first byte
	segments []segment
	reached  int // end of the literal text that was written last
}

// segment is a part of the output that comes from one position in the source. Bytes of a
// literal text are mapped one to one, all bytes of a value to its action.
type segment struct {
	from, source int
	literal      bool
}

// newOutput returns the output for executing a parsed template.
func newOutput(tmpl *template.Template, source string) *output {
	o := &output{source: source, texts: map[*byte]int{}}
	for _, t := range tmpl.Templates() {
		if t.Tree != nil {
			o.collect(t.Root)
		}
	}
	return o
}

// collect records the literal texts. text/template writes each as the slice of the
// parser, so the address of its first byte identifies it.
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
		o.isFull = true
		return 0, errors.New("too large")
	}
	if len(p) > 0 {
		o.addSegment(p)
	}
	return o.Buffer.Write(p)
}

func (o *output) addSegment(p []byte) {
	if position, ok := o.texts[&p[0]]; ok {
		o.segments = append(o.segments, segment{from: o.Len(), source: position, literal: true})
		o.reached = position + len(p)
		return
	}
	position := o.reached
	if i := strings.Index(o.source[position:], "{{"); i >= 0 {
		position += i
	}
	o.segments = append(o.segments, segment{from: o.Len(), source: position})
}

// origin returns the position in the template for a position in the rendered file, both
// from 1. With column 0 it returns the line of the first word.
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
	// The last segment that begins at or before the offset.
	i := sort.Search(len(o.segments), func(i int) bool { return o.segments[i].from > offset }) - 1
	if i < 0 {
		return line, column
	}
	s := o.segments[i]
	position := s.source
	if s.literal {
		position += offset - s.from
	}
	before := o.source[:min(position, len(o.source))]
	outLine := strings.Count(before, "\n") + 1
	if column == 0 {
		return outLine, 0
	}
	return outLine, len(before) - strings.LastIndexByte(before, '\n')
}

// lineStart returns the offset of a line, or the length of the text if it has fewer.
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
