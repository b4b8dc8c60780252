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

	. "github.com/onsi/gomega"
	dto "github.com/prometheus/client_model/go"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
)

const noPowerManagement = "no host has power management"

// absentMetrics are metrics that do not exist after a launch and a delete without failures,
// with the reason.
var absentMetrics = map[string]string{
	"karpenter_proxmox_address_pool_exhausted_total":  "there is no address pool",
	"karpenter_proxmox_address_pool_size":             "there is no address pool",
	"karpenter_proxmox_address_pool_used":             "there is no address pool",
	"karpenter_proxmox_api_locked_total":              "there was no lock conflict",
	"karpenter_proxmox_host_asleep":                   noPowerManagement,
	"karpenter_proxmox_host_power_actions_total":      noPowerManagement,
	"karpenter_proxmox_host_power_watts":              noPowerManagement,
	"karpenter_proxmox_host_sleep_blocked":            noPowerManagement,
	"karpenter_proxmox_host_sleep_possible":           noPowerManagement,
	"karpenter_proxmox_host_sleep_saved_watts":        noPowerManagement,
	"karpenter_proxmox_host_sleep_savings_watts":      noPowerManagement,
	"karpenter_proxmox_nodepool_energy_cost_per_hour": noPowerManagement,
	"karpenter_proxmox_nodepool_power_watts":          noPowerManagement,
	"karpenter_proxmox_orphans_deleted_total":         "nothing was orphaned",
}

// checkMetricsReference compares the controller's metrics with the reference page, in both
// directions.
func checkMetricsReference(t *testing.T, names []string) {
	t.Helper()
	page, err := os.ReadFile("../../docs/reference/metrics.md")
	must(t, err)
	var listed []string
	for _, row := range regexp.MustCompile("(?m)^\\| `(karpenter_proxmox_\\w+)`").FindAllSubmatch(page, -1) {
		listed = append(listed, string(row[1]))
	}
	NewWithT(t).Expect(len(listed)).To(BeNumerically(">=", 10))
	for _, name := range names {
		if strings.HasPrefix(name, "karpenter_proxmox_") && !slices.Contains(listed, name) {
			t.Errorf("metric %s is not on the page: register it in operator.DescribeMetrics", name)
		}
	}
	for _, name := range listed {
		if absentMetrics[name] == "" && !slices.Contains(names, name) {
			t.Errorf("the page lists %s, which the controller does not export", name)
		}
	}
}

// checkDashboardMetrics checks that the controller exports the metrics of Karpenter's core in the
// dashboard and the alerts. Those of the provider are on the reference page.
func checkDashboardMetrics(t *testing.T, names []string) {
	t.Helper()
	core := map[string]bool{}
	for _, file := range []string{"dashboard.json", "alerts.yaml"} {
		content, err := os.ReadFile("../../charts/karpenter-provider-proxmox/files/" + file)
		must(t, err)
		for _, found := range regexp.MustCompile(`\b(operator|karpenter)_[a-z_]+`).FindAllString(string(content), -1) {
			core[found] = !strings.HasPrefix(found, "karpenter_proxmox_")
		}
	}
	for name, want := range core {
		if want && !slices.Contains(names, name) && !slices.Contains(names, strings.TrimSuffix(name, "_bucket")) {
			t.Errorf("the dashboard or an alert uses %s, which the controller does not export", name)
		}
	}
}

// checkLabels checks the labels of all series of the provider. The parser of Karpenter's test suites
// splits a line at the last opening brace and at commas, and panics on a part without an equals sign.
// No request counts as failed after a launch and a delete without failures: the check that a VM is
// deleted gets an error from Proxmox, which is the answer.
func checkLabels(t *testing.T, families map[string]*dto.MetricFamily) {
	t.Helper()
	g := NewWithT(t)
	for name, family := range families {
		if !strings.HasPrefix(name, "karpenter_proxmox_") {
			continue
		}
		for _, series := range family.Metric {
			for _, label := range series.Label {
				g.Expect(label.GetValue()).NotTo(MatchRegexp("[{},]"), name)
				if name == "karpenter_proxmox_api_requests_total" && label.GetName() == "code" {
					g.Expect(label.GetValue()).To(BeElementOf("200", "not_found", "exists"), "%v", series)
				}
			}
		}
	}
}

// logLine holds the fields of a log line that identify its object.
type logLine struct {
	Message   string `json:"message"`
	Logger    string `json:"logger"`
	NodeClaim struct {
		Name string `json:"name"`
	} `json:"NodeClaim"`
	Node struct {
		Name string `json:"name"`
	} `json:"Node"`
	// DisruptedNodes are those of a command of Karpenter, which may be several.
	DisruptedNodes json.RawMessage `json:"disrupted-nodes"`
}

// checkClaimLog checks that the lifecycle of a NodeClaim is logged under one key, and that
// every line about the NodeClaim has this key.
func (e *env) checkClaimLog(t *testing.T, claim *karpv1.NodeClaim) {
	var life []string
	for _, path := range e.logs {
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
				t.Errorf("%v: the line is not an object, or its NodeClaim or Node has no name: %s", err, text)
				continue
			}
			switch about := strings.Contains(text, claim.Name) || strings.Contains(text, string(claim.UID)) || strings.Contains(text, claim.Status.ProviderID); {
			case line.NodeClaim.Name == claim.Name:
				life = append(life, line.Message)
			case about && !hasOtherKey(line):
				t.Errorf("a line about the claim does not have its key: %s", text)
			}
		}
	}
	// The Node may be registered before the controller has seen the end of the start.
	for _, order := range [][]string{
		{"created nodeclaim", "planned VM", "launched nodeclaim", "launch reached phase", "launched VM", "deleted boot drive and join token", "deleted VM", "deleted nodeclaim"},
		{"launched nodeclaim", "registered nodeclaim", "initialized nodeclaim", "deleted boot drive and join token"},
	} {
		next := 0
		for _, want := range order {
			i := slices.Index(life[next:], want)
			if i < 0 {
				t.Fatalf("the claim's log has no %q after %q: %q", want, life[:next], life[next:])
			}
			next += i
		}
	}
}

// hasOtherKey reports whether a line is one of Karpenter's about several claims, or about the
// Node, which has the name of its claim.
func hasOtherKey(line logLine) bool {
	return line.Node.Name != "" || line.DisruptedNodes != nil || strings.HasPrefix(line.Logger, "controller-runtime")
}
