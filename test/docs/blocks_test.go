// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package docs

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const root = "../.."

// block is a code block of a document.
type block struct {
	file string
	line int
	// kind is the text after the opening fence.
	kind    string
	content string
}

func (b block) String() string { return fmt.Sprintf("%s:%d", b.file, b.line) }

// documents returns all Markdown files of the repository.
func documents(t *testing.T) []string {
	t.Helper()
	var files []string
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && path != root && (strings.HasPrefix(entry.Name(), ".cache") || entry.Name() == ".git"):
			return fs.SkipDir
		case filepath.Ext(path) == ".md":
			files = append(files, path)
		}
		return nil
	})
	if err != nil || len(files) < 5 {
		t.Fatalf("found documents %v: %v", files, err)
	}
	return files
}

// blocks returns the blocks of the given kinds in all documents.
func blocks(t *testing.T, kinds ...string) []block {
	t.Helper()
	var found []block
	for _, file := range documents(t) {
		for _, b := range blocksOf(t, file) {
			if slices.Contains(kinds, b.kind) {
				found = append(found, b)
			}
		}
	}
	return found
}

func blocksOf(t *testing.T, file string) []block {
	t.Helper()
	var found []block
	var open *block
	for i, line := range strings.Split(read(t, file), "\n") {
		fence, isFence := strings.CutPrefix(strings.TrimSpace(line), "```")
		switch {
		case isFence && open == nil:
			open = &block{file: strings.TrimPrefix(file, root+"/"), line: i + 1, kind: strings.TrimSpace(fence)}
		case isFence:
			found = append(found, *open)
			open = nil
		case open != nil:
			open.content += line + "\n"
		}
	}
	if open != nil {
		t.Errorf("%s: the block is not closed", open)
	}
	return found
}

func read(t *testing.T, path string) string {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

// TestBlockKinds checks that every block has a known kind, because blocks of other kinds are
// not tested.
func TestBlockKinds(t *testing.T) {
	t.Parallel()
	known := []string{
		"yaml", "yaml values", "yaml cloud-config", "yaml scenario", "yaml part", "json instance-types", "json node-settings",
		"shell", "text", "console", "go", "mermaid",
	}
	for _, file := range documents(t) {
		for _, b := range blocksOf(t, file) {
			if !slices.Contains(known, b.kind) {
				t.Errorf("%s: found a block of kind %q, want one of %s", b, b.kind, strings.Join(known, ", "))
			}
		}
	}
}

// TestTables checks that the rows of a table have as many cells as its header. A bar separates
// cells also within code, unless it is escaped.
func TestTables(t *testing.T) {
	t.Parallel()
	for _, file := range documents(t) {
		cells := 0
		for i, line := range strings.Split(read(t, file), "\n") {
			if line = strings.TrimSpace(line); !strings.HasPrefix(line, "| ") && !strings.HasPrefix(line, "|-") {
				cells = 0
				continue
			}
			found := strings.Count(line, "|") - strings.Count(line, `\|`)
			if cells == 0 {
				cells = found
			}
			if found != cells {
				t.Errorf("%s:%d: found %d cells, want %d", file, i+1, found-1, cells-1)
			}
		}
	}
}
