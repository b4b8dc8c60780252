// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package controllers_test

import (
	"maps"
	"strings"
	"testing"
	"time"

	operatorstatus "github.com/awslabs/operatorpkg/status"
	. "github.com/onsi/gomega"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/unmanagedtemplate"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/declared"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/observed"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/ownership"
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
	changeGuest(s, 9000, func(template *pvesim.Guest) {
		g := *template
		g.VMID, g.Config = vmid, maps.Clone(g.Config)
		g.Config["scsi0"], g.Config["ide2"] = "local-lvm:base-9000-disk-0,size=3G", "none,media=cdrom"
		change(&g)
		s.Guests = append(s.Guests, g)
	})
}

func reconciled(w *testenv.Env, template *v1alpha1.ProxmoxUnmanagedTemplate) *v1alpha1.ProxmoxUnmanagedTemplate {
	w.T.Helper()
	testenv.Reconcile(w, unmanagedtemplate.NewController(w.Kube, w.Inventory, w.Events), template)
	return testenv.Reload(w, template)
}

// withTags gives the templates of pve1 and pve2 tags. A VM with the same tags and name is not a template.
func withTags(s *pvesim.Scenario) {
	changeGuest(s, 9000, func(g *pvesim.Guest) { g.Config["tags"] = "k8s" })
	changeGuest(s, 9001, func(g *pvesim.Guest) { g.Config["tags"] = "k8s;lts" })
	changeGuest(s, 101, func(g *pvesim.Guest) { g.Name, g.Config["tags"] = "ubuntu", "k8s;lts" })
}

// createdAt sets the creation time of a template.
func createdAt(seconds string) func(*pvesim.Guest) {
	return func(g *pvesim.Guest) { g.Config["meta"] = "creation-qemu=9.0.2,ctime=" + seconds }
}

// managed marks a template as built by a ProxmoxTemplate with the given VMID, later than the others.
func managed(vmid int) func(*pvesim.Guest) {
	notes := ownership.Mark{VMID: vmid, KubeCluster: "7c0e0a53", Name: "ubuntu", TemplateUID: "5f1d4d7a"}.Notes("built")
	return func(g *pvesim.Guest) {
		createdAt("1800000000")(g)
		g.Config["description"] = notes
	}
}

// withManaged adds a template that was built, replaces one by such a one, and adds a copy of one.
func withManaged(s *pvesim.Scenario) {
	addTemplate(s, 1000, managed(1000))
	changeGuest(s, 9001, managed(9001))
	addTemplate(s, 1002, func(g *pvesim.Guest) {
		managed(1000)(g)
		g.Host = "pve3"
	})
}

// withSharedTemplate adds template 9500 "shared" on pve1, with its disk on a storage
// that is shared by the first two of three hosts.
func withSharedTemplate(s *pvesim.Scenario) {
	s.Storages = append(s.Storages, pvesim.Storage{ID: "ceph", Type: "rbd", Content: []string{"images"}, Size: pvesim.TiB, Hosts: []string{"pve1", "pve2"}})
	addTemplate(s, 9500, func(g *pvesim.Guest) {
		g.Name = "shared"
		g.Config["scsi0"] = "ceph:base-9500-disk-0,size=3G"
	})
}

