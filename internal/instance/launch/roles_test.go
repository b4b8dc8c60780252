// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package launch_test

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

// wholeCluster is the documented role on "/", as the default scenario has it.
func wholeCluster(*pvesim.Scenario) {}

// The whole life of a VM under exactly the documented privileges, on both releases
// of Proxmox VE.
func TestDocumentedRoles(t *testing.T) {
	t.Parallel()
	for name, role := range map[string]func(*pvesim.Scenario){"on the whole cluster": wholeCluster, "on a pool": pvesim.PoolScoped} {
		for _, version := range []string{"8.4", "9.2"} {
			t.Run(name+", "+version, func(t *testing.T) {
				t.Parallel()
				w := testenv.NewFake(t, testenv.Hosts(2), testenv.Scenario(role, func(s *pvesim.Scenario) { s.Version = version }))
				if name == "on a pool" {
					w.NodeClass.Spec.ResourcePool = pvesim.PoolID
				}
				p := w.StartProcess()
				claim := p.Launched("pool-abc", w.NodeClass)
				w.Eventually(p.Instances.VMs.List).WithTimeout(5 * time.Second).Should(HaveLen(1))
				w.Expect(p.Instances.Deleter.CleanupBootDrive(t.Context(), claim)).To(Succeed())
				w.Expect(w.Sim.PowerOffGuest(w.Intent(claim).VMID)).To(Succeed())
				w.Eventually(func() (bool, error) { return p.Instances.Power.PowerOn(t.Context(), claim) }).WithTimeout(10 * time.Second).Should(BeTrue())
				p.Delete(w.Stored(claim))

				// Deleting again finds nothing and says so.
				p.Delete(w.Stored(claim))
				// A launch that another process began is taken up.
				second := p.Planned("pool-def", w.NodeClass)
				next := w.StartProcess()
				w.Eventually(func() error { return next.Launch(second, w.NodeClass) }).WithTimeout(20 * time.Second).Should(Succeed())
				next.Delete(w.Stored(second))
				w.Expect(w.VMs()).To(BeEmpty())
				w.ExpectNoTokens()
			})
		}
	}
}
