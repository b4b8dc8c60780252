// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package instancetype_test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/scheduling"
	"sigs.k8s.io/karpenter/pkg/utils/disruption"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instancetype"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/ownership"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

func TestListDefinesWellKnownLabels(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	p, _ := newProvider(t, newViewer())
	for _, it := range p.List(newNodeClassWithAllHosts(), "") {
		for label := range karpv1.WellKnownLabels {
			if label != karpv1.NodePoolLabelKey && !it.Requirements.Has(label) {
				t.Errorf("%s does not define %s", it.Name, label)
			}
		}
		for _, o := range it.Offerings {
			for _, label := range []string{corev1.LabelTopologyRegion, corev1.LabelTopologyZone, karpv1.CapacityTypeLabelKey} {
				g.Expect(o.Requirements.Has(label)).To(BeTrue(), "an offering of %s does not define", it.Name)
			}
			g.Expect(o.CapacityType()).To(Equal(karpv1.CapacityTypeOnDemand), "an offering of %s", it.Name)
			g.Expect(o.Price).To(BeNumerically(">", 0), "an offering of %s", it.Name)
		}
	}
}

// TestListSpot checks that a type of a file has its capacity type, and that core finds its price.
func TestListSpot(t *testing.T) {
	t.Parallel()
	catalog := must(instancetype.Parse([]byte(`[
		{"name": "on-demand", "capacity": {"cpu": "2", "memory": "4Gi"}},
		{"name": "spot", "capacity": {"cpu": "2", "memory": "4Gi"}, "capacitytype": "spot"}]`)))
	p := must(instancetype.New(instancetype.Deps{Inventory: newViewer(), Pricing: pricing(), Catalog: catalog}))
	class := newNodeClassWithAllHosts()
	full := pricing().Price(catalog.Types()[0], 0)
	for name, want := range map[string]float64{karpv1.CapacityTypeOnDemand: full, karpv1.CapacityTypeSpot: full / 2} {
		it := find(t, p.List(class, ""), name)
		g := NewWithT(t)
		g.Expect(it.Requirements.Get(karpv1.CapacityTypeLabelKey).Values()).To(ConsistOf(name))
		g.Expect(disruption.ResolveOfferingPrice(p.Labels(class, name, zone("east", "pve1")), it)).To(Equal(want), name)
		g.Expect(it.Offerings).To(HaveLen(3))
		g.Expect(p.CapacityType(name)).To(Equal(name))
	}
}

func TestListRequirements(t *testing.T) {
	t.Parallel()
	p, _ := newProvider(t, newViewer())
	it := find(t, p.List(newNodeClassWithAllHosts(), ""), "t1.2VCPU-6GB")
	for label, want := range map[string]string{
		corev1.LabelArchStable: "amd64", corev1.LabelOSStable: "linux", v1alpha1.LabelInstanceFamily: "t1",
		v1alpha1.LabelInstanceCPU: "2", v1alpha1.LabelInstanceMemory: "6144",
		corev1.LabelInstanceTypeStable: "t1.2VCPU-6GB",
	} {
		NewWithT(t).Expect(it.Requirements.Get(label).Values()).To(ConsistOf(want), label)
	}
	for label, want := range map[string][]string{
		corev1.LabelTopologyZone:      {"pve1", "pve2", "pve9"},
		corev1.LabelTopologyRegion:    {"east", "west"},
		v1alpha1.LabelInstanceCPUType: {"host", "x86-64-v2-AES", "kvm64"},
		v1alpha1.LabelInstanceImageID: {"901", "902", "909"},
	} {
		NewWithT(t).Expect(it.Requirements.Get(label).Values()).To(ContainElements(want), label)
	}
}

