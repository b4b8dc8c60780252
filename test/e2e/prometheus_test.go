// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/test/harness"
)

const chartFiles = "../../charts/karpenter-provider-proxmox/files"

// emptyPanels are panels without data in this test, with the reason.
var emptyPanels = map[string]string{
	"Address pool usage":         "there is no address pool",
	"Rejected because of a lock": "there was no lock conflict",
	"Orphans deleted":            "nothing was orphaned",
	"Orphans":                    "nothing was orphaned",
}

// TestPrometheus checks with a running Prometheus that every query of the dashboard returns
// data of the controller, and that the alerts are evaluated.
func TestPrometheus(t *testing.T) {
	t.Parallel()
	needs(t, simulator("it powers a host off"))
	binary, err := exec.LookPath("prometheus")
	if err != nil {
		t.Skip("SKIPPED: prometheus is not in PATH; it is in Debian's package prometheus, and make prometheus downloads it")
	}
	settings := filepath.Join(t.TempDir(), "hosts.json")
	must(t, os.WriteFile(settings, []byte(`{"*": {"*": {"powermanagement": "Report", "wattsidle": 60, "energyprice": 0.3}}}`), 0o600))
	e := newEnv(t, setup{args: []string{"--node-setting-file", settings}})
	rules, err := filepath.Abs(filepath.Join(chartFiles, "alerts.yaml"))
	must(t, err)
	prometheus, err := harness.StartPrometheus(t.Context(), harness.PrometheusOptions{
		Binary: binary, Dir: filepath.Join(e.dir, "prometheus"), Target: e.controller.MetricsURL(), Rules: rules,
	})
	must(t, err)
	t.Cleanup(prometheus.Stop)

	// A Node that joins, one that is removed, and a class that never is ready.
	p := e.newNodePool(t, "watched", nil)
	p.oneNode(t)
	removed := e.newNodePool(t, "removed", nil)
	removed.oneNode(t)
	removed.scaleToZero(t)
	e.newNodePool(t, "broken", func(kit *harness.Kit) { kit.Class.Spec.InstanceTemplateRef.Name = "missing" })
	for _, panel := range readPanels(t) {
		e.checkPanel(t, prometheus, panel)
	}

	e.waitForAlert(t, prometheus, "ProxmoxNodeClassNotReady", "pending")
	e.waitForAlert(t, prometheus, "ProxmoxHostDown", "inactive")
	must(t, e.proxmox.HostDown("pve3", "noroute"))
	e.waitForAlert(t, prometheus, "ProxmoxHostDown", "pending")
	must(t, e.proxmox.HostUp("pve3"))
	e.waitForAlert(t, prometheus, "ProxmoxHostDown", "inactive")
	p.deleteAllClaims(t)
	removed.deleteAllClaims(t)
}

// panel is one query of the dashboard.
type panel struct{ title, query string }

func readPanels(t *testing.T) (panels []panel) {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(chartFiles, "dashboard.json"))
	must(t, err)
	var dashboard struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
	}
	must(t, json.Unmarshal(content, &dashboard))
	for _, p := range dashboard.Panels {
		for _, target := range p.Targets {
			panels = append(panels, panel{p.Title, strings.NewReplacer("$__rate_interval", "5m", "$region", ".*").Replace(target.Expr)})
		}
	}
	if len(panels) < 20 {
		t.Fatalf("found %d queries, want at least 20", len(panels))
	}
	return panels
}

// checkPanel waits until a query returns data.
func (e *env) checkPanel(t *testing.T, prometheus *harness.Prometheus, p panel) {
	t.Helper()
	if _, empty := emptyPanels[p.title]; empty {
		_, err := prometheus.Query(t.Context(), p.query)
		must(t, err)
		return
	}
	e.eventually(t, "data of panel "+p.title, func(ctx context.Context) error {
		series, err := prometheus.Query(ctx, p.query)
		if err == nil && series == 0 {
			return fmt.Errorf("no data: %s", p.query)
		}
		return err
	})
}

// waitForAlert waits until an alert has a state.
func (e *env) waitForAlert(t *testing.T, prometheus *harness.Prometheus, name, state string) {
	t.Helper()
	e.eventually(t, "alert "+name+" to be "+state, func(ctx context.Context) error {
		rules, err := prometheus.Rules(ctx)
		if err != nil {
			return err
		}
		found := "missing"
		for _, rule := range rules {
			if rule.Health != "ok" {
				return fmt.Errorf("alert %s is %s: %s", rule.Name, rule.Health, rule.LastError)
			}
			if rule.Name == name {
				found = rule.State
			}
		}
		if found != state {
			return fmt.Errorf("it is %s", found)
		}
		return nil
	})
}
