// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package status_test

import (
	"testing"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/ownership"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

// A template that a ProxmoxTemplate built is used only on hosts for which no other one matches,
// although it is newer.
func TestResolveManaged(t *testing.T) {
	t.Parallel()
	managed := func(vmid int) func(*pvesim.Guest) {
		notes := ownership.Mark{VMID: vmid, KubeCluster: "7c0e0a53", Name: "ubuntu", TemplateUID: "5f1d4d7a"}.Notes("built")
		return func(g *pvesim.Guest) {
			g.Config["meta"], g.Config["description"] = "creation-qemu=9.0.2,ctime=1800000000", notes
		}
	}
	w := testenv.New(t, testenv.NoPolling(), testenv.Hosts(3), testenv.Scenario(func(s *pvesim.Scenario) {
		addTemplate(s, 1000, managed(1000))
		changeGuest(s, 9001, managed(9001))
		addTemplate(s, 1002, func(g *pvesim.Guest) {
			managed(1000)(g) // a copy
			g.Host = "pve3"
		})
	}))
	template := reconciled(w, w.Template())
	w.Expect(template.Status.Zones).To(Equal([]string{"region-1/pve1/9000", "region-1/pve2/9001", "region-1/pve3/1002"}))
	w.Expect(w.Events.Messages("MultipleTemplatesMatch")).To(ConsistOf("region-1/pve3: several templates match; the newest, 1002, is used, not [9002]"))

	// One that is in use, for example since an earlier release, is kept.
	template.Status.Zones[0] = "region-1/pve1/1000"
	w.Expect(w.Kube.Status().Update(t.Context(), template)).To(Succeed())
	w.Expect(reconciled(w, template).Status.Zones).To(Equal([]string{"region-1/pve1/1000", "region-1/pve2/9001", "region-1/pve3/1002"}))
}
