// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/host/power"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/test/harness"
)

// TestPowerManagement lets the load rise and fall. Hosts sleep while they are not needed, and are
// woken for pods, also by another controller.
func TestPowerManagement(t *testing.T) {
	t.Parallel()
	needs(t, simulator("it shuts hosts down"))
	settings := filepath.Join(t.TempDir(), "hosts.json")
	write := func(mode string) {
		replaceFile(t, settings, fmt.Sprintf(`{"*": {"*": {"powermanagement": %q, "idletime": "3s", "waketimeout": "2m", "wattsidle": 60, "wattsfull": 180}}}`, mode))
	}
	write("Enabled")
	e := newEnv(t, setup{hosts: 5, scenario: powerScenario, args: []string{"--node-setting-file", settings}})
	p := e.newNodePool(t, "power", nil)
	p.deployPods(t, 2, onePerNode)
	p.waitForPods(t, 2)
	e.waitForSleeping(t, 2)

	// Three hosts that are awake have the capacity for six Nodes.
	const many = 9
	must(t, harness.Scale(e.ctx, e.kube, p.name, many))
	e.eventually(t, "a host to be woken", func(g Gomega) { g.Expect(e.sleepRecords(g)).To(ContainElement(HaveField("State", inventory.Waking))) })
	e.controller.Kill()
	must(t, e.controller.Start(e.ctx))
	p.waitForPods(t, many)
	e.waitForSleeping(t, 0)

	p.scale(t, 2)
	e.waitForSleeping(t, 2)
	families, err := e.controller.MetricFamilies(e.ctx)
	must(t, err)
	for name, reason := range absentMetrics {
		if reason == noPowerManagement {
			NewWithT(t).Expect(families).To(HaveKey(name))
		}
	}
	// Hosts return when power management is turned off.
	write("None")
	e.waitForSleeping(t, 0)
}

// powerScenario has hosts with the capacity for two Nodes each. Three of five must be awake for
// quorum.
func powerScenario(s *pvesim.Scenario) {
	s.Votes = &pvesim.Votes{}
	s.Guests = slices.DeleteFunc(s.Guests, func(g pvesim.Guest) bool { return g.VMID < 9000 })
	s.Roles[0].Privileges = append(s.Roles[0].Privileges, "Sys.PowerMgmt")
	for i := range s.Hosts {
		host := &s.Hosts[i]
		host.Sockets, host.Cores = 1, 4
		host.Config = map[string]string{"wakeonlan": fmt.Sprintf("BC:24:11:AA:00:%02d", i+1)}
		host.ShutdownTime, host.BootTime = pvesim.Duration(10*time.Second), pvesim.Duration(2*speed*time.Second)
	}
}

// sleepRecords returns the records about hosts that were shut down.
func (e *env) sleepRecords(g Gomega) (records []inventory.Sleep) {
	stored := &corev1.ConfigMap{}
	g.Expect(e.kube.Get(e.ctx, client.ObjectKey{Namespace: metav1.NamespaceSystem, Name: power.ConfigMapName}, stored)).To(Succeed())
	for _, text := range stored.Data {
		var record inventory.Sleep
		g.Expect(json.Unmarshal([]byte(text), &record)).To(Succeed())
		records = append(records, record)
	}
	return records
}

func (e *env) waitForSleeping(t *testing.T, want int) {
	t.Helper()
	e.within(t, 3*timeout(), fmt.Sprintf("%d sleeping hosts", want), func(g Gomega) {
		records := e.sleepRecords(g)
		g.Expect(records).To(HaveLen(want))
		for _, record := range records {
			g.Expect(record.State).To(Equal(inventory.Asleep))
		}
	})
}
