// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package docs

import (
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
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
	err := filepath.WalkDir(root, func(file string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() && (strings.HasPrefix(entry.Name(), ".") && entry.Name() != ".." || entry.Name() == "testdata") {
			return filepath.SkipDir
		}
		if entry.IsDir() || !strings.HasSuffix(file, ".go") || strings.HasSuffix(file, "_test.go") {
			return nil
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ImportsOnly)
		if err != nil {
			return err
		}
		dir, err := filepath.Rel(root, filepath.Dir(file))
		if err != nil {
			return err
		}
		if imports[dir] == nil {
			imports[dir] = map[string]bool{}
		}
		for _, spec := range parsed.Imports {
			if imported, ours := strings.CutPrefix(strings.Trim(spec.Path.Value, `"`), module); ours {
				imports[dir][imported] = true
			}
		}
		return nil
	})
	testenv.Must(t, err)
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
			if matches, err := filepath.Glob(filepath.Join(root, glob(pattern))); err != nil || len(matches) == 0 {
				t.Errorf("CONTRIBUTING.md: the package table has %s, which does not exist", pattern)
			}
		}
	}
}

// TestPackageTableMatchesLinter compares the package table with the import rules of the
// linter: a rule covers each package below internal, and denies nothing that the table
// allows.
func TestPackageTableMatchesLinter(t *testing.T) {
	t.Parallel()
	type rule struct {
		Files []string
		Deny  []struct{ Pkg string }
	}
	var config struct {
		Linters struct {
			Settings struct {
				Depguard struct{ Rules map[string]rule }
			}
		}
	}
	testenv.Must(t, yaml.Unmarshal([]byte(read(t, ".golangci.yaml")), &config))
	rows, packages := packageRows(t), importsByPackage(t)
	for dir := range packages {
		if !strings.HasPrefix(dir, "internal/") {
			continue
		}
		row, _ := rowOf(rows, dir)
		covered := false
		for name, rule := range config.Linters.Settings.Depguard.Rules {
			// The rule "product" is for the simulator and test packages.
			if name == "product" || !slices.ContainsFunc(rule.Files, func(glob string) bool {
				return strings.HasPrefix(dir+"/", strings.TrimSuffix(strings.TrimPrefix(glob, "${base-path}/"), "**"))
			}) {
				continue
			}
			covered = true
			for _, deny := range rule.Deny {
				prefix, ours := strings.CutPrefix(deny.Pkg, module)
				for _, allowed := range row.imports {
					if ours && (strings.HasPrefix(allowed, prefix) || allowed+"$" == prefix) {
						t.Errorf("%s: the linter's rule %s denies %s, which CONTRIBUTING.md allows", dir, name, allowed)
					}
				}
			}
		}
		if !covered && dir != "internal/hook" && dir != "internal/operator" && dir != "internal/testenv" {
			t.Errorf("%s: no import rule of .golangci.yaml covers it", dir)
		}
	}
}

// TestPluginCommands compares the commands of the kubectl plugin with the package table.
func TestPluginCommands(t *testing.T) {
	t.Parallel()
	row, _ := rowOf(packageRows(t), "cmd/kubectl-proxmox")
	listed := quotedIn(row.purpose)
	files, err := filepath.Glob(filepath.Join(root, "cmd", "kubectl-proxmox", "*.go"))
	testenv.Must(t, err)
	var commands []string
	for _, file := range files {
		for _, match := range find(`\bUse:\s+"([a-z-]+)`, read(t, file)) {
			if match[1] != "kubectl-proxmox" {
				commands = append(commands, match[1])
			}
		}
	}
	slices.Sort(commands)
	slices.Sort(listed)
	if !slices.Equal(commands, listed) {
		t.Errorf("CONTRIBUTING.md lists the plugin's commands %v, it has %v", listed, commands)
	}
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
