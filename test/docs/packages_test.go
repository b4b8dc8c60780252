// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package docs

import (
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/karpenter-proxmox/karpenter-provider-proxmox/"

// packageRow is a row of CONTRIBUTING's package table.
type packageRow struct {
	paths   []string // below the root; <name> matches any directory
	purpose string
	// imports are the packages that it may import, with what those may import. Nil means
	// all packages.
	imports []string
}

// quotedIn returns the names in code font.
func quotedIn(text string) (names []string) {
	for _, match := range find("`([^`]+)`", text) {
		names = append(names, match[1])
	}
	return names
}

func packageRows(t *testing.T) []packageRow {
	t.Helper()
	_, table, _ := strings.Cut(read(t, "CONTRIBUTING.md"), "\n| package | purpose | may import |\n|---|---|---|\n")
	var rows []packageRow
	for line := range strings.SplitSeq(table, "\n") {
		cells := strings.Split(line, "|")
		if len(cells) != 5 {
			break
		}
		row := packageRow{paths: quotedIn(cells[1]), purpose: cells[2]}
		if imports := strings.TrimSpace(cells[3]); imports != "everything" {
			row.imports = []string{}
			for _, name := range quotedIn(imports) {
				if _, err := os.Stat(filepath.Join(root, "internal", name)); err == nil {
					name = "internal/" + name
				}
				row.imports = append(row.imports, name)
			}
		}
		rows = append(rows, row)
	}
	if len(rows) == 0 {
		t.Fatal("CONTRIBUTING.md has no table of packages")
	}
	return rows
}

// rowOf returns the row of a package: the one that names it or the closest directory
// above. Packages below internal need a row that names them.
func rowOf(rows []packageRow, dir string) (packageRow, bool) {
	for named := dir; named != "."; named = path.Dir(named) {
		if named != dir && strings.HasPrefix(dir, "internal/") {
			break
		}
		for _, row := range rows {
			if slices.ContainsFunc(row.paths, func(pattern string) bool { matched, _ := path.Match(glob(pattern), named); return matched }) {
				return row, true
			}
		}
	}
	return packageRow{}, false
}

// glob returns the pattern of a path that may contain <name>.
func glob(named string) string { return regexp.MustCompile(`<[^>]+>`).ReplaceAllString(named, "*") }

// importsByPackage returns the packages of this module that each package imports, without
// tests.
func importsByPackage(t *testing.T) map[string]map[string]bool {
	t.Helper()
	imports := map[string]map[string]bool{}
	for _, file := range files(t, "", ".go") {
		dir := strings.TrimPrefix(filepath.Dir(file), root+"/")
		if strings.HasSuffix(file, "_test.go") || strings.Contains(file, "/testdata/") {
			continue
		}
		if imports[dir] == nil {
			imports[dir] = map[string]bool{}
		}
		for _, imported := range find(`(?m)^(?:import )?\s*(?:\w+ )?"`+module+`([^"]+)"(?:$| //)`, read(t, file)) {
			imports[dir][imported[1]] = true
		}
	}
	return imports
}

// mayImport reports whether the table allows an import, directly or through a package that
// may be imported.
func mayImport(rows []packageRow, row packageRow, imported string, seen map[string]bool) bool {
	if row.imports == nil {
		return true
	}
	for _, allowed := range row.imports {
		// These names include all packages of the tree.
		tree := allowed == "internal" || allowed == "api" || allowed == "pvesim"
		if allowed == imported || tree && strings.HasPrefix(imported, allowed+"/") {
			return true
		}
		if next, ok := rowOf(rows, allowed); ok && !seen[allowed] {
			seen[allowed] = true
			if mayImport(rows, next, imported, seen) {
				return true
			}
		}
	}
	return false
}

// TestPackageTable compares CONTRIBUTING's package table with the tree and its imports.
func TestPackageTable(t *testing.T) {
	t.Parallel()
	rows, imports := packageRows(t), importsByPackage(t)
	for dir, imported := range imports {
		row, ok := rowOf(rows, dir)
		if !ok {
			t.Errorf("CONTRIBUTING.md: the package table lacks %s", dir)
			continue
		}
		for name := range imported {
			sameRow, _ := rowOf(rows, name)
			if !slices.Equal(sameRow.paths, row.paths) && !mayImport(rows, row, name, map[string]bool{}) {
				t.Errorf("CONTRIBUTING.md: %s imports %s, which the package table does not allow", dir, name)
			}
		}
	}
	for _, row := range rows {
		for _, pattern := range row.paths {
			matches, err := filepath.Glob(filepath.Join(root, glob(pattern)))
			expect(t, err == nil && len(matches) != 0, "CONTRIBUTING.md: the package table has %s, which does not exist", pattern)
		}
	}
}

// TestPluginCommands compares the commands of the kubectl plugin with the package table.
func TestPluginCommands(t *testing.T) {
	t.Parallel()
	row, _ := rowOf(packageRows(t), "cmd/kubectl-proxmox")
	listed := quotedIn(row.purpose)
	var commands []string
	for _, file := range files(t, "cmd/kubectl-proxmox", ".go") {
		for _, match := range find(`\bUse:\s+"([a-z-]+)`, read(t, file)) {
			if match[1] != "kubectl-proxmox" {
				commands = append(commands, match[1])
			}
		}
	}
	slices.Sort(commands)
	slices.Sort(listed)
	expect(t, slices.Equal(commands, listed), "CONTRIBUTING.md lists the plugin's commands %v, it has %v", listed, commands)
}

// TestDependencyTable compares CONTRIBUTING's table of dependencies with go.mod.
func TestDependencyTable(t *testing.T) {
	t.Parallel()
	_, table, _ := strings.Cut(read(t, "CONTRIBUTING.md"), "\n| module | used for | alternatives |\n|---|---|---|\n")
	table, _, _ = strings.Cut(table, "\n\n")
	var listed, required []string
	for line := range strings.SplitSeq(table, "\n") {
		listed = append(listed, quotedIn(strings.Split(line, "|")[1])...)
	}
	for _, match := range find(`(?m)^(?:require )?\t?(\S+\.\S+/\S+) v\S+$`, read(t, "go.mod")) {
		required = append(required, match[1])
	}
	slices.Sort(listed)
	slices.Sort(required)
	if !slices.Equal(listed, required) {
		t.Errorf("CONTRIBUTING.md lists the modules\n%s\ngo.mod requires\n%s", strings.Join(listed, "\n"), strings.Join(required, "\n"))
	}
}