func TestListAvailability(t *testing.T) {
	t.Parallel()
	const small, large = "c1.1VCPU-2GB", "m1.8VCPU-64GB"
	const none, all, others = "!pve1 !pve2 !pve9", "pve1 pve2 pve9", "!pve1 pve2 pve9"
	type resources = map[string]*proxmox.Resources
	for name, c := range map[string]struct {
		change       func(resources)
		class        func(*v1alpha1.ProxmoxNodeClass)
		small, large string
	}{
		"all_free": {nil, nil, all, all},
		"half_full_host": {
			func(r resources) { r["east"].Guests = append(r["east"].Guests, guest(5, "pve1", 9)) }, nil, all, others,
		},
		"offline_host_stays_listed": {func(r resources) { r["east"].Hosts[0].Online = false }, nil, others, others},
		"host_without_template_stays_listed": {
			nil, func(nc *v1alpha1.ProxmoxNodeClass) { nc.Status.SelectedZones = nc.Status.SelectedZones[1:] }, others, others,
		},
		"deleted_template": {func(r resources) { r["west"].Guests = nil }, nil, "pve1 pve2 !pve9", "pve1 pve2 !pve9"},
		"full_template_storage": {
			func(r resources) { r["east"].Storages[1].UsedBytes = 880 * gib }, nil, "pve1 !pve2 pve9", "pve1 !pve2 pve9",
		},
		"unknown_storage": {nil, func(nc *v1alpha1.ProxmoxNodeClass) { nc.Spec.BootDevice.Storage = "ceph" }, none, none},
		"one_region":      {nil, func(nc *v1alpha1.ProxmoxNodeClass) { nc.Spec.Region = "west" }, "pve9", "pve9"},
		"region_not_polled_yet_stays_listed": {
			func(r resources) { delete(r, "west") }, func(nc *v1alpha1.ProxmoxNodeClass) {
				nc.Status.UnusableZones = []v1alpha1.UnusableZone{{Zone: "west/pve8", Reason: "no template"}}
			}, "pve1 pve2 !pve8 !pve9", "pve1 pve2 !pve8 !pve9",
		},
	} {
		g := NewWithT(t)
		v, class := newViewer(), newNodeClassWithAllHosts()
		p, _ := newProvider(t, v)
		p.List(class, "")
		if c.change != nil {
			v.change(c.change)
		}
		if c.class != nil {
			c.class(class)
		}
		for typ, want := range map[string]string{small: c.small, large: c.large} {
			it := find(t, p.List(class, ""), typ)
			g.Expect(offered(it)).To(Equal(want), "%s: %s is offered", name, typ)
			reasons := p.UnavailableReasons(class, typ)
			for host, available := range availability(it) {
				reason := reasons[zone("east", host)] + reasons[zone("west", host)]
				g.Expect(available).To(Equal(reason == ""), "%s: %s on %s: available", name, typ, host)
			}
		}
	}
}

func TestListKeepsOfferingsOfNodes(t *testing.T) {
	t.Parallel()
	v, class := newViewer(), newNodeClassWithAllHosts()
	p, _ := newProvider(t, v)
	labels := scheduling.NewLabelRequirements(p.Labels(class, "t1.2VCPU-6GB", zone("east", "pve1")))
	stillOffered := func(when string) {
		// The condition of Karpenter's drift check.
		NewWithT(t).Expect(find(t, p.List(class, ""), "t1.2VCPU-6GB").Offerings.HasCompatible(labels)).
			To(BeTrue(), "%s: the offering of a Node on pve1 is gone", when)
	}
	stillOffered("at first")
	v.change(func(r map[string]*proxmox.Resources) { r["east"].Hosts[0].Online = false })
	stillOffered("Host offline")
	v.change(func(r map[string]*proxmox.Resources) { r["east"].Guests = nil })
	stillOffered("template gone")
	class.Status.SelectedZones = class.Status.SelectedZones[1:]
	stillOffered("Host not selected")
	v.change(func(map[string]*proxmox.Resources) { v.configs = nil })
	stillOffered("configs not read")
	labels = scheduling.NewLabelRequirements(p.Labels(class, "t1.2VCPU-6GB", zone("west", "pve1")))
	NewWithT(t).Expect(find(t, p.List(class, ""), "t1.2VCPU-6GB").Offerings.HasCompatible(labels)).To(BeFalse(), "a nonexistent Host is offered")
}

