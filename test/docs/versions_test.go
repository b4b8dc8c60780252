// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package docs

import (
	"fmt"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestKubernetesVersions checks that the charts and the documents name the versions of
// Kubernetes that the end-to-end tests run on: those of kubeplane's module files.
func TestKubernetesVersions(t *testing.T) {
	t.Parallel()
	others, err := filepath.Glob(filepath.Join(root, "kubeplane/go.*.mod"))
	if err != nil || len(others) != 1 {
		t.Fatalf("found the module files %v of other versions than the newest, want one: %v", others, err)
	}
	required := regexp.MustCompile(`(?m)^\tk8s\.io/kubernetes v((1\.\d+)\.\d+)$`)
	newest, oldest := required.FindStringSubmatch(read(t, "kubeplane/go.mod")), required.FindStringSubmatch(read(t, others[0]))
	if newest == nil || oldest == nil || filepath.Base(others[0]) != "go."+oldest[2]+".mod" {
		t.Fatalf("%s requires Kubernetes %v, want the version in its name; the newest is %v", others[0], oldest, newest)
	}
	for path, want := range map[string]string{
		"charts/karpenter-provider-proxmox/Chart.yaml":     fmt.Sprintf("kubeVersion: %q", ">="+oldest[2]+".0-0"),
		"charts/karpenter-provider-proxmox-crd/Chart.yaml": fmt.Sprintf("kubeVersion: %q", ">="+oldest[2]+".0-0"),
		"README.md":                   fmt.Sprintf("Kubernetes %s to %s", oldest[2], newest[2]),
		"docs/getting-started.md":     fmt.Sprintf("Kubernetes %s to %s", oldest[2], newest[2]),
		"docs/compatibility.md":       fmt.Sprintf("| Kubernetes | %s to %s | %s and %s,", oldest[2], newest[2], oldest[1], newest[1]),
		"docs/e2e.md":                 "make e2e KUBERNETES=" + oldest[2],
		".github/workflows/long.yaml": "KUBERNETES=" + oldest[2],
	} {
		expect(t, strings.Contains(read(t, path), want), "%s does not contain %q", path, want)
	}
}

// TestReleaseNotes checks that docs/upgrade.md has a note for each release in the changelog.
func TestReleaseNotes(t *testing.T) {
	t.Parallel()
	notes := read(t, "docs/upgrade.md")
	for _, release := range find(`(?m)^## (\S+)`, read(t, "CHANGELOG.md")) {
		expect(t, strings.Contains(notes, "\n### "+release[1]+"\n"), "docs/upgrade.md has no note %q", "### "+release[1])
	}
}
