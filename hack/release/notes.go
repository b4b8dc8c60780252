// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"regexp"
	"strings"
)

// notes writes notes.md, the text of the release page: the section of the version in
// CHANGELOG.md.
func (r release) notes() error {
	changelog, err := os.ReadFile("CHANGELOG.md")
	if err != nil {
		return fmt.Errorf("reading the changelog: %w", err)
	}
	section, err := r.changes(string(changelog))
	if err != nil {
		return err
	}
	return r.write("notes.md", []byte(section))
}

// changes returns a section of the changelog, with absolute links. A version that is not a
// release has the section of the next one.
func (r release) changes(changelog string) (string, error) {
	heading := strings.TrimPrefix(r.version, "v")
	if heading == "dev" || strings.Contains(heading, "-") {
		heading = "Unreleased"
	}
	found := regexp.MustCompile(`(?m)^## ` + regexp.QuoteMeta(heading) + `( .*)?\n`).FindStringIndex(changelog)
	if found == nil {
		return "", fmt.Errorf("CHANGELOG.md has no section %q", "## "+heading)
	}
	section, _, _ := strings.Cut(changelog[found[1]:], "\n## ")
	return strings.TrimSpace(strings.ReplaceAll(section, "](docs/", "]("+repository+"/blob/main/docs/")) + "\n", nil
}
