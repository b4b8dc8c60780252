// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package status_test

import (
	"maps"
	"testing"
	"time"

	operatorstatus "github.com/awslabs/operatorpkg/status"
	. "github.com/onsi/gomega"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/unmanagedtemplate/status"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

// changeGuest changes one guest of the scenario.
func changeGuest(s *pvesim.Scenario, vmid int, change func(*pvesim.Guest)) {
	for i := range s.Guests {
		if s.Guests[i].VMID == vmid {
			change(&s.Guests[i])
		}
	}
}

// addTemplate adds a copy of template 9000 with another VMID.
func addTemplate(s *pvesim.Scenario, vmid int, change func(*pvesim.Guest)) {
	for _, g := range s.Guests {
		if g.VMID != 9000 {
			continue
		}
		config := maps.Clone(g.Config)
		config["scsi0"], config["ide2"] = "local-lvm:base-9000-disk-0,size=3G", "none,media=cdrom"
		g.VMID, g.Config = vmid, config
		change(&g)
		s.Guests = append(s.Guests, g)
		return
	}
}

func reconciled(w *testenv.Env, template *v1alpha1.ProxmoxUnmanagedTemplate) *v1alpha1.ProxmoxUnmanagedTemplate {
	w.T.Helper()
	_, err := status.NewController(w.Kube, w.Inventory, w.Events).Reconcile(w.T.Context(), testenv.Reload(w, template))
	w.Expect(err).NotTo(HaveOccurred())
	return testenv.Reload(w, template)
}

func TestResolve(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		spec v1alpha1.ProxmoxUnmanagedTemplateSpec
		want []string
	}{
		"name":            {v1alpha1.ProxmoxUnmanagedTemplateSpec{TemplateName: "ubuntu"}, []string{"region-1/pve1/9000", "region-1/pve2/9001", "region-2/pve1/9000"}},
		"name_and_region": {v1alpha1.ProxmoxUnmanagedTemplateSpec{TemplateName: "ubuntu", Region: testenv.OtherRegion}, []string{"region-2/pve1/9000"}},
		"one_tag":         {v1alpha1.ProxmoxUnmanagedTemplateSpec{Tags: []string{"K8S"}}, []string{"region-1/pve1/9000", "region-1/pve2/9001"}},
		"all_tags":        {v1alpha1.ProxmoxUnmanagedTemplateSpec{Tags: []string{"k8s", "lts"}}, []string{"region-1/pve2/9001"}},
		"VMID":            {v1alpha1.ProxmoxUnmanagedTemplateSpec{VMID: 9001}, []string{"region-1/pve2/9001"}},
		"VMID_and_region": {v1alpha1.ProxmoxUnmanagedTemplateSpec{VMID: 9000, Region: testenv.OtherRegion}, []string{"region-2/pve1/9000"}},
		"VMID_and_name":   {v1alpha1.ProxmoxUnmanagedTemplateSpec{VMID: 9000, TemplateName: "ubuntu"}, []string{"region-1/pve1/9000", "region-2/pve1/9000"}},
		"name_and_tags":   {v1alpha1.ProxmoxUnmanagedTemplateSpec{TemplateName: "ubuntu", Tags: []string{"lts"}}, []string{"region-1/pve2/9001"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := testenv.New(t, testenv.NoPolling(), testenv.Hosts(2), testenv.OtherHosts(1), testenv.Scenario(func(s *pvesim.Scenario) {
				changeGuest(s, 9000, func(g *pvesim.Guest) { g.Config["tags"] = "k8s" })
				changeGuest(s, 9001, func(g *pvesim.Guest) { g.Config["tags"] = "k8s;lts" })
				// A VM with the same tags and name is not a template.
				changeGuest(s, 101, func(g *pvesim.Guest) { g.Name, g.Config["tags"] = "ubuntu", "k8s;lts" })
			}))
			template := reconciled(w, w.Template(func(u *v1alpha1.ProxmoxUnmanagedTemplate) { u.Spec = c.spec }))
			w.Expect(template.Status.Zones).To(Equal(c.want))
			zones := template.Status.Resources[v1alpha1.ResourceZones]
			w.Expect(zones.Value()).To(BeEquivalentTo(len(c.want)))
			w.Expect(template.StatusConditions().Get(operatorstatus.ConditionReady).IsTrue()).To(BeTrue())
			settled := template.ResourceVersion
			w.Expect(reconciled(w, template).ResourceVersion).To(Equal(settled), "nothing is written without a change")
		})
	}
}

func TestResolveNewestOfSeveral(t *testing.T) {
	t.Parallel()
	w := testenv.New(t, testenv.NoPolling(), testenv.Scenario(func(s *pvesim.Scenario) {
		changeGuest(s, 9000, func(g *pvesim.Guest) { g.Config["meta"] = "creation-qemu=9.0.2,ctime=1700000000" })
		addTemplate(s, 9100, func(g *pvesim.Guest) { g.Config["meta"] = "creation-qemu=9.0.2,ctime=1800000000" })
		addTemplate(s, 9200, func(g *pvesim.Guest) { g.Config["meta"] = "creation-qemu=9.0.2,ctime=1750000000" })
	}))
	template := reconciled(w, w.Template())
	w.Expect(template.Status.Zones).To(Equal([]string{"region-1/pve1/9100"}))
	const want = "region-1/pve1: several templates match; the newest, 9100, is used, not [9200 9000]"
	w.Expect(w.Events.Messages("MultipleTemplatesMatch")).To(ConsistOf(want))
	w.Expect(template.StatusConditions().Get(v1alpha1.ConditionTemplateReady).Message).To(Equal(want), "the condition outlasts the event")
}

