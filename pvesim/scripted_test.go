// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package pvesim_test

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

func TestScriptedGuests(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	disks := make(chan pvesim.GuestDisk, 2)
	scenario := pvesim.DefaultScenario(1)
	scenario.Guests = []pvesim.Guest{
		{VMID: 100, Host: "pve1", Status: "running", Name: "builder"},
		{VMID: 101, Host: "pve1", Status: "running", Name: "other"},
	}
	sim, err := pvesim.New(scenario, pvesim.Options{Speed: 50, Guests: pvesim.ScriptedGuests{Script: func(m *pvesim.Machine) *pvesim.Script {
		if m.Name != "builder" {
			return nil
		}
		disks <- m.Disk
		return &pvesim.Script{Files: map[string]string{"/prepared": "yes"}, PowerOff: true, After: 5 * time.Second}
	}}})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(sim.Start(t.Context())).To(Succeed())
	t.Cleanup(sim.Close)
	g.Eventually(sim.Guests).WithTimeout(time.Minute).Should(ConsistOf(
		And(HaveField("VMID", 100), HaveField("Status", "stopped")), And(HaveField("VMID", 101), HaveField("Status", "running"))))
	content, written := (<-disks).Read("/prepared")
	g.Expect(written).To(BeTrue())
	g.Expect(string(content)).To(Equal("yes"))
}
