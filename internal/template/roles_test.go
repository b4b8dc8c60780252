// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package template_test

import (
	"testing"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

// wholeCluster is the documented role on "/", as the default scenario has it.
func wholeCluster(*pvesim.Scenario) {}

// poolScoped gives the token nothing but a pool, and the storages, bridges and hosts
// that it works with.
func poolScoped(s *pvesim.Scenario) {
	s.Roles = []pvesim.Role{
		{ID: "KarpenterVM", Privileges: []string{
			"VM.Audit", "VM.Allocate", "VM.Clone", "VM.Config.CDROM", "VM.Config.CPU", "VM.Config.Memory", "VM.Config.Disk",
			"VM.Config.Network", "VM.Config.HWType", "VM.Config.Cloudinit", "VM.Config.Options", "VM.PowerMgmt", "Pool.Audit",
		}},
		{ID: "KarpenterDisk", Privileges: []string{"Datastore.AllocateSpace", "Datastore.Audit"}},
		{ID: "KarpenterISO", Privileges: []string{"Datastore.Allocate", "Datastore.AllocateSpace", "Datastore.AllocateTemplate", "Datastore.Audit"}},
		{ID: "KarpenterHost", Privileges: []string{"Sys.Audit", "Sys.AccessNetwork"}},
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
}

// The whole life of a template under exactly the documented privileges, on both
// releases of Proxmox VE.
func TestEveryDocumentedRoleSuffices(t *testing.T) {
	t.Parallel()
	for name, role := range map[string]func(*pvesim.Scenario){"on the whole cluster": wholeCluster, "on a pool": poolScoped} {
		for _, version := range []string{"8.4", "9.2"} {
			t.Run(name+", "+version, func(t *testing.T) {
				t.Parallel()
				w := newWorld(t, 1, func(s *pvesim.Scenario) {
					s.Version, s.Pools = version, []pvesim.Pool{{ID: "karpenter"}}
					s.Storages[0].Content = []string{"import", "iso"}
					s.Guests = nil // what it may not see does not matter here
				}, role)
				w.edit(func(s *v1alpha1.ProxmoxTemplateSpec) {
					s.Tags, s.BIOS, s.TPM = []string{"karpenter"}, "ovmf", &v1alpha1.TPM{Version: "v2.0"}
					s.Agent, s.VGA = &v1alpha1.Agent{Enabled: true}, &v1alpha1.VGA{Type: "serial0"}
					if name == "on a pool" {
						s.ResourcePool = "karpenter"
					}
				})
				p := w.process()
				old := p.tended().Zones[0]
				w.edit(func(s *v1alpha1.ProxmoxTemplateSpec) { s.Description, s.CPU.Type = "changed", "host" })
				w.Expect(p.tend(t.Context(), "pve1")).To(Succeed())
				w.Expect(w.config("pve1", old.VMID).Options).To(HaveKeyWithValue("cpu", "host"))
				w.edit(func(s *v1alpha1.ProxmoxTemplateSpec) { s.SourceImage.URL = w.images.URL + "/other.img" })
				w.Expect(p.tended().Zones).NotTo(ConsistOf(old))
				w.Eventually(func(g Gomega) {
					g.Expect(p.tend(t.Context(), "pve1")).To(Succeed())
					guests, images, _ := w.made()
					g.Expect(guests).To(HaveLen(1))
					g.Expect(images).To(HaveLen(1))
				}).Should(Succeed())
				p.removed()
				w.Expect(w.holdings()).To(Equal(w.before))
			})
		}
	}
}
