// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"testing"
)

func TestNotes(t *testing.T) {
	t.Parallel()
	const changelog = "# Changelog\n\n## Unreleased\n\n- new\n\n## 1.2.3 - 2026-11-20\n\n- See [upgrade](docs/upgrade.md).\n\n### Fixed\n\n- a bug\n\n## 1.2.0\n\n- old\n"
	for version, want := range map[string]string{
		"v1.2.3":      "- See [upgrade](" + repository + "/blob/main/docs/upgrade.md).\n\n### Fixed\n\n- a bug\n",
		"v1.2.0":      "- old\n",
		"v1.3.0-rc.1": "- new\n",
		"dev":         "- new\n",
	} {
		if found, err := (release{version: version}).changes(changelog); err != nil || found != want {
			t.Errorf("%s: found %q, %v, want %q", version, found, err, want)
		}
	}
	_, err := release{version: "v1.2"}.changes(changelog)
	if want := `CHANGELOG.md has no section "## 1.2"`; err == nil || err.Error() != want {
		t.Errorf("found %v, want %s", err, want)
	}
}

// TestUnreleasedChanges checks that the changelog has the section that a prerelease publishes.
func TestUnreleasedChanges(t *testing.T) {
	t.Parallel()
	changelog, err := os.ReadFile("../../CHANGELOG.md")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := (release{version: "dev"}).changes(string(changelog)); err != nil {
		t.Error(err)
	}
}
