// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package launch_test

import (
	"testing"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

// clusterScoped is the documented role on "/", the default of the scenario.
func clusterScoped(*pvesim.Scenario) {}

// All operations work with exactly the documented privileges.
func TestDocumentedRoles(t *testing.T) {
	t.Parallel()
	for name, role := range map[string]func(*pvesim.Scenario){"cluster": clusterScoped, "pool": pvesim.PoolScoped} {
		for _, version := range []string{"8.4", "9.2"} {
			t.Run(name+"_"+version, func(t *testing.T) {
				t.Parallel()
				w := testenv.NewFake(t, testenv.Hosts(2), testenv.Scenario(role, func(s *pvesim.Scenario) { s.Version = version }))
				if name == "pool" {
					w.NodeClass.Spec.ResourcePool = pvesim.PoolID
				}
				p := w.StartProcess()
				claim := p.Launched("pool-abc", w.NodeClass)
				w.Eventually(p.Instances.VMs.List).Should(HaveLen(1))
				w.Expect(p.Instances.Deleter.CleanupBootDrive(t.Context(), claim)).To(Succeed())
				w.Expect(w.Sim.PowerOffGuest(w.Intent(claim).VMID)).To(Succeed())
				w.Eventually(func() (bool, error) { return p.Instances.Power.PowerOn(t.Context(), claim) }).Should(BeTrue())
				p.Delete(w.Stored(claim))

				// Delete is idempotent.
				p.Delete(w.Stored(claim))
				// Another process resumes a launch.
				second := p.Planned("pool-def", w.NodeClass)
				next := w.StartProcess()
				w.Eventually(func() error { return next.Launch(second, w.NodeClass) }).Should(Succeed())
				next.Delete(w.Stored(second))
				w.Expect(w.VMs()).To(BeEmpty())
				w.ExpectNoTokens()
			})
		}
	}
}
