// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package build_test

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

// A template is not Ready while its bridge is on no host. It is built on a host once the
// bridge exists there.
func TestBuildBridges(t *testing.T) {
	t.Parallel()
	w := testenv.New(t, testenv.Hosts(2))
	images := testenv.ServeImages(t, 64<<10)
	manage(w)
	setBridges := func(host string, names ...string) {
		t.Helper()
		var bridges []pvesim.Bridge
		for _, name := range names {
			bridges = append(bridges, pvesim.Bridge{Name: name, Ports: "eno1"})
		}
		w.Expect(w.Sim.SetBridges(host, bridges...)).To(Succeed())
		w.Inventory.Invalidate(testenv.Region, inventory.FactBridges(host))
		w.Clock.Advance(time.Minute) // facts that were read recently are not read again
	}
	object := w.ManagedTemplate(images.URL+"/noble.img", func(o *v1alpha1.ProxmoxTemplate) { o.Spec.Network[0].Bridge = "vmbr7" })
	expect := func(kind, want string) {
		t.Helper()
		w.Eventually(func() string { return condition(w, object, kind) }).WithTimeout(timeout).Should(Equal(want))
	}
	const missing = `bridge "vmbr7" of spec.network[0] is not on this host, which has vmbr0; create it (Host, System, Network), or set another one`
	expect(v1alpha1.ConditionTemplateReady, "False NodeTemplateClassResolutionError: pve1, pve2: "+missing)
	w.Expect(w.Sim.CountRequests("POST", "/nodes/*/storage/*/download-url")).To(BeZero())

	setBridges("pve1", "vmbr0", "vmbr7")
	expect(v1alpha1.ConditionTemplateReady, "True ProxmoxVirtualMachineTemplateReady: pve2: "+missing)
	expect(v1alpha1.ConditionTemplateUpToDate, "False NodeTemplateClassResolutionError: pve2: "+missing)

	setBridges("pve2", "vmbr0", "vmbr7")
	waitUntilUpToDate(w, object)

	setBridges("pve1", "vmbr0")
	setBridges("pve2", "vmbr0")
	expect(v1alpha1.ConditionTemplateReady, "False NodeTemplateClassResolutionError: pve1, pve2: "+missing)
	w.Expect(testenv.Reload(w, object).Status.Zones).To(HaveLen(2), "the templates still exist")
}
