// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"slices"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/host/power"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/declared"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/observed"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

func TestPower(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w := newEnv(t, testenv.Hosts(3), testenv.Scenario(func(s *pvesim.Scenario) {
			s.Guests = slices.DeleteFunc(s.Guests, func(g pvesim.Guest) bool { return g.Host == "pve3" && g.VMID < 9000 })
			s.Hosts[2].Config = map[string]string{"wakeonlan": "BC:24:11:AA:00:03"}
		}))
		createController(w, "karpenter")
		w.Expect(runIn(w, "power")).To(Equal("no host takes part in power management: set \"powermanagement\": \"Report\" in the host settings\n"))

		file := write(t, t.TempDir(), "hosts.json", `{"*": {
			"pve2": {"powermanagement": "Report", "wattsidle": 80},
			"pve3": {"powermanagement": "Report", "wattsidle": 100, "energyprice": 0.3}}}`)
		w.Expect(runIn(w, "power", "--node-setting-file", file)).To(MatchRegexp(`(?s)^REGION +HOST +WATTS +COULD SLEEP +AWAKE BECAUSE\n` +
			`\S+ +pve2 +80 +no +GuestRunning: guests that run: VM 102\n` +
			` +NoWakeAddress: its config in Proxmox has no MAC address for Wake-on-LAN\n` +
			` +QuorumRequired: without it, 1 of 3 votes remain, which is no majority\n` +
			`\S+ +pve3 +100 +yes *\n` +
			`saved by sleeping hosts: 0 W, 0.0 kWh/day\npossible savings: 100 W, 2.4 kWh/day, 0.72/day\n$`))
		rows := runJSON[[]hostPower](w, "power", "--node-setting-file", file)
		w.Expect(rows).To(HaveLen(2))
		w.Expect(rows[1]).To(And(HaveField("Host", "pve3"), HaveField("Sleep", true), HaveField("Energy.Watts", 100.0), HaveField("Reasons", BeEmpty())))

		shutDownHost(w, "pve3")
		file = write(t, t.TempDir(), "hosts.json", `{"*": {"pve3": {"powermanagement": "Enabled", "wattsidle": 100}}}`)
		w.Expect(runIn(w, "power", "--node-setting-file", file)).To(MatchRegexp(
			`\S+ +pve3 +0 +is asleep *\nsaved by sleeping hosts: 100 W, 2.4 kWh/day\npossible savings: 0 W, 0.0 kWh/day\n`))
	})
}

// shutDownHost does what the controller does to save energy, and waits until Proxmox lists the host as offline.
func shutDownHost(w *testenv.Env, host string) {
	w.T.Helper()
	store := power.Store{Kube: w.Kube, Namespace: w.Name, KubeCluster: w.KubeCluster}
	w.Expect(store.Put(w.T.Context(), observed.HostName{Region: testenv.Region, Host: host}, &declared.Sleep{
		State: declared.Asleep, KubeCluster: w.KubeCluster, Known: w.Inventory.View().Snapshots[testenv.Region].KnownHost(host),
	})).To(Succeed())
	w.Expect(w.Sim.HostDown(host, "noroute")).To(Succeed())
	w.Clock.Advance(time.Minute)
}

func TestPreflightPower(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		s := newSite(t, nil)
		out, _ := s.preflight("")
		s.Expect(out).NotTo(ContainSubstring("power management"))
		for mode, want := range map[string]string{
			"Enabled": "FAIL   power management: region home: API token kubernetes@pve!karpenter lacks Sys.PowerMgmt on /nodes/pve2\n",
			"Report":  "ok     power management: region home: hosts that take part: pve2\n",
		} {
			out, _ = s.preflight("", "--node-setting-file", s.write("hosts.json", `{"home": {"pve2": {"powermanagement": "`+mode+`"}}}`))
			s.Expect(out).To(ContainSubstring(want))
		}
	})
}
