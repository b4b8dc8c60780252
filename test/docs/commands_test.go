// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package docs

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/operator"
)

// TestCommandsParse parses every command with bash and checks the names of make targets.
func TestCommandsParse(t *testing.T) {
	t.Parallel()
	makefile := read(t, "Makefile")
	for _, b := range blocks(t, "shell") {
		cmd := exec.CommandContext(t.Context(), "bash", "-n")
		cmd.Stdin = strings.NewReader(b.content)
		out, err := cmd.CombinedOutput()
		expect(t, err == nil, "%s: %v\n%s", b, err, out)
		for _, match := range find(`(?m)^\s*(?:\$ )?make ([a-z][a-z0-9-]*)`, b.content) {
			expect(t, strings.Contains(makefile, "\n"+match[1]+":"), "%s: the Makefile has no target %s", b, match[1])
		}
	}
}

// TestMakeVariables checks that every variable in the Makefile has a value, is an option in the
// help of a target, or belongs to make.
func TestMakeVariables(t *testing.T) {
	t.Parallel()
	makefile := read(t, "Makefile")
	for _, used := range find(`\$\(([A-Z][A-Z0-9_]*)\)`, makefile) {
		known := regexp.MustCompile(`(?m)^(export |override )*` + used[1] + ` *[:?]?=|## .*\b` + used[1] + `=`)
		if !known.MatchString(makefile) && !slices.Contains([]string{"CURDIR", "MAKE", "MAKEFILE_LIST"}, used[1]) {
			t.Errorf("the Makefile uses the variable %s, which has no value", used[1])
		}
	}
}

// TestSettingsExist checks that the chart values named in documents exist.
func TestSettingsExist(t *testing.T) {
	t.Parallel()
	known := map[string]bool{"settings.featureGates": true}
	for _, option := range operator.OptionTable() {
		known["settings."+option.ChartValue()] = true
	}
	for _, option := range operator.CoreOptions() {
		known["settings."+option.ChartValue()] = true
	}
	for _, file := range documents(t) {
		for _, match := range find("`(settings\\.[a-zA-Z]+)", read(t, file)) {
			expect(t, known[match[1]], "%s names %s, which does not exist in the chart", file, match[1])
		}
	}
}

// repositoryURL matches web addresses of files of this repository.
var repositoryURL = regexp.MustCompile(`https://(?:raw\.githubusercontent\.com/karpenter-proxmox/karpenter-provider-proxmox/main|github\.com/karpenter-proxmox/karpenter-provider-proxmox/(?:blob|tree)/main)/([^\s#)"` + "`" + `]+)`)

// TestLinks checks the links between documents, to headings, and to files of this repository.
func TestLinks(t *testing.T) {
	t.Parallel()
	for _, file := range documents(t) {
		content := read(t, file)
		for _, match := range repositoryURL.FindAllStringSubmatch(content, -1) {
			_, err := os.Stat(filepath.Join(root, match[1]))
			expect(t, err == nil, "%s names %s: %v", file, match[0], err)
		}
		for _, match := range find(`\]\(([^)#\s]*)(#[^)\s]*)?\)`, content) {
			to, heading := match[1], strings.TrimPrefix(match[2], "#")
			if strings.Contains(to, ":") {
				continue // external link
			}
			target := file
			if to != "" {
				target = filepath.Join(filepath.Dir(file), to)
			}
			if _, err := os.Stat(target); err != nil {
				t.Errorf("%s links to %s: %v", file, to, err)
				continue
			}
			if heading != "" && !slices.Contains(headings(t, target), heading) {
				t.Errorf("%s links to heading %s of %s, which does not exist", file, heading, target)
			}
		}
	}
}

// headings returns the anchors of a document's headings.
func headings(t *testing.T, file string) (found []string) {
	t.Helper()
	dropped := regexp.MustCompile(`[^\p{L}\p{N}\- _]`)
	for _, match := range find(`(?m)^#+ (.+)$`, read(t, file)) {
		found = append(found, strings.ReplaceAll(dropped.ReplaceAllString(strings.ToLower(match[1]), ""), " ", "-"))
	}
	return found
}