func TestResolveNotFound(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		spec v1alpha1.ProxmoxUnmanagedTemplateSpec
		want string
	}{
		"name": {v1alpha1.ProxmoxUnmanagedTemplateSpec{TemplateName: "talos"}, `no host of regions region-1, region-2 has a template named "talos" that is visible`},
		"tags": {v1alpha1.ProxmoxUnmanagedTemplateSpec{Tags: []string{"a", "b"}, Region: testenv.Region}, "no host of region region-1 has a template with tags a, b that is visible"},
		"VMID": {v1alpha1.ProxmoxUnmanagedTemplateSpec{VMID: 4711}, "no host of regions region-1, region-2 has a template with spec.vmid 4711 that is visible"},
		"VMID_of_a_VM": {
			v1alpha1.ProxmoxUnmanagedTemplateSpec{VMID: 101, Region: testenv.Region},
			`spec.vmid 101 on host region-1/pve1 is the VM "office-101", which is not a template; set the VMID of a template, or convert the VM: qm template 101`,
		},
		"VMID_with_another_name": {
			v1alpha1.ProxmoxUnmanagedTemplateSpec{VMID: 9000, TemplateName: "talos", Region: testenv.Region},
			`spec.vmid 9000 on host region-1/pve1 is the template "ubuntu", but spec.templateName is "talos"; fix one of them, or remove spec.templateName`,
		},
		"VMID_with_other_tags": {
			v1alpha1.ProxmoxUnmanagedTemplateSpec{VMID: 9000, Tags: []string{"talos"}, Region: testenv.Region},
			`spec.vmid 9000 on host region-1/pve1 is the template "ubuntu" with tags "", but spec.tags is "talos"; fix one of them, or remove spec.tags`,
		},
		"region": {v1alpha1.ProxmoxUnmanagedTemplateSpec{TemplateName: "ubuntu", Region: "mars"}, `spec.region "mars" is not in the cloud config, which has region-1, region-2`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := testenv.New(t, testenv.NoPolling(), testenv.OtherHosts(1))
			template := reconciled(w, w.Template(func(u *v1alpha1.ProxmoxUnmanagedTemplate) { u.Spec = c.spec }))
			got := template.StatusConditions().Get(v1alpha1.ConditionTemplateReady)
			w.Expect(got.IsFalse()).To(BeTrue())
			w.Expect(got.Reason).To(Equal(v1alpha1.ReasonTemplatesNotFound))
			w.Expect(got.Message).To(ContainSubstring(c.want))
			w.Expect(template.StatusConditions().Root().Message).To(ContainSubstring(c.want), "Ready reports the cause")
			w.Expect(template.Status.Zones).To(BeEmpty())
		})
	}
}

func TestResolveWithUnpolledCluster(t *testing.T) {
	t.Parallel()
	w := testenv.New(t, testenv.NeverPolled())
	template := reconciled(w, w.Template())
	w.Expect(template.StatusConditions().Get(v1alpha1.ConditionTemplateReady).IsUnknown()).To(BeTrue())
}

func TestResolveWithOneUnpolledCluster(t *testing.T) {
	t.Parallel()
	w := testenv.New(t, testenv.NeverPolled(), testenv.OtherHosts(1))
	w.Expect(w.Inventory.Refresh(t.Context(), testenv.OtherRegion)).To(Succeed())
	template := reconciled(w, w.Template())
	w.Expect(template.Status.Zones).To(Equal([]string{"region-2/pve1/9000"}))
	w.Expect(template.StatusConditions().Get(operatorstatus.ConditionReady).IsTrue()).To(BeTrue())
}

func TestResolveDuringOutage(t *testing.T) {
	t.Parallel()
	w := testenv.New(t, testenv.NoPolling())
	template := reconciled(w, w.Template())
	w.Disconnect()
	w.Expect(w.Inventory.RefreshAll(t.Context())).NotTo(Succeed())
	w.Expect(reconciled(w, template).Status.Zones).To(Equal([]string{"region-1/pve1/9000"}))
}

func TestResolveAfterRestart(t *testing.T) {
	t.Parallel()
	w := testenv.New(t, testenv.NoPolling())
	template := reconciled(w, w.Template())
	w.Restart(false)
	w.Expect(reconciled(w, template).Status.Zones).To(Equal([]string{"region-1/pve1/9000"}))
	w.Expect(template.StatusConditions().Get(operatorstatus.ConditionReady).IsTrue()).To(BeTrue())
}

func TestResolveTemplateAddedLater(t *testing.T) {
	t.Parallel()
	w := testenv.New(t)
	w.StartManager(func(kube client.Client) testenv.Registrar { return status.NewController(kube, w.Inventory, w.Events) })
	template := w.Template(func(u *v1alpha1.ProxmoxUnmanagedTemplate) { u.Spec.TemplateName = "copy" })
	ready := func() string {
		return string(testenv.Reload(w, template).StatusConditions().Get(operatorstatus.ConditionReady).GetStatus())
	}
	w.Eventually(ready).Should(Equal("False"))
	settled := template.ResourceVersion
	w.Consistently(func() string { return testenv.Reload(w, template).ResourceVersion }).WithTimeout(500 * time.Millisecond).Should(Equal(settled))
	w.Expect(w.Client.UpdateVM(t.Context(), "pve1", 9000, proxmox.ConfigChange{Set: map[string]string{"name": "copy"}})).To(Succeed())
	w.Eventually(ready).Should(Equal("True"))
	w.Expect(template.Status.Zones).To(Equal([]string{"region-1/pve1/9000"}))
}