func TestListUnchanged(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	v, class := newViewer(), newNodeClassWithAllHosts()
	p, _ := newProvider(t, v)
	first := p.List(class, "")
	g.Expect(&p.List(class.DeepCopy(), "")[0]).To(Equal(&first[0]), "nothing changed, but the list is new")
	v.publish() // a new generation that changes no offering
	g.Expect(&p.List(class, "")[0]).To(Equal(&first[0]), "no offering changed, but the list is new")
	// Nine CPUs in use on pve1: only types with more than seven CPUs change there.
	v.change(func(r map[string]*proxmox.Resources) {
		r["east"].Guests = append(r["east"].Guests, guest(5, "pve1", 9))
	})
	second := p.List(class, "")
	for n, it := range second {
		typ, _ := instancetype.DefaultCatalog().Get(it.Name)
		fitted := typ.MemoryBytes <= 64*gib
		g.Expect(it != first[n]).To(Equal(fitted && typ.CPUs > 7), "%s is a new object", it.Name)
		if fitted && !availability(first[n])["pve1"] {
			t.Errorf("%s was changed in place", it.Name)
		}
	}
	class.Spec.BootDevice.Size = "60G"
	g.Expect(p.List(class, "")[0]).NotTo(Equal(second[0]), "the class's disk changed, but the type is the same object")
}

func TestListByNodeClass(t *testing.T) {
	t.Parallel()
	p, clock := newProvider(t, newViewer())
	east, west := newNodeClassWithAllHosts(), newNodeClassWithAllHosts()
	east.Name, east.Spec.Region = "east", "east"
	west.Name, west.Spec.Region = "west", "west"
	for range 2 {
		NewWithT(t).Expect(p.List(east, "")[0].Offerings).To(HaveLen(2))
		NewWithT(t).Expect(p.List(west, "")[0].Offerings).To(HaveLen(1))
		clock.Step(2 * time.Hour) // idle lists are evicted and recomputed
		east.Spec.BootDevice.Size = "60G"
	}
}

func TestListConcurrently(t *testing.T) {
	t.Parallel()
	v := newViewer()
	p, _ := newProvider(t, v)
	var all sync.WaitGroup
	for n := range 8 {
		all.Go(func() {
			class := newNodeClassWithAllHosts()
			class.Name = string(rune('a' + n%3))
			for round := range 50 {
				switch n {
				case 0:
					v.change(func(r map[string]*proxmox.Resources) { r["east"].Hosts[0].Online = round%2 == 0 })
				case 1:
					p.MarkUnavailable(instancetype.OfferingSelector{Zone: zone("east", "pve2"), InstanceType: "c1.1VCPU-2GB"}, "x", time.Minute)
				default:
					if list := p.List(class, ""); len(list) != 20 || len(list[0].Allocatable()) == 0 {
						t.Errorf("the list has %d types", len(list))
					}
				}
			}
		})
	}
	all.Wait()
}

// staleViewer returns an outdated View once, like a caller that read it just before a
// newer one was published.
type staleViewer struct {
	*viewer
	outdated *inventory.View
}

func (l *staleViewer) View() inventory.View {
	if outdated := l.outdated; outdated != nil {
		l.outdated = nil
		return *outdated
	}
	return l.viewer.View()
}

// TestListWithOutdatedView checks that concurrent callers with an outdated View do not
// count as losses of an offering: three of those would delay it.
func TestListWithOutdatedView(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	v := &staleViewer{viewer: newViewer()}
	v.change(func(r map[string]*proxmox.Resources) {
		r["east"].Guests = append(r["east"].Guests, guest(50, "pve1", 16))
	})
	full := v.View()
	v.change(func(r map[string]*proxmox.Resources) { r["east"].Guests = r["east"].Guests[:len(r["east"].Guests)-1] })
	p, _ := newProvider(t, v)
	class := newNodeClassWithAllHosts()
	for range 4 {
		g.Expect(offers(t, p, class, "t1.2VCPU-6GB")).To(Equal("pve1 pve2 pve9"))
		v.outdated = &full
		g.Expect(offers(t, p, class, "t1.2VCPU-6GB")).To(Equal("pve1 pve2 pve9"), "the list was computed from the outdated View")
	}
}

