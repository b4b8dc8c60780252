// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package controllers_test

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/nodeclass"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
)

func TestLaunchFromSharedTemplate(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w := testenv.New(t, testenv.Hosts(3), testenv.Scenario(withSharedTemplate))
		template := reconciled(w, w.Template(func(t *v1alpha1.ProxmoxUnmanagedTemplate) { t.Spec.TemplateName = "shared" }))
		class := w.NewClass(func(c *v1alpha1.ProxmoxNodeClass) { c.Spec.InstanceTemplateRef.Name = template.Name })
		check := func() {
			w.Expect(nodeclass.NewController(w.Kube, w.Events, nodeclass.Deps{
				Inventory: w.Inventory, Types: w.Types, Boot: w.Boot, Health: w.Instances.Health, Clock: w.Clock,
			}).Reconcile(t.Context(), testenv.Reload(w, class))).Error().NotTo(HaveOccurred())
			testenv.Reload(w, class)
		}
		check()
		w.Expect(class.Status.SelectedZones).To(Equal([]string{"region-1/pve1/9500", "region-1/pve2/9500"}))

		class.Status.SelectedZones = []string{"region-1/pve2/9500"}
		w.MarkReady(class)
		claim := w.Launched("node", class)
		in := w.Intent(claim)
		w.Expect([]any{in.Host, in.TemplateHost, in.TemplateID, in.FullClone}).To(Equal([]any{"pve2", "pve1", 9500, false}))
		w.Expect(w.Running(claim)).To(BeTrue())
		w.Expect(w.VMs()).To(ConsistOf(HaveField("Host", "pve2")))

		// A local disk cannot be cloned to another host, nor from an offline host.
		testenv.Reload(w, class)
		class.Spec.BootDevice.Storage = "local-lvm"
		w.Expect(w.Kube.Update(t.Context(), class)).To(Succeed())
		check()
		w.Expect(class.Status.SelectedZones).To(Equal([]string{"region-1/pve1/9500"}))
		w.Expect(class.Status.UnusableZones).To(ContainElement(v1alpha1.UnusableZone{
			Zone: "region-1/pve2", Reason: `template 9500 is on host pve1, and Proxmox clones to another host on shared storage only: ` +
				`spec.bootDevice.storage "local-lvm" is local; leave it empty, or have a template on this host`,
		}))
		class.Spec.BootDevice.Storage = ""
		w.Expect(w.Kube.Update(t.Context(), class)).To(Succeed())
		known := w.Inventory.View().Snapshots[testenv.Region].KnownHost("pve1")
		w.Expect(w.Sim.HostDown("pve1", "refused")).To(Succeed())
		w.Eventually(func() []v1alpha1.UnusableZone {
			w.Refresh()
			check()
			return class.Status.UnusableZones
		}).Should(ContainElement(v1alpha1.UnusableZone{Zone: "region-1/pve2", Reason: "template 9500 is on host pve1, which is offline"}))

		// A launch wakes a host that was shut down to save energy.
		w.Inventory.SetSleeping(map[inventory.HostName]inventory.Sleep{
			{Region: testenv.Region, Host: "pve1"}: {State: inventory.Asleep, Since: time.Now(), Known: known},
		})
		check()
		w.Expect(class.Status.SelectedZones).To(ContainElement("region-1/pve2/9500"))
	})
}
