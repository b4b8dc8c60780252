// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package instance_test

import (
	"fmt"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

// wholeCluster is the documented role on "/", as the default scenario has it.
func wholeCluster(*pvesim.Scenario) {}

// poolScoped gives the token nothing but a pool, the templates, and the storages,
// bridges and hosts that it works with.
func poolScoped(s *pvesim.Scenario) {
	s.Pools = append(s.Pools, pvesim.Pool{ID: "karpenter"})
	s.Roles = []pvesim.Role{
		{ID: "KarpenterVM", Privileges: []string{
			"VM.Audit", "VM.Allocate", "VM.Clone", "VM.Config.CDROM", "VM.Config.CPU", "VM.Config.Memory", "VM.Config.Disk",
			"VM.Config.Network", "VM.Config.HWType", "VM.Config.Cloudinit", "VM.Config.Options", "VM.PowerMgmt", "Pool.Audit",
		}},
		{ID: "KarpenterTemplate", Privileges: []string{"VM.Audit", "VM.Clone"}},
		{ID: "KarpenterDisk", Privileges: []string{"Datastore.AllocateSpace", "Datastore.Audit"}},
		{ID: "KarpenterISO", Privileges: []string{"Datastore.Allocate", "Datastore.AllocateSpace", "Datastore.AllocateTemplate", "Datastore.Audit"}},
		{ID: "KarpenterHost", Privileges: []string{"Sys.Audit"}},
		{ID: "KarpenterNet", Privileges: []string{"SDN.Use", "SDN.Audit"}},
	}
	const user = "kubernetes@pve"
	s.ACLs = []pvesim.ACL{
		{Path: "/pool/karpenter", Role: "KarpenterVM", User: user},
		{Path: "/storage/local-lvm", Role: "KarpenterDisk", User: user},
		{Path: "/storage/local", Role: "KarpenterISO", User: user},
		{Path: "/nodes", Role: "KarpenterHost", User: user},
		{Path: "/sdn/zones/localnetwork", Role: "KarpenterNet", User: user},
	}
	for _, guest := range s.Guests {
		if guest.Config["template"] == "1" {
			s.ACLs = append(s.ACLs, pvesim.ACL{Path: fmt.Sprintf("/vms/%d", guest.VMID), Role: "KarpenterTemplate", User: user})
		}
	}
}

// The whole life of a VM under exactly the documented privileges, on both releases
// of Proxmox VE.
func TestEveryDocumentedRoleSuffices(t *testing.T) {
	t.Parallel()
	for name, role := range map[string]func(*pvesim.Scenario){"on the whole cluster": wholeCluster, "on a pool": poolScoped} {
		for _, version := range []string{"8.4", "9.2"} {
			t.Run(name+", "+version, func(t *testing.T) {
				t.Parallel()
				w := newWorld(t, 2, role, func(s *pvesim.Scenario) { s.Version = version })
				if name == "on a pool" {
					w.class.Spec.ResourcePool = "karpenter"
				}
				p := w.process()
				claim := w.launched(p, "pool-abc")
				w.Eventually(p.List).WithTimeout(5 * time.Second).Should(HaveLen(1))
				w.Expect(p.TakeBackBootDrive(t.Context(), claim)).To(Succeed())
				w.Expect(w.sim.PowerOffGuest(w.intentOf(claim).VMID)).To(Succeed())
				w.Eventually(func() (bool, error) { return p.PowerOn(t.Context(), claim) }).WithTimeout(10 * time.Second).Should(BeTrue())
				w.deleted(p, w.reread(claim))

				// Deleting again finds nothing and says so.
				w.deleted(p, w.reread(claim))
				// A launch that another process began is taken up.
				second := w.planned(p, "pool-def")
				next := w.process()
				w.Eventually(func() error { return next.Launch(t.Context(), second, w.class) }).WithTimeout(20 * time.Second).Should(Succeed())
				w.deleted(next, w.reread(second))
				w.Expect(w.ours()).To(BeEmpty())
				w.expectNoTokens()
			})
		}
	}
}
