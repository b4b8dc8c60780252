// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/json"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
)

// unmeasured are metrics that do not show after a launch and a removal without any
// trouble, with the reason.
var unmeasured = map[string]string{
	"karpenter_proxmox_address_pool_exhausted_total": "there is no address pool",
	"karpenter_proxmox_address_pool_size":            "there is no address pool",
	"karpenter_proxmox_address_pool_used":            "there is no address pool",
	"karpenter_proxmox_api_locked_total":             "no lock was met",
	"karpenter_proxmox_orphans_removed_total":        "nothing was orphaned",
}

// metricsAreOnThePage holds what controllers measured that have done their work against
// the reference page, both ways.
func metricsAreOnThePage(t *testing.T, names []string) {
	t.Helper()
	page, err := os.ReadFile("../../docs/reference/metrics.md")
	must(t, err)
	var listed []string
	for _, row := range regexp.MustCompile("(?m)^\\| `(karpenter_proxmox_\\w+)`").FindAllSubmatch(page, -1) {
		listed = append(listed, string(row[1]))
	}
	if len(listed) < 10 {
		t.Fatalf("found only %d metrics on the page", len(listed))
	}
	for _, name := range names {
		if strings.HasPrefix(name, "karpenter_proxmox_") && !slices.Contains(listed, name) {
			t.Errorf("the controller measures %s, which the page does not list: operator.DescribeMetrics must register it, too", name)
		}
	}
	for _, name := range listed {
		reason, excused := unmeasured[name]
		switch measured := slices.Contains(names, name); {
		case !measured && !excused:
			t.Errorf("the page lists %s, which the controller does not measure", name)
		case measured && excused:
			t.Logf("%s was measured after all, although %s", name, reason)
		}
	}
}

// logLine is a line of the controller's log, as far as it tells whom it is about.
type logLine struct {
	Message   string `json:"message"`
	Logger    string `json:"logger"`
	NodeClaim struct {
		Name string `json:"name"`
	} `json:"NodeClaim"`
	Node struct {
		Name string `json:"name"`
	} `json:"Node"`
}

// logFollows expects the whole life of a claim under one key, and nothing about the
// claim without that key.
func (w *world) logFollows(t *testing.T, claim *karpv1.NodeClaim) {
	var life []string
	for _, path := range w.logs {
		content, err := os.ReadFile(path)
		if os.IsNotExist(err) {
			continue
		}
		must(t, err)
		for _, text := range strings.Split(string(content), "\n") {
			if !strings.HasPrefix(text, "{") {
				continue
			}
			var line logLine
			if err := json.Unmarshal([]byte(text), &line); err != nil {
				t.Errorf("%v: the line is no object, or its NodeClaim or Node has no name: %s", err, text)
				continue
			}
			switch about := strings.Contains(text, claim.Name) || strings.Contains(text, string(claim.UID)) || strings.Contains(text, claim.Status.ProviderID); {
			case line.NodeClaim.Name == claim.Name:
				life = append(life, line.Message)
			case about && !keyless(line):
				t.Errorf("a line is about the claim and does not carry its key: %s", text)
			}
		}
	}
	next := 0
	for _, want := range []string{
		"created nodeclaim", "planned a VM", "launched nodeclaim", "a launch reached a phase", "launched a VM", "registered nodeclaim", "initialized nodeclaim",
		"took back the boot drive and the join token", "removed a VM", "deleted nodeclaim",
	} {
		i := slices.Index(life[next:], want)
		if i < 0 {
			t.Fatalf("the life of the claim lacks %q after %q: %q", want, life[:next], life[next:])
		}
		next += i
	}
}

// keyless are lines of Karpenter about several claims, or about the Node, which has the
// name of its claim.
func keyless(line logLine) bool {
	return line.Node.Name != "" || strings.HasPrefix(line.Logger, "controller-runtime")
}
