// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
)

// TestDocumentedCommands checks that the commands in the documentation, in the alerts and in
// the notes of the chart exist, with their flags and arguments.
func TestDocumentedCommands(t *testing.T) {
	t.Parallel()
	// In the text of a page, arguments can be missing.
	written := regexp.MustCompile("(`|\\$ |(?m:^ *)|: )kubectl proxmox ([^`#>|\"\n]*(?:\"[^`#>|\"\n]*\"[^`#>|\"\n]*)?)")
	word := regexp.MustCompile(`"[^"]*"|(?:\{\{[^}]*\}\}|\S)+`)
	found := 0
	for _, pattern := range []string{"README.md", "docs/*.md", "docs/reference/*.md", "charts/*/files/alerts.yaml", "charts/*/templates/NOTES.txt"} {
		files, err := filepath.Glob("../../" + pattern)
		testenv.Must(t, err)
		for _, file := range files {
			content, err := os.ReadFile(file)
			testenv.Must(t, err)
			for _, match := range written.FindAllStringSubmatch(string(content), -1) {
				found++
				if err := parseCommand(word.FindAllString(match[2], -1), match[1] == "`"); err != nil {
					t.Errorf("%s: kubectl proxmox %s: %v", file, match[2], err)
				}
			}
		}
	}
	if found < 40 {
		t.Errorf("found %d commands, want at least 40", found)
	}
}

// parseCommand parses the arguments of a command without running it.
func parseCommand(args []string, incomplete bool) error {
	command, rest, err := newRoot().Find(args)
	if err != nil {
		return err
	}
	switch err := command.ParseFlags(rest); {
	case err == nil && !incomplete:
	case err == nil, strings.Contains(err.Error(), "help requested"), incomplete && strings.Contains(err.Error(), "flag needs an argument"):
		return nil
	default:
		return err
	}
	if err := command.ValidateFlagGroups(); err != nil {
		return err
	}
	return command.ValidateArgs(command.Flags().Args())
}
