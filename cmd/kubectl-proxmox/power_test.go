// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/host/power"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

func TestPower(t *testing.T) {
	t.Parallel()
	w := testenv.New(t, testenv.NoPolling(), testenv.Hosts(3), testenv.Scenario(func(s *pvesim.Scenario) {
		s.Guests = slices.DeleteFunc(s.Guests, func(g pvesim.Guest) bool { return g.Host == "pve3" && g.VMID < 9000 })
		s.Hosts[2].Config = map[string]string{"wakeonlan": "BC:24:11:AA:00:03"}
	}))
	createController(w, "karpenter")
	out, err := runIn(w, "power")
	w.Expect(err).NotTo(HaveOccurred())
	w.Expect(out).To(Equal("no host takes part in power management: set \"powermanagement\": \"Report\" in the host settings\n"))

	file := write(t, t.TempDir(), "hosts.json", `{"*": {"pve2": {"powermanagement": "Report", "wattsidle": 80}, "pve3": {"powermanagement": "Report", "wattsidle": 100, "energyprice": 0.3}}}`)
	out, err = runIn(w, "power", "--node-setting-file", file)
	w.Expect(err).NotTo(HaveOccurred())
	w.Expect(out).To(MatchRegexp(`(?s)^REGION +HOST +WATTS +COULD SLEEP +AWAKE BECAUSE\n` +
		`\S+ +pve2 +80 +no +GuestRunning: guests that run: VM 102\n` +
		` +NoWakeAddress: its config in Proxmox has no MAC address for Wake-on-LAN\n` +
		` +QuorumRequired: without it, 1 of 3 votes remain, which is no majority\n` +
		`\S+ +pve3 +100 +yes *\n` +
		`saved by sleeping hosts: 0 W, 0.0 kWh/day\npossible savings: 100 W, 2.4 kWh/day, 0.72/day\n$`))

	out, err = runIn(w, "power", "--node-setting-file", file, "-o", "json")
	w.Expect(err).NotTo(HaveOccurred())
	var rows []hostPower
	w.Expect(json.Unmarshal([]byte(out), &rows)).To(Succeed())
	w.Expect(rows).To(HaveLen(2))
	w.Expect([]any{rows[1].Host, rows[1].Sleep, rows[1].Energy.Watts, rows[1].Reasons}).To(Equal([]any{"pve3", true, 100.0, []powerReason(nil)}))

	// A host that the controller shut down.
	id, err := clusterID(t.Context(), w.Kube)
	w.Expect(err).NotTo(HaveOccurred())
	w.Expect(power.Store{Kube: w.Kube, Namespace: w.Name, KubeCluster: id}.Put(t.Context(), inventory.HostName{Region: testenv.Region, Host: "pve3"},
		&inventory.Sleep{State: inventory.Asleep, KubeCluster: id, Known: w.Inventory.View().Snapshots[testenv.Region].KnownHost("pve3")})).To(Succeed())
	w.Expect(w.Sim.HostDown("pve3", "noroute")).To(Succeed())
	file = write(t, t.TempDir(), "hosts.json", `{"*": {"pve3": {"powermanagement": "Enabled", "wattsidle": 100}}}`)
	w.Eventually(func() (string, error) { return runIn(w, "power", "--node-setting-file", file) }).Should(MatchRegexp(`\S+ +pve3 +0 +is asleep *\nsaved by sleeping hosts: 100 W, 2.4 kWh/day\npossible savings: 0 W, 0.0 kWh/day\n`))
}

func TestPreflightPower(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		change func(*pvesim.Scenario)
		want   string
	}{
		"shutdown": {
			func(*pvesim.Scenario) {},
			"FAIL   power management: region home: API token kubernetes@pve!karpenter lacks Sys.PowerMgmt on /nodes/pve2\n",
		},
		"shutdown_granted": {
			func(s *pvesim.Scenario) { s.Roles[0].Privileges = append(s.Roles[0].Privileges, "Sys.PowerMgmt") },
			"ok     power management: region home: hosts that take part: pve2\n",
		},
		"privileges_sufficient": {func(*pvesim.Scenario) {}, "ok     power management: region home: hosts that take part: pve2\n"},
		"guests_hidden": {
			func(s *pvesim.Scenario) {
				s.ACLs = append(s.ACLs, pvesim.ACL{Path: "/vms", Role: "NoAccess", User: "kubernetes@pve"})
			},
			"FAIL   power management: region home: API token kubernetes@pve!karpenter lacks VM.Audit on /vms\n",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, dir := startSimulator(t, test.change)
			mode := "Report"
			if strings.HasPrefix(name, "shutdown") {
				mode = "Enabled"
			}
			file := write(t, dir, "hosts.json", `{"home": {"pve2": {"powermanagement": "`+mode+`"}}}`)
			out, _ := run(t, "preflight", "--cloud-config", filepath.Join(dir, "config.yaml"), "--node-setting-file", file)
			if !strings.Contains(out, test.want) {
				t.Errorf("preflight:\n%s", out)
			}
			if out, _ := run(t, "preflight", "--cloud-config", filepath.Join(dir, "config.yaml")); strings.Contains(out, "power management") {
				t.Errorf("preflight without power management:\n%s", out)
			}
		})
	}
}
