// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package instancetype_test

import (
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
		if r := it.Requirements.Get(karpv1.CapacityTypeLabelKey); r.Len() != 1 || !r.Has(name) {
			t.Errorf("%s has the capacity type %s", name, r)
		}
		labels := p.Labels(class, name, zone("east", "pve1"))
		if price := disruption.ResolveOfferingPrice(labels, it); price != want || len(it.Offerings) != 3 {
			t.Errorf("a Node of %s costs %g with %d offerings, want %g with 3", name, price, len(it.Offerings), want)
		}
		NewWithT(t).Expect(p.CapacityType(name)).To(Equal(name))
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
		if r := it.Requirements.Get(label); r.Len() != 1 || !r.Has(want) {
			t.Errorf("%s is %s, want %s", label, r, want)
		}
	}
	for label, want := range map[string][]string{
		corev1.LabelTopologyZone:      {"pve1", "pve2", "pve9"},
		corev1.LabelTopologyRegion:    {"east", "west"},
		v1alpha1.LabelInstanceCPUType: {"host", "x86-64-v2-AES", "kvm64"},
		v1alpha1.LabelInstanceImageID: {"901", "902", "909"},
	} {
		r := it.Requirements.Get(label)
		for _, value := range want {
			NewWithT(t).Expect(r.Has(value)).To(BeTrue(), "%v", label)
		}
	}
}

func TestListAvailability(t *testing.T) {
	t.Parallel()
	const small, large = "c1.1VCPU-2GB", "m1.8VCPU-64GB"
	for name, c := range map[string]struct {
		change       func(map[string]*proxmox.Resources)
		class        func(*v1alpha1.ProxmoxNodeClass)
		small, large map[string]bool
	}{
		"all_free": {
			small: map[string]bool{"pve1": true, "pve2": true, "pve9": true},
			large: map[string]bool{"pve1": true, "pve2": true, "pve9": true},
		},
		"half_full_host": {
			change: func(r map[string]*proxmox.Resources) {
				r["east"].Guests = append(r["east"].Guests, proxmox.GuestRow{VMID: 5, Host: "pve1", Status: "running", CPUs: 9, MemoryBytes: gib})
			},
			small: map[string]bool{"pve1": true, "pve2": true, "pve9": true},
			large: map[string]bool{"pve1": false, "pve2": true, "pve9": true},
		},
		"offline_host_stays_listed": {
			change: func(r map[string]*proxmox.Resources) { r["east"].Hosts[0].Online = false },
			small:  map[string]bool{"pve1": false, "pve2": true, "pve9": true},
			large:  map[string]bool{"pve1": false, "pve2": true, "pve9": true},
		},
		"host_without_template_stays_listed": {
			class: func(nc *v1alpha1.ProxmoxNodeClass) { nc.Status.SelectedZones = nc.Status.SelectedZones[1:] },
			small: map[string]bool{"pve1": false, "pve2": true, "pve9": true},
			large: map[string]bool{"pve1": false, "pve2": true, "pve9": true},
		},
		"deleted_template": {
			change: func(r map[string]*proxmox.Resources) { r["west"].Guests = nil },
			small:  map[string]bool{"pve1": true, "pve2": true, "pve9": false},
			large:  map[string]bool{"pve1": true, "pve2": true, "pve9": false},
		},
		"full_template_storage": {
			change: func(r map[string]*proxmox.Resources) { r["east"].Storages[1].UsedBytes = 880 * gib },
			small:  map[string]bool{"pve1": true, "pve2": false, "pve9": true},
			large:  map[string]bool{"pve1": true, "pve2": false, "pve9": true},
		},
		"unknown_storage": {
			class: func(nc *v1alpha1.ProxmoxNodeClass) { nc.Spec.BootDevice.Storage = "ceph" },
			small: map[string]bool{"pve1": false, "pve2": false, "pve9": false},
			large: map[string]bool{"pve1": false, "pve2": false, "pve9": false},
		},
		"one_region": {
			class: func(nc *v1alpha1.ProxmoxNodeClass) { nc.Spec.Region = "west" },
			small: map[string]bool{"pve9": true},
			large: map[string]bool{"pve9": true},
		},
		"region_not_polled_yet_stays_listed": {
			change: func(r map[string]*proxmox.Resources) { delete(r, "west") },
			class: func(nc *v1alpha1.ProxmoxNodeClass) {
				nc.Status.UnusableZones = []v1alpha1.UnusableZone{{Zone: "west/pve8", Reason: "no template"}}
			},
			small: map[string]bool{"pve1": true, "pve2": true, "pve8": false, "pve9": false},
			large: map[string]bool{"pve1": true, "pve2": true, "pve8": false, "pve9": false},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
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
			list := p.List(class, "")
			for typ, want := range map[string]map[string]bool{small: c.small, large: c.large} {
				g.Expect(availability(find(t, list, typ))).To(Equal(want), "%s is offered", typ)
				reasons := p.UnavailableReasons(class, typ)
				for host, available := range want {
					reason := reasons[zone("east", host)] + reasons[zone("west", host)]
					g.Expect(available).To(Equal(reason == ""), "%s on %s: available", typ, host)
				}
			}
		})
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
	v.mu.Lock()
	v.configs = nil
	v.mu.Unlock()
	v.publish()
	stillOffered("configs not read")
	if other := scheduling.NewLabelRequirements(p.Labels(class, "t1.2VCPU-6GB", zone("west", "pve1"))); find(t, p.List(class, ""), "t1.2VCPU-6GB").Offerings.HasCompatible(other) {
		t.Error("a nonexistent Host is offered")
	}
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
		r["east"].Guests = append(r["east"].Guests, proxmox.GuestRow{VMID: 5, Host: "pve1", Status: "running", CPUs: 9, MemoryBytes: gib})
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
		if n := len(p.List(east, "")[0].Offerings); n != 2 {
			t.Errorf("the class of region east has %d zones", n)
		}
		if n := len(p.List(west, "")[0].Offerings); n != 1 {
			t.Errorf("the class of region west has %d zones", n)
		}
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
	v := &staleViewer{viewer: newViewer()}
	v.change(func(r map[string]*proxmox.Resources) {
		r["east"].Guests = append(r["east"].Guests, proxmox.GuestRow{VMID: 50, Kind: proxmox.KindQEMU, Host: "pve1", Status: "running", CPUs: 16, MemoryBytes: 60 * gib})
	})
	full := v.View()
	v.change(func(r map[string]*proxmox.Resources) { r["east"].Guests = r["east"].Guests[:len(r["east"].Guests)-1] })
	p, _ := newProvider(t, v)
	class := newNodeClassWithAllHosts()
	for range 4 {
		if got := availability(find(t, p.List(class, ""), "t1.2VCPU-6GB")); !got["pve1"] {
			t.Fatalf("pve1 has capacity, but is unavailable: %v, %v", got, p.UnavailableReasons(class, "t1.2VCPU-6GB"))
		}
		v.outdated = &full
		NewWithT(t).Expect(availability(find(t, p.List(class, ""), "t1.2VCPU-6GB"))["pve1"]).To(BeTrue(), "the list was computed from the outdated View")
	}
}
