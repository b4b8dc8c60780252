// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package instancetype_test

import (
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/karpenter/pkg/cloudprovider"
	"sigs.k8s.io/karpenter/pkg/scheduling"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instancetype"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

const oneTypeARM64 = oneType + "-arm64"

// setArch changes the architecture of all Hosts; those that are not named are amd64.
func setArch(v *viewer, arch map[string]string) {
	v.change(func(r map[string]*proxmox.Resources) {
		for _, region := range r {
			for n := range region.Hosts {
				region.Hosts[n].Arch = arch[region.Hosts[n].Name]
			}
		}
	})
}

func TestListArchitectures(t *testing.T) {
	t.Parallel()
	const none, all = "!pve1 !pve2 !pve9", "pve1 pve2 pve9"
	arm := map[string]string{"pve1": "aarch64", "pve2": "aarch64", "pve9": "aarch64"}
	one := map[string]string{"pve2": "aarch64"}
	for name, c := range map[string]struct {
		arch         map[string]string
		class        *v1alpha1.ProxmoxNodeClass
		plain, arm64 string // Hosts; empty if there is no such type.
		plainArch    string
	}{
		"amd64":                    {nil, newNodeClassWithAllHosts(), all, "", "amd64"},
		"arm64":                    {arm, newNodeClassWithAllHosts(), all, none, "arm64"},
		"both":                     {one, newNodeClassWithAllHosts(), "pve1 !pve2 pve9", "!pve1 pve2 !pve9", "amd64"},
		"no_template_on_arm64":     {one, newNodeClass("east/pve1/901", "west/pve9/909"), "pve1 !pve2 pve9", none, "amd64"},
		"only_templates_on_arm64":  {one, newNodeClass("east/pve2/902"), "!pve1 pve2 !pve9", none, "arm64"},
		"host_that_was_not_polled": {nil, newNodeClass("east/pve1/901", "north/pve5/905"), "pve1 !pve2 !pve5 !pve9", "!pve1 !pve2 !pve5 !pve9", "amd64"},
	} {
		g := NewWithT(t)
		v := newViewer()
		setArch(v, c.arch)
		p, _ := newProvider(t, v)
		byName := map[string]*cloudprovider.InstanceType{oneTypeARM64: {}}
		for _, it := range p.List(c.class, "") {
			byName[it.Name] = it
			// Core spreads pods over the zones of all types, also of those for Nodes that may exist.
			if name == "no_template_on_arm64" {
				g.Expect(it.Requirements.Get(corev1.LabelTopologyZone).Has("pve2")).To(BeFalse(), "%s lists a host without a template", it.Name)
			}
		}
		g.Expect(offered(byName[oneType])).To(Equal(c.plain), name)
		g.Expect(offered(byName[oneTypeARM64])).To(Equal(c.arm64), name)
		g.Expect(byName[oneType].Requirements.Get(corev1.LabelArchStable).Values()).To(ConsistOf(c.plainArch), name)
	}
}

// When a NodeClass gets Hosts of the other architecture, or loses them, its Nodes do not drift.
func TestListArchitecturesKeepNodes(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	v, class := newViewer(), newNodeClassWithAllHosts()
	all := map[string]string{"pve1": "aarch64", "pve2": "aarch64", "pve9": "aarch64"}
	setArch(v, all)
	p, _ := newProvider(t, v)
	var nodes []map[string]string
	record := func(instanceType, host string) {
		nodes = append(nodes, p.Labels(class, instanceType, zone("east", host)))
	}
	expectKept := func(step string) {
		t.Helper()
		for _, labels := range nodes {
			it := find(t, p.List(class, ""), labels[corev1.LabelInstanceTypeStable])
			g.Expect(it.Offerings.HasCompatible(scheduling.NewLabelRequirements(labels))).To(BeTrue(), "%s: a Node with the labels", step)
		}
	}
	record(oneType, "pve2")
	setArch(v, map[string]string{"pve2": "aarch64"})
	expectKept("amd64 hosts were added")
	record(oneTypeARM64, "pve2")
	record(oneType, "pve1")

	class.Status.SelectedZones = class.Status.SelectedZones[1:2]
	expectKept("amd64 templates were removed")
	g.Expect(p.UnavailableReasons(class, oneTypeARM64)[zone("east", "pve2")]).To(ContainSubstring("have the instance type "+oneType+" instead"),
		"the variant is unavailable because")
}

func TestRequestArchitecture(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	v, class := newViewer(), newNodeClassWithAllHosts()
	setArch(v, map[string]string{"pve2": "aarch64"})
	p, _ := newProvider(t, v)
	for arch, want := range map[string]string{"amd64": oneType, "arm64": oneTypeARM64} {
		claim := newClaim("1m", "1Mi", requirement(corev1.LabelArchStable, corev1.NodeSelectorOpIn, arch))
		for _, option := range requestFor(p, class, claim).Options {
			g.Expect(arch == "arm64").To(Equal(strings.HasSuffix(option.InstanceType, "-arm64")))
		}
		it, ok := p.Get(class, want)
		if need, known := p.Need(class, "", want, zone("east", "pve1")); !ok || !known || it.Name != want || int64(need.CPUs) != it.Capacity.Cpu().Value() {
			t.Errorf("type %s is %v and needs %v", want, it, need)
		}
	}
	g.Expect(p.CheckCapacity(class)).To(BeNil(), "there is no capacity")
}

// A file may have types for arm64 itself, and names that are too long for a suffix.
func TestListArchitecturesOfFile(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	long := strings.Repeat("x", 60)
	catalog, err := instancetype.Parse([]byte(`[
		{"name": "a", "capacity": {"cpu": "1", "memory": "1Gi"}}, {"name": "a-arm64", "capacity": {"cpu": "2", "memory": "2Gi"}},
		{"name": "b-arm64", "capacity": {"cpu": "3", "memory": "3Gi"}}, {"name": "` + long + `", "capacity": {"cpu": "4", "memory": "4Gi"}}]`))
	g.Expect(err).NotTo(HaveOccurred())
	v := newViewer()
	setArch(v, map[string]string{"pve2": "aarch64"})
	p, err := instancetype.New(instancetype.Deps{Inventory: v, Pricing: pricing(), Catalog: catalog})
	g.Expect(err).NotTo(HaveOccurred())
	want := map[string]int{"a": 2, "a-arm64": 1, "b-arm64": 1, long: 3}
	got := map[string]int{}
	for _, it := range p.List(newNodeClassWithAllHosts(), "") {
		got[it.Name] = len(it.Offerings.Available())
	}
	g.Expect(got).To(Equal(want), "the types and the number of their hosts")
}
