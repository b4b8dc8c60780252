// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package instancetype_test

import (
	"maps"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	corev1 "k8s.io/api/core/v1"
	testclock "k8s.io/utils/clock/testing"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/cloudprovider"
	"sigs.k8s.io/karpenter/pkg/scheduling"
	"sigs.k8s.io/karpenter/pkg/utils/disruption"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instancetype"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// launched returns the Claim of a Node with the labels.
func launched(nodeClass string, labels map[string]string) karpv1.NodeClaim {
	claim := karpv1.NodeClaim{}
	claim.Labels, claim.Spec.NodeClassRef = labels, &karpv1.NodeClassReference{Name: nodeClass}
	return claim
}

// TestListNodesWithOtherLabels checks that core finds the offering and the price of a Node whose labels a new
// Node on the same Host would not get, and that no Node is launched with them.
func TestListNodesWithOtherLabels(t *testing.T) {
	t.Parallel()
	const size = "t1.2VCPU-6GB"
	for name, c := range map[string]struct {
		// labels are those of the Node that differ from those of a launch.
		labels map[string]string
		// change is made after the launch.
		change func(*viewer, *v1alpha1.ProxmoxNodeClass)
		// key is the label that no launch gets.
		key string
		// zones are those of the class, factor is that of the Node's zone.
		zones  int
		factor float64
	}{
		"changed_CPU_of_the_template": {
			change: func(v *viewer, _ *v1alpha1.ProxmoxNodeClass) {
				config := &proxmox.VMConfig{Options: maps.Clone(v.configs[901].Options)}
				config.Options["cpu"], v.configs[901] = "x86-64-v3", config
			},
			key: v1alpha1.LabelInstanceCPUType, zones: 3, factor: 3,
		},
		"changed_image": {
			change: func(v *viewer, class *v1alpha1.ProxmoxNodeClass) {
				v.resources["east"].Guests = append(v.resources["east"].Guests, proxmox.GuestRow{VMID: 903, Kind: proxmox.KindQEMU, Host: "pve1", Status: "stopped", Template: true})
				v.configs[903] = v.configs[901]
				class.Status.SelectedZones[0] = "east/pve1/903"
			},
			key: v1alpha1.LabelInstanceImageID, zones: 3, factor: 3,
		},
		"changed_region_of_the_class": {
			change: func(_ *viewer, class *v1alpha1.ProxmoxNodeClass) { class.Spec.Region = "west" },
			key:    corev1.LabelTopologyRegion, zones: 1, factor: 1,
		},
		"upstream_provider": {
			labels: map[string]string{v1alpha1.LabelInstanceImageID: "15241089216842", v1alpha1.LabelInstanceCPU: "", v1alpha1.LabelInstanceMemory: ""},
			key:    v1alpha1.LabelInstanceImageID, zones: 3, factor: 3,
		},
		"upstream_provider_spot": {
			labels: map[string]string{karpv1.CapacityTypeLabelKey: karpv1.CapacityTypeSpot, v1alpha1.LabelInstanceImageID: "15241089216842"},
			key:    karpv1.CapacityTypeLabelKey, zones: 3, factor: 3,
		},
		"spot": {
			labels: map[string]string{karpv1.CapacityTypeLabelKey: karpv1.CapacityTypeSpot},
			key:    karpv1.CapacityTypeLabelKey, zones: 3, factor: 3,
		},
	} {
		g := NewWithT(t)
		v, class := newViewer(), newNodeClassWithAllHosts()
		v.settings = parseSettings(t, `{"east": {"pve1": {"pricefactor": 3}}}`)
		v.publish()
		p, _ := newProvider(t, v)
		labels := p.Labels(class, size, zone("east", "pve1"))
		maps.Copy(labels, c.labels)
		maps.DeleteFunc(labels, func(_, value string) bool { return value == "" })
		other := maps.Clone(labels)
		other[v1alpha1.LabelInstanceImageID] = "of-another-class"
		claims := []karpv1.NodeClaim{launched(class.Name, labels), launched(class.Name, maps.Clone(labels)), launched("another", other), {}}
		g.Expect(p.RefreshNodes(func() ([]karpv1.NodeClaim, error) { return claims, nil })).To(Succeed())
		if c.change != nil {
			c.change(v, class)
			v.publish()
		}
		it := find(t, p.List(class, ""), size)
		typ, _ := instancetype.DefaultCatalog().Get(size)
		want := pricing().Price(typ, 0) * c.factor
		g.Expect(disruption.ResolveOfferingPrice(labels, it)).To(Equal(want), name)
		// The condition of core's drift check.
		g.Expect(it.Offerings.Compatible(scheduling.NewLabelRequirements(labels))).To(ConsistOf(HaveField("Price", want)), name)
		for _, listed := range p.List(class, "") {
			offerings := c.zones
			if listed == it {
				offerings++ // both Nodes have the same labels
			}
			g.Expect(listed.Offerings).To(HaveLen(offerings), "%s: %s", name, listed.Name)
		}
		expectNoLaunch(t, p, class, it, c.key, labels[c.key])
	}
}

// expectNoLaunch checks that no Node gets the value of the label, also for a pod that selects it.
func expectNoLaunch(t *testing.T, p *instancetype.Provider, class *v1alpha1.ProxmoxNodeClass, it *cloudprovider.InstanceType, key, value string) {
	t.Helper()
	g := NewWithT(t)
	selected := requirement(key, corev1.NodeSelectorOpIn, value)
	g.Expect(it.Offerings.Available().HasCompatible(scheduling.NewNodeSelectorRequirementsWithMinValues(selected))).To(BeFalse(),
		"%s is available with %s=%s", it.Name, key, value)
	g.Expect(it.Requirements.Get(key).Has(value)).To(BeFalse(), "pods would be spread over")
	g.Expect(requestFor(p, class, newClaim("100m", "100Mi", selected)).Options).To(BeEmpty(), "a claim requires %s=%s", key, value)
	request := requestFor(p, class, newClaim("100m", "100Mi"))
	g.Expect(request.Options).NotTo(BeEmpty(), "other claims cannot be launched: %s", request.NoOptionsReason)
	for _, option := range request.Options {
		for _, z := range option.Zones {
			g.Expect(p.Labels(class, option.InstanceType, z)[key]).NotTo(Equal(value), "a new Node in %s gets %s", z, key)
		}
	}
}

// TestListNodesWithOtherLabelsUnchanged checks that types keep their objects while the labels of Nodes are the
// same, and lose the offering with the last Node.
func TestListNodesWithOtherLabelsUnchanged(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	v, class, registry, clock := newViewer(), newNodeClassWithAllHosts(), prometheus.NewRegistry(), testclock.NewFakeClock(start)
	p := must(instancetype.New(instancetype.Deps{Inventory: v, Pricing: pricing(), Registerer: registry, Clock: clock}))
	refresh := func(claims ...karpv1.NodeClaim) []*cloudprovider.InstanceType {
		clock.Step(10 * time.Minute)
		g.Expect(p.RefreshNodes(func() ([]karpv1.NodeClaim, error) { return claims, nil })).To(Succeed())
		return p.List(class, "")
	}
	current, other := p.Labels(class, "c1.1VCPU-2GB", zone("east", "pve1")), p.Labels(class, "c1.1VCPU-2GB", zone("east", "pve1"))
	other[v1alpha1.LabelInstanceCPUType] = "another"
	before := refresh()
	g.Expect(&refresh(launched(class.Name, current))[0]).To(Equal(&before[0]), "the labels of a Node are those of its zone, but the list is new")
	with := refresh(launched(class.Name, other), launched(class.Name, current))
	g.Expect(with[0]).NotTo(Equal(before[0]), "a Node with other labels changes its own type only")
	g.Expect(with[1:]).To(Equal(before[1:]), "a Node with other labels changes its own type only")
	g.Expect(&refresh(launched(class.Name, current), launched(class.Name, other))[0]).To(Equal(&with[0]), "the Nodes are the same, but the list is new")
	g.Expect(testutil.GatherAndCount(registry)).To(Equal(3 + 20 + 20))
	g.Expect(refresh()[0].Offerings).To(HaveLen(3))
}
