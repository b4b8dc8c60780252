// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"slices"
	"strings"
)

// shellCommands splits a shell script into commands and their words. It supports
// quotes, comments, line continuations and the operators between commands, which is
// enough to find the programs that a boot script calls.
func shellCommands(text string) [][]string {
	s := shellScanner{rest: []rune(strings.ReplaceAll(text, "\\\n", " "))}
	for len(s.rest) > 0 {
		s.step()
	}
	s.endCommand()
	return s.commands
}

// shellScanner scans a shell script from left to right.
type shellScanner struct {
	rest     []rune
	commands [][]string
	words    []string
	word     []rune
	inWord   bool // also true for an empty word: ''
}

func (s *shellScanner) step() {
	r := s.rest[0]
	s.rest = s.rest[1:]
	switch {
	case r == '\'' || r == '"':
		s.word, s.inWord = append(s.word, s.through(r)...), true
	case r == '#' && !s.inWord:
		s.through('\n')
		s.endCommand()
	case strings.ContainsRune("\n;&|()", r):
		s.endCommand()
	case strings.ContainsRune(" \t\r", r):
		s.endWord()
	default:
		s.word, s.inWord = append(s.word, r), true
	}
}

// through consumes the text up to and including the next such character.
func (s *shellScanner) through(end rune) []rune {
	i := slices.Index(s.rest, end)
	if i < 0 {
		taken := s.rest
		s.rest = nil
		return taken
	}
	taken := s.rest[:i]
	s.rest = s.rest[i+1:]
	return taken
}

func (s *shellScanner) endWord() {
	if s.inWord {
		s.words = append(s.words, string(s.word))
		s.word, s.inWord = nil, false
	}
}

func (s *shellScanner) endCommand() {
	s.endWord()
	if len(s.words) > 0 {
		s.commands = append(s.commands, s.words)
		s.words = nil
	}
}
