// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package docs

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
)

const root = "../.."

func TestMain(m *testing.M) { os.Exit(testenv.Run(m)) }

// block is a code block of a document.
type block struct {
	file string
	line int
	// kind is the text after the opening fence.
	kind    string
	content string
}

func (b block) String() string { return fmt.Sprintf("%s:%d", b.file, b.line) }

// files returns the files with an extension below a directory of the repository.
func files(t *testing.T, dir, extension string) (found []string) {
	t.Helper()
	top := filepath.Join(root, dir)
	testenv.Must(t, filepath.WalkDir(top, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && path != top && strings.HasPrefix(entry.Name(), ".") && entry.Name() != ".github":
			return fs.SkipDir
		case filepath.Ext(path) == extension:
			found = append(found, path)
		}
		return nil
	}))
	if len(found) < 5 {
		t.Fatalf("found the files %v below %s", found, top)
	}
	return found
}

// documents returns all Markdown files of the repository.
func documents(t *testing.T) []string { return files(t, "", ".md") }

// blocks returns the blocks of the given kinds, or all blocks, in all documents.
func blocks(t *testing.T, kinds ...string) (found []block) {
	t.Helper()
	for _, file := range documents(t) {
		var open *block
		for i, line := range strings.Split(read(t, file), "\n") {
			fence, isFence := strings.CutPrefix(strings.TrimSpace(line), "```")
			switch {
			case isFence && open == nil:
				open = &block{file: strings.TrimPrefix(file, root+"/"), line: i + 1, kind: strings.TrimSpace(fence)}
			case isFence:
				if len(kinds) == 0 || slices.Contains(kinds, open.kind) {
					found = append(found, *open)
				}
				open = nil
			case open != nil:
				open.content += line + "\n"
			}
		}
		expect(t, open == nil, "%s: the block is not closed", open)
	}
	return found
}

// read returns the content of a file, whose path is relative to the root of the repository unless it begins with it.
func read(t *testing.T, path string) string {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(root, strings.TrimPrefix(path, root)))
	testenv.Must(t, err)
	return string(content)
}

// expect reports an error unless a condition is true.
func expect(t *testing.T, condition bool, format string, args ...any) {
	t.Helper()
	if !condition {
		t.Errorf(format, args...)
	}
}

// find returns all matches of a pattern with its groups.
func find(pattern, text string) [][]string {
	return regexp.MustCompile(pattern).FindAllStringSubmatch(text, -1)
}

// TestBlockKinds checks that every block has a known kind, because blocks of other kinds are
// not tested.
func TestBlockKinds(t *testing.T) {
	t.Parallel()
	known := []string{
		"yaml", "yaml values", "yaml cloud-config", "yaml scenario", "yaml part", "json instance-types", "json node-settings",
		"shell", "text", "console", "go", "mermaid",
	}
	for _, b := range blocks(t) {
		expect(t, slices.Contains(known, b.kind), "%s: found a block of kind %q, want one of %s", b, b.kind, strings.Join(known, ", "))
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
			expect(t, found == cells, "%s:%d: found %d cells, want %d", file, i+1, found-1, cells-1)
		}
	}
}
