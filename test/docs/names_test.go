// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package docs

import (
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/power"
)

// otherNames are names of kinds, feature gates of Karpenter, phases of a launch, names of Kubernetes and roles of Proxmox.
var otherNames = []string{
	"ProxmoxNodeClass", "ProxmoxTemplate", "ProxmoxUnmanagedTemplate", "NodeClaim", "NodeRepair", "StaticCapacity", "TerminateFirstDrift",
	"ReadyForProvisioning", "FitsExistingCapacity", "RequiresNewCapacity", "ConsolidationApproved", // Karpenter
	string(instance.PhaseHostWaking), string(instance.PhaseHostAwake), string(instance.PhaseBootDrive), string(instance.PhaseCertificateRequested), string(instance.PhaseCertificateApproved),
	string(instance.PhaseNodeRegistered), string(instance.PhaseNodeReady),
	"NotIn", "NotReady", "SandboxChanged", "NoAccess", "KarpenterDisk", "KarpenterHost",
}

// developerPages describe the code and its tests.
var developerPages = []string{"conformance.md", "e2e.md", "performance.md", "pvesim.md", "real-guests.md"}

// TestNames checks that every condition, reason, event, label and annotation in the documentation
// exists. The reference pages are generated from the code, so they are complete.
func TestNames(t *testing.T) {
	t.Parallel()
	names := slices.Clone(otherNames)
	for _, page := range []string{"conditions.md", "labels.md", "fields.md"} {
		for _, row := range find("(?m)^\\| `([^`]+)` \\|", read(t, "docs/reference/"+page)) {
			names = append(names, row[1])
		}
	}
	for _, value := range find("`\"(\\w+)\"`", read(t, "docs/reference/fields.md")) {
		names = append(names, value[1])
	}
	for _, reason := range power.ReasonTypes() {
		names = append(names, string(reason))
		expect(t, strings.Contains(read(t, "docs/power.md"), "\n| `"+string(reason)+"` |"), "docs/power.md does not describe the reason %s", reason)
	}
	for _, alert := range find(`- alert: (\w+)`, read(t, "charts/karpenter-provider-proxmox/files/alerts.yaml")) {
		names = append(names, alert[1])
	}
	word := regexp.MustCompile("`((?:[A-Z][a-z]+|VM|VMID|CPU|HA){2,}|" + regexp.QuoteMeta(v1alpha1.Group) + "/[a-z-]+)`")
	for _, path := range append(files(t, "docs", ".md"), "README.md") {
		// The reference is generated.
		if strings.Contains(path, "/reference/") || slices.Contains(developerPages, filepath.Base(path)) {
			continue
		}
		for _, found := range word.FindAllStringSubmatch(read(t, path), -1) {
			if !slices.Contains(names, found[1]) {
				t.Errorf("%s: `%s` is neither in docs/reference nor one of the other names in this test", strings.TrimPrefix(path, root+"/"), found[1])
			}
		}
	}
}

// reasonLiteral matches literals that are reasons: in fields of events, and in calls that publish events or set conditions.
var reasonLiteral = regexp.MustCompile(`\b(?:Reason:\s*|` +
	`(?:Set(?:False|Unknown|TrueWithReason|UnknownWithReason)|setUnknown|Publish|newEvent|waitingEvent|report\w*)` +
	`\((?:[^()"]|"[^"]*"|\([^()]*\))*?)("[A-Z][a-z]*[A-Z][A-Za-z]*")`)

// TestReasons checks that the reasons of events and conditions are constants of the API, from
// which the reference is generated.
func TestReasons(t *testing.T) {
	t.Parallel()
	for _, path := range files(t, "internal", ".go") {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		for _, found := range reasonLiteral.FindAllStringSubmatch(read(t, path), -1) {
			t.Errorf("%s: the reason %s must be a constant in api/v1alpha1", path, found[1])
		}
	}
}

// TestAnnotations checks that docs/architecture.md lists every annotation of the API.
func TestAnnotations(t *testing.T) {
	t.Parallel()
	page := read(t, "docs/architecture.md")
	found := find(`Annotation\w+ += Group \+ "/([a-z-]+)"`, read(t, "api/v1alpha1/labels.go"))
	if len(found) < 8 {
		t.Fatalf("found %d annotations, want at least 8", len(found))
	}
	for _, annotation := range found {
		expect(t, strings.Contains(page, "`"+annotation[1]+"`"), "docs/architecture.md does not list the annotation %s", annotation[1])
	}
}