func TestUnmanagedTemplateStatusResolve(t *testing.T) {
	t.Parallel()
	type spec = v1alpha1.ProxmoxUnmanagedTemplateSpec
	for name, c := range map[string]struct {
		scenario func(*pvesim.Scenario)
		spec     spec
		// previous are the zones before.
		previous, want []string
		// ambiguity is reported if a host has several templates.
		ambiguity string
	}{
		"name":            {spec: spec{TemplateName: "ubuntu"}, want: []string{"region-1/pve1/9000", "region-1/pve2/9001", "region-1/pve3/9002", "region-2/pve1/9000"}},
		"name_and_region": {spec: spec{TemplateName: "ubuntu", Region: testenv.OtherRegion}, want: []string{"region-2/pve1/9000"}},
		"one_tag":         {spec: spec{Tags: []string{"K8S"}}, want: []string{"region-1/pve1/9000", "region-1/pve2/9001"}},
		"all_tags":        {spec: spec{Tags: []string{"k8s", "lts"}}, want: []string{"region-1/pve2/9001"}},
		"VMID":            {spec: spec{VMID: 9001}, want: []string{"region-1/pve2/9001"}},
		"VMID_and_region": {spec: spec{VMID: 9000, Region: testenv.OtherRegion}, want: []string{"region-2/pve1/9000"}},
		"VMID_and_name":   {spec: spec{VMID: 9000, TemplateName: "ubuntu"}, want: []string{"region-1/pve1/9000", "region-2/pve1/9000"}},
		"name_and_tags":   {spec: spec{TemplateName: "ubuntu", Tags: []string{"lts"}}, want: []string{"region-1/pve2/9001"}},
		"newest": {
			scenario: func(s *pvesim.Scenario) {
				changeGuest(s, 9000, createdAt("1700000000"))
				addTemplate(s, 9100, createdAt("1800000000"))
				addTemplate(s, 9200, createdAt("1750000000"))
			},
			spec: spec{Tags: []string{"k8s"}}, want: []string{"region-1/pve1/9100", "region-1/pve2/9001"},
			ambiguity: "region-1/pve1: several templates match; the newest, 9100, is used, not [9200 9000]",
		},
		"managed_only_where_no_other_matches": {scenario: withManaged, spec: spec{TemplateName: "ubuntu", Region: testenv.Region},
			want:      []string{"region-1/pve1/9000", "region-1/pve2/9001", "region-1/pve3/1002"},
			ambiguity: "region-1/pve3: several templates match; the newest, 1002, is used, not [9002]"},
		"managed_in_use": {
			scenario: withManaged, spec: spec{TemplateName: "ubuntu", Tags: []string{"k8s"}}, previous: []string{"region-1/pve1/1000"},
			want:      []string{"region-1/pve1/1000", "region-1/pve2/9001", "region-1/pve3/1002"},
			ambiguity: "region-1/pve1: several templates match; the newest, 1000, is used, not [9000]",
		},
		"shared_storage": {scenario: withSharedTemplate, spec: spec{TemplateName: "shared"}, want: []string{"region-1/pve1/9500", "region-1/pve2/9500"}},
		"shared_storage_with_local_ISO": {
			scenario: func(s *pvesim.Scenario) {
				withSharedTemplate(s)
				s.Files = append(s.Files, pvesim.File{Storage: "local", Name: "iso/drivers.iso", Text: "drivers"})
				changeGuest(s, 9500, func(g *pvesim.Guest) { g.Config["ide2"] = "local:iso/drivers.iso,media=cdrom" })
			},
			spec: spec{TemplateName: "shared"}, want: []string{"region-1/pve1/9500"},
		},
	} {
		testenv.With(testenv.NoPolling(), testenv.Hosts(3), testenv.OtherHosts(1), testenv.Scenario(withTags, func(s *pvesim.Scenario) { change(s, c.scenario) })).Subtest(t, name, func(w *testenv.Env, _ *testenv.Process) {
			template := w.Template(func(u *v1alpha1.ProxmoxUnmanagedTemplate) { u.Spec = c.spec })
			testenv.ModifyStatus(w, template, func(u *v1alpha1.ProxmoxUnmanagedTemplate) { u.Status.Zones = c.previous })
			reconciled(w, template)
			w.Expect(template.Status.Zones).To(Equal(c.want))
			zones := template.Status.Resources[v1alpha1.ResourceZones]
			w.Expect(zones.Value()).To(BeEquivalentTo(len(c.want)))
			w.Expect(template.StatusConditions().Root().IsTrue()).To(BeTrue())
			w.Expect(template.StatusConditions().Get(v1alpha1.ConditionTemplateReady).Message).To(Equal(c.ambiguity), "the condition outlasts the event")
			w.Expect(strings.Join(w.Events.Messages(v1alpha1.EventMultipleTemplatesMatch), "\n")).To(Equal(c.ambiguity))
			settled := template.ResourceVersion
			w.Expect(reconciled(w, template).ResourceVersion).To(Equal(settled), "nothing is written without a change")
		})
	}
}

func TestResolveNotFound(t *testing.T) {
	t.Parallel()
	type spec = v1alpha1.ProxmoxUnmanagedTemplateSpec
	for name, c := range map[string]struct {
		spec spec
		want string
	}{
		"name": {spec{TemplateName: "talos"}, `no host of regions region-1, region-2 has a template named "talos" that is visible`},
		"tags": {spec{Tags: []string{"a", "b"}, Region: testenv.Region}, "no host of region region-1 has a template with tags a, b that is visible"},
		"VMID": {spec{VMID: 4711}, "no host of regions region-1, region-2 has a template with spec.vmid 4711 that is visible"},
		"VMID_of_a_VM": {spec{VMID: 101, Region: testenv.Region},
			`spec.vmid 101 on host region-1/pve1 is the VM "ubuntu", which is not a template; set the VMID of a template, or convert the VM: qm template 101`},
		"VMID_with_another_name": {spec{VMID: 9000, TemplateName: "talos", Region: testenv.Region},
			`spec.vmid 9000 on host region-1/pve1 is the template "ubuntu", but spec.templateName is "talos"; fix one of them, or remove spec.templateName`},
		"VMID_with_other_tags": {spec{VMID: 9000, Tags: []string{"talos"}, Region: testenv.Region},
			`spec.vmid 9000 on host region-1/pve1 is the template "ubuntu" with tags "k8s", but spec.tags is "talos"; fix one of them, or remove spec.tags`},
		"region": {spec{TemplateName: "ubuntu", Region: "mars"},
			`spec.region "mars" is not in the cloud config, which has region-1, region-2`},
	} {
		testenv.With(testenv.NoPolling(), testenv.OtherHosts(1), testenv.Scenario(withTags)).Subtest(t, name, func(w *testenv.Env, _ *testenv.Process) {
			template := reconciled(w, w.Template(func(u *v1alpha1.ProxmoxUnmanagedTemplate) { u.Spec = c.spec }))
			w.Expect(condition(template, v1alpha1.ConditionTemplateReady)).To(And(HavePrefix("False "+v1alpha1.ReasonTemplatesNotFound), ContainSubstring(c.want)))
			w.Expect(template.StatusConditions().Root().Message).To(ContainSubstring(c.want), "Ready reports the cause")
			w.Expect(template.Status.Zones).To(BeEmpty())
		})
	}
}