// newBigProvider returns a provider with 100 Hosts, 60 types and 5 NodeClasses with a reserve.
func newBigProvider() (*instancetype.Provider, *viewer, []*v1alpha1.ProxmoxNodeClass) {
	v := &viewer{resources: map[string]*proxmox.Resources{}, configs: map[int]*proxmox.VMConfig{}}
	var selected []string
	for h := range 100 {
		name := fmt.Sprintf("pve%d", h)
		v.addHost("east", name, 900+h, "host")
		selected = append(selected, fmt.Sprintf("east/%s/%d", name, 900+h))
		for n := range 4 {
			v.resources["east"].Guests = append(v.resources["east"].Guests, guest(10_000+4*h+n, name, 2))
		}
	}
	v.publish()
	var types []instancetype.Type
	for n := range 60 {
		types = append(types, sized(1+n%16, int64(1024+1024*n)))
	}
	p := must(instancetype.New(instancetype.Deps{Inventory: v, Pricing: pricing(), Catalog: must(instancetype.NewCatalog(types))}))
	var classes []*v1alpha1.ProxmoxNodeClass
	for n := range 5 {
		class := newNodeClass(selected...)
		class.Name, class.Spec.PlacementStrategy.Reserve = fmt.Sprint("class", n), v1alpha1.ReserveLargestHost
		for h := range v1alpha1.MaxMemoryOverheads {
			learned := v1alpha1.MemoryOverhead{Image: ownership.ImageID(900+h, *v.configs[900+h]), BIOS: "seabios", Machine: "pc"}
			for size := range int64(30) {
				learned.Sizes = append(learned.Sizes, v1alpha1.MemoryOverheadSize{MemoryMiB: 1024 * (1 + size), OverheadMiB: 100 + 20*size})
			}
			class.Status.MemoryOverhead = append(class.Status.MemoryOverhead, learned)
		}
		classes = append(classes, class)
	}
	return p, v, classes
}

// BenchmarkListNewGeneration measures a new View that changes no offering.
func BenchmarkListNewGeneration(b *testing.B) {
	p, v, classes := newBigProvider()
	b.ReportAllocs()
	for b.Loop() {
		b.StopTimer()
		v.publish()
		b.StartTimer()
		for _, class := range classes {
			p.List(class, "")
		}
	}
}

func TestListUnchangedDoesNotAllocate(t *testing.T) {
	p, _ := newProvider(t, newViewer())
	class := newNodeClassWithAllHosts()
	class.Spec.PlacementStrategy.Reserve = v1alpha1.ReserveLargestHost
	p.List(class, "")
	NewWithT(t).Expect(testing.AllocsPerRun(100, func() { p.List(class, "") })).To(BeNumerically("<=", 0))
}

// The reserve leaves three CPUs: instance types with four are not offered, but a VM of exact
// size with three is launched.
func TestListReserve(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	v, class := newViewer(), newNodeClass("east/pve1/901", "east/pve2/902")
	v.change(func(r map[string]*proxmox.Resources) {
		r["east"].Guests = append(r["east"].Guests, guest(100, "pve1", 10), guest(101, "pve2", 3))
	})
	p, _ := newProvider(t, v)
	class.Spec.VMSize.Policy = v1alpha1.VMSizeExact
	claim := newClaim("2500m", "1Gi")
	g.Expect(offers(t, p, class, "c1.4VCPU-8GB")).To(Equal("pve1 pve2 !pve9"), "without a reserve")
	class.Spec.PlacementStrategy.Reserve = v1alpha1.ReserveLargestHost
	g.Expect(offers(t, p, class, "c1.4VCPU-8GB")).To(Equal("!pve1 !pve2 !pve9"))
	g.Expect(offers(t, p, class, "c1.2VCPU-4GB")).To(Equal("pve1 pve2 !pve9"))
	const want = "if pve1 failed, its guests with 10 CPUs and 1.0 GiB would not fit on the other hosts with 9 CPUs"
	g.Expect(p.UnavailableReasons(class, "c1.4VCPU-8GB")[zone("east", "pve2")]).To(ContainSubstring(want))
	g.Expect(choose(v, p, class, claim)).To(HaveField("Need.CPUs", 3))
	kept, violation := p.CheckReserve(class)
	g.Expect(kept).To(BeTrue())
	g.Expect(violation).To(BeEmpty())

	v.change(func(r map[string]*proxmox.Resources) { r["east"].Guests[len(r["east"].Guests)-1].CPUs = 7 })
	g.Expect(offers(t, p, class, "c1.1VCPU-2GB")).To(Equal("!pve1 !pve2 !pve9"), "another guest uses the reserve")
	g.Expect(choose(v, p, class, claim)).Error().To(HaveOccurred(), "another guest uses the reserve")
	kept, violation = p.CheckReserve(class)
	g.Expect(kept).To(BeTrue())
	g.Expect(violation).To(HavePrefix("region east: if pve1 failed"))
}
