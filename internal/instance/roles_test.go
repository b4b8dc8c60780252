// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package instance_test

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

// wholeCluster is the documented role on "/", as the default scenario has it.
func wholeCluster(*pvesim.Scenario) {}

// The whole life of a VM under exactly the documented privileges, on both releases
// of Proxmox VE.
func TestEveryDocumentedRoleSuffices(t *testing.T) {
	t.Parallel()
	for name, role := range map[string]func(*pvesim.Scenario){"on the whole cluster": wholeCluster, "on a pool": pvesim.PoolScoped} {
		for _, version := range []string{"8.4", "9.2"} {
			t.Run(name+", "+version, func(t *testing.T) {
				t.Parallel()
				w := newWorld(t, 2, role, func(s *pvesim.Scenario) { s.Version = version })
				if name == "on a pool" {
					w.class.Spec.ResourcePool = pvesim.PoolID
				}
				p := w.process()
				claim := w.launched(p, "pool-abc")
				w.Eventually(p.VMs.List).WithTimeout(5 * time.Second).Should(HaveLen(1))
				w.Expect(p.Deleter.CleanupBootDrive(t.Context(), claim)).To(Succeed())
				w.Expect(w.sim.PowerOffGuest(w.intentOf(claim).VMID)).To(Succeed())
				w.Eventually(func() (bool, error) { return p.Power.PowerOn(t.Context(), claim) }).WithTimeout(10 * time.Second).Should(BeTrue())
				w.deleted(p, w.reread(claim))

				// Deleting again finds nothing and says so.
				w.deleted(p, w.reread(claim))
				// A launch that another process began is taken up.
				second := w.planned(p, "pool-def")
				next := w.process()
				w.Eventually(func() error { return next.Launcher.Launch(t.Context(), second, w.class) }).WithTimeout(20 * time.Second).Should(Succeed())
				w.deleted(next, w.reread(second))
				w.Expect(w.ours()).To(BeEmpty())
				w.expectNoTokens()
			})
		}
	}
}