func TestResolveUnpolledCluster(t *testing.T) {
	testenv.With(testenv.NeverPolled(), testenv.OtherHosts(1)).Test(t, func(w *testenv.Env, _ *testenv.Process) {
		template := reconciled(w, w.Template())
		w.Expect(template.StatusConditions().Get(v1alpha1.ConditionTemplateReady).IsUnknown()).To(BeTrue())
		expect := func(zones ...string) {
			w.T.Helper()
			w.Expect(reconciled(w, template).Status.Zones).To(Equal(zones))
			w.Expect(template.StatusConditions().Root().IsTrue()).To(BeTrue())
		}
		w.Expect(w.Inventory.Refresh(w.Context(), testenv.OtherRegion)).To(Succeed())
		expect("region-2/pve1/9000")
		w.Refresh()
		expect("region-1/pve1/9000", "region-2/pve1/9000")
		w.Disconnect()
		w.Expect(w.Inventory.RefreshAll(w.Context())).NotTo(Succeed())
		expect("region-1/pve1/9000", "region-2/pve1/9000")
		w.Restart(false)
		expect("region-1/pve1/9000", "region-2/pve1/9000")
	})
}

// The controller runs again after a change of the Cluster.
func TestResolveTemplateAddedLater(t *testing.T) {
	t.Parallel()
	w := testenv.NewWithAPIServer(t)
	w.StartManager(func(kube client.Client) testenv.Registrar {
		return unmanagedtemplate.NewController(kube, w.Inventory, w.Events)
	})
	template := w.Template(func(u *v1alpha1.ProxmoxUnmanagedTemplate) { u.Spec.TemplateName = "copy" })
	ready := func() string { return condition(testenv.Reload(w, template), operatorstatus.ConditionReady) }
	w.Eventually(ready).Should(HavePrefix("False"))
	settled := template.ResourceVersion
	w.Consistently(func() string { return testenv.Reload(w, template).ResourceVersion }).WithTimeout(500 * time.Millisecond).Should(Equal(settled))
	w.Expect(w.Client.UpdateVM(t.Context(), "pve1", 9000, proxmox.ConfigChange{Set: map[string]string{"name": "copy"}})).To(Succeed())
	w.Eventually(ready).Should(HavePrefix("True"))
	w.Expect(template.Status.Zones).To(Equal([]string{"region-1/pve1/9000"}))
}

func TestCheckSharedTemplate(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w := testenv.New(t, testenv.Hosts(3), testenv.Scenario(withSharedTemplate))
		template := reconciled(w, w.Template(func(t *v1alpha1.ProxmoxUnmanagedTemplate) { t.Spec.TemplateName = "shared" }))
		class := w.NewClass(func(c *v1alpha1.ProxmoxNodeClass) { c.Spec.InstanceTemplateRef.Name = template.Name })
		checkClass(w, class)
		w.Expect(class.Status.SelectedZones).To(Equal([]string{"region-1/pve1/9500", "region-1/pve2/9500"}))

		// A local disk cannot be cloned to another host, nor from an offline host.
		testenv.Modify(w, class, func(c *v1alpha1.ProxmoxNodeClass) { c.Spec.BootDevice.Storage = "local-lvm" })
		checkClass(w, class)
		w.Expect(class.Status.SelectedZones).To(Equal([]string{"region-1/pve1/9500"}))
		w.Expect(class.Status.UnusableZones).To(ContainElement(v1alpha1.UnusableZone{
			Zone: "region-1/pve2", Reason: `template 9500 is on host pve1, and Proxmox clones to another host on shared storage only: ` +
				`spec.bootDevice.storage "local-lvm" is local; leave it empty, or have a template on this host`,
		}))
		testenv.Modify(w, class, func(c *v1alpha1.ProxmoxNodeClass) { c.Spec.BootDevice.Storage = "" })
		known := w.Inventory.View().Snapshots[testenv.Region].KnownHost("pve1")
		w.Expect(w.Sim.HostDown("pve1", "refused")).To(Succeed())
		w.Eventually(func() []v1alpha1.UnusableZone {
			w.Refresh()
			return checkClass(w, class).Status.UnusableZones
		}).Should(ContainElement(v1alpha1.UnusableZone{Zone: "region-1/pve2", Reason: "template 9500 is on host pve1, which is offline"}))

		// A launch wakes a host that was shut down to save energy.
		w.Inventory.SetSleeping(map[observed.HostName]declared.Sleep{
			{Region: testenv.Region, Host: "pve1"}: {State: declared.Asleep, Since: time.Now(), Known: known},
		})
		w.Expect(checkClass(w, class).Status.SelectedZones).To(ContainElement("region-1/pve2/9500"))
	})
}
