// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package template_test

import (
	"testing"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

// wholeCluster is the documented role on "/", which the default scenario has.
func wholeCluster(*pvesim.Scenario) {}

// poolScoped limits the token to one pool, and to the storages, bridges and hosts that
// it uses.
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

// The documented privileges suffice to build, update, replace and delete a template.
func TestDocumentedRoles(t *testing.T) {
	t.Parallel()
	for name, role := range map[string]func(*pvesim.Scenario){"whole_cluster": wholeCluster, "pool": poolScoped} {
		for _, version := range []string{"8.4", "9.2"} {
			t.Run(name+"_"+version, func(t *testing.T) {
				t.Parallel()
				e := newEnv(t, 1, func(s *pvesim.Scenario) {
					s.Version, s.Pools = version, []pvesim.Pool{{ID: "karpenter"}}
					s.Storages[0].Content = []string{"import", "iso"}
					s.Guests = nil // not visible to the token
				}, role)
				e.updateSpec(func(s *v1alpha1.ProxmoxTemplateSpec) {
					s.Tags, s.BIOS, s.TPM = []string{"karpenter"}, "ovmf", &v1alpha1.TPM{Version: "v2.0"}
					s.Agent, s.VGA = &v1alpha1.Agent{Enabled: true}, &v1alpha1.VGA{Type: "serial0"}
					if name == "pool" {
						s.ResourcePool = "karpenter"
					}
				})
				p := e.process()
				old := p.reconcileUntilComplete().Zones[0]
				e.updateSpec(func(s *v1alpha1.ProxmoxTemplateSpec) { s.Description, s.CPU.Type = "changed", "host" })
				p.reconcileFirstHostUntil(func(g Gomega) {
					g.Expect(e.config("pve1", old.VMID).Options).To(HaveKeyWithValue("cpu", "host"))
				})
				e.updateSpec(func(s *v1alpha1.ProxmoxTemplateSpec) { s.SourceImage.URL = e.images.URL + "/other.img" })
				e.Expect(p.reconcileUntilComplete().Zones).NotTo(ConsistOf(old))
				e.Eventually(func(g Gomega) {
					g.Expect(p.reconcile(t.Context(), "pve1")).To(Succeed())
					guests, images, _ := e.createdObjects()
					g.Expect(guests).To(HaveLen(1))
					g.Expect(images).To(HaveLen(1))
				}).Should(Succeed())
				p.deleteUntilGone()
				e.Expect(e.listObjects()).To(Equal(e.initial))
			})
		}
	}
}
