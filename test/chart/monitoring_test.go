// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"encoding/json"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// query is a Prometheus query of a panel or an alert. shown is text that refers to labels.
type query struct{ where, expr, shown string }

// queries returns all queries of the dashboard and the alerts.
func queries(t *testing.T) (found []query) {
	t.Helper()
	rendered := render(t, "metrics: {dashboard: {enabled: true}, alerts: {enabled: true}}")
	var dashboard struct {
		UID    string
		Panels []struct {
			Title   string
			Targets []struct{ Expr, LegendFormat string }
		}
	}
	check(t, json.Unmarshal([]byte(rendered.read(t, "ConfigMap", `{.data.karpenter-provider-proxmox\.json}`)), &dashboard))
	for _, panel := range dashboard.Panels {
		for _, target := range panel.Targets {
			found = append(found, query{"panel " + panel.Title, target.Expr, target.LegendFormat})
		}
	}
	expect(t, dashboard.UID != "" && len(found) >= 10, "found dashboard %q with %d queries, want at least 10", dashboard.UID, len(found))
	var rules []struct {
		Alert, Expr         string
		Labels, Annotations map[string]string
	}
	check(t, json.Unmarshal([]byte(rendered.read(t, "PrometheusRule", "{.spec.groups[0].rules}")), &rules))
	for _, r := range rules {
		if r.Labels["severity"] == "" || r.Annotations["summary"] == "" || r.Annotations["description"] == "" {
			t.Errorf("alert %s has no severity, summary or description: %v", r.Alert, r)
		}
		found = append(found, query{"alert " + r.Alert, r.Expr, r.Annotations["summary"] + r.Annotations["description"]})
	}
	expect(t, len(rules) >= 5, "found %d alerts, want at least 5", len(rules))
	return found
}

// metricsReference returns the documented metrics with their labels.
func metricsReference(t *testing.T) map[string][]string {
	t.Helper()
	page, err := os.ReadFile("../../docs/reference/metrics.md")
	check(t, err)
	known := map[string][]string{}
	word := regexp.MustCompile("`([a-z_]+)`")
	for _, row := range regexp.MustCompile("(?m)^\\| `([a-z_]+)` \\| ([^|]+) \\|").FindAllStringSubmatch(string(page), -1) {
		known[row[1]] = nil
		for _, label := range word.FindAllStringSubmatch(row[2], -1) {
			known[row[1]] = append(known[row[1]], label[1])
		}
	}
	return known
}

// coreMetrics are the metrics of Karpenter and operatorpkg in queries, with their labels. The
// end-to-end tests check that the controller exports them.
var coreMetrics = map[string][]string{
	"karpenter_nodes_allocatable":                      {"nodepool", "node_name", "resource_type"},
	"karpenter_nodepools_cost_total":                   {"nodepool"},
	"karpenter_pods_state":                             {"name", "namespace", "nodepool", "phase", "scheduled"},
	"karpenter_scheduler_unschedulable_pods_count":     {"controller"},
	"karpenter_nodeclaims_disrupted_total":             {"nodepool", "reason"},
	"karpenter_voluntary_disruption_eligible_nodes":    {"reason"},
	"operator_nodeclaim_status_condition_count":        {"name", "type", "status", "reason"},
	"operator_proxmoxnodeclass_status_condition_count": {"name", "type", "status", "reason"},
}

// TestDashboardAndAlertMetrics checks that all metrics and labels in queries exist. With a
// renamed one, a panel would be empty and an alert would never fire.
func TestDashboardAndAlertMetrics(t *testing.T) {
	t.Parallel()
	known := metricsReference(t)
	maps.Copy(known, coreMetrics)
	metric := regexp.MustCompile(`((?:karpenter|operator)_[a-z_]+)(?:\{([^}]*)\})?`)
	label := regexp.MustCompile(`([a-z_]+)\s*(?:=~|!~|!=|=)`)
	by := regexp.MustCompile(`by \(([^)]*)\)`)
	shown := regexp.MustCompile(`\{\{\s*(?:\$labels\.)?([a-z_]+)\s*\}\}`)
	for _, q := range queries(t) {
		labels := []string{"le"}
		found := metric.FindAllStringSubmatch(q.expr, -1)
		expect(t, len(found) != 0, "%s: %q uses no metric of the controller", q.where, q.expr)
		for _, match := range found {
			name := match[1]
			for _, suffix := range []string{"_bucket", "_count", "_sum"} {
				if _, gauge := known[name]; !gauge {
					name = strings.TrimSuffix(name, suffix)
				}
			}
			own, ok := known[name]
			expect(t, ok, "%s: metric %s does not exist", q.where, name)
			labels = append(labels, own...)
			for _, selected := range label.FindAllStringSubmatch(match[2], -1) {
				expect(t, slices.Contains(own, selected[1]), "%s: %s has no label %s", q.where, name, selected[1])
			}
		}
		for _, group := range by.FindAllStringSubmatch(q.expr, -1) {
			for _, name := range strings.Split(group[1], ",") {
				expect(t, slices.Contains(labels, strings.TrimSpace(name)), "%s: %q groups by %s, which no metric in it has", q.where, q.expr, name)
			}
		}
		for _, name := range shown.FindAllStringSubmatch(q.shown, -1) {
			expect(t, slices.Contains(labels, name[1]), "%s: %q shows %s, which no metric of %q has", q.where, q.shown, name[1], q.expr)
		}
	}
}
