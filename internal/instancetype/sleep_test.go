// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package instancetype_test

import (
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instancetype"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/placement"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

func parseSettings(t *testing.T, text string) inventory.Settings {
	t.Helper()
	settings, err := inventory.ParseSettings([]byte(text))
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	return settings
}

// A Host that was shut down to save energy is offered, and used last.
func TestListSleeping(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	v, class := newViewer(), newNodeClassWithAllHosts()
	const pve9 = "pve9"
	settings := parseSettings(t, `{"west": {"pve9": {"powermanagement": "Enabled", "pricefactor": 0.1}}, "east": {"pve1": {"pricefactor": 5}}}`)
	sleep := func(state inventory.SleepState) {
		v.settings = settings.WithSleeping(map[inventory.HostName]inventory.Sleep{{Region: "west", Host: pve9}: {State: state}})
		v.change(func(r map[string]*proxmox.Resources) { r["west"].Hosts[0].Online = state == inventory.ShuttingDown })
	}
	p, _ := newProvider(t, v)
	choose := func() placement.Placement {
		placed, err := placement.Choose(v.View(), must(p.Request(class, newClaim("1m", "1Mi"), instancetype.RequestOptions{})))
		g.Expect(err).NotTo(HaveOccurred())
		return placed
	}
	for _, state := range []inventory.SleepState{inventory.ShuttingDown, inventory.Asleep, inventory.Waking} {
		sleep(state)
		offerings := find(t, p.List(class, "")[:1], p.List(class, "")[0].Name).Offerings
		highest, asleep := 0.0, 0.0
		for _, o := range offerings {
			if o.Zone() == pve9 {
				asleep = o.Price
				g.Expect(o.Available).To(BeTrue(), "%s: the host is not offered", state)
			} else {
				highest = max(highest, o.Price)
			}
		}
		g.Expect(asleep).To(BeNumerically(">", highest), "%s: the price", state)
		g.Expect(asleep).To(BeNumerically("<=", 1.1*highest), "%s: the price", state)
		g.Expect(choose().Zone.Host).NotTo(Equal(pve9), "%s: the VM is placed on it", state)
	}
	v.change(func(r map[string]*proxmox.Resources) {
		r["east"].Hosts[0].Online, r["east"].Hosts[1].Online = false, false
	})
	g.Expect(choose().Zone.Host).To(Equal(pve9))
	prices := map[string]float64{}
	for _, o := range find(t, p.List(class, ""), oneType).Offerings {
		prices[o.Zone()] = o.Price
	}
	g.Expect(prices[pve9]).To(BeNumerically(">=", 10*prices["pve1"]), "without capacity elsewhere, the price")
	sleep(inventory.WakeFailed)
	g.Expect(availability(find(t, p.List(class, ""), oneType))[pve9]).To(BeFalse(), "a host that does not wake is offered")
}

// Karpenter finds the price of a Node on the Host that is on, not that of one with the same name
// that is asleep.
func TestPriceOfSleepingHostWithSameName(t *testing.T) {
	t.Parallel()
	v, class := newViewer(), newNodeClass("east/pve1/901", "east/pve2/902", "west/pve1/908", "west/pve9/909")
	v.addHost("west", "pve1", 908, "host")
	v.settings = parseSettings(t, `{"east": {"pve1": {"powermanagement": "Enabled"}}}`).WithSleeping(map[inventory.HostName]inventory.Sleep{{Region: "east", Host: "pve1"}: {State: inventory.Asleep}})
	v.publish()
	p, _ := newProvider(t, v)
	it := find(t, p.List(class, ""), oneType)
	west := 0.0
	for _, o := range it.Offerings {
		if o.Zone() == "pve1" && o.Requirements.Get(corev1.LabelTopologyRegion).Has("west") {
			west = o.Price
		}
	}
	if price, ok := it.OfferingPrice("pve1", karpv1.CapacityTypeOnDemand); !ok || price != west {
		t.Errorf("the price of a Node on pve1 is %g, that of the offering in west %g", price, west)
	}
}

// VMs on a Host with few of them are more expensive, so they are moved to others.
func TestPriceEnergy(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	v, class := newViewer(), newNodeClassWithAllHosts()
	v.settings = parseSettings(t, `{"*": {"*": {"powermanagement": "Enabled", "wattsidle": 50, "wattsfull": 200}, "pve9": {"powermanagement": "Report"}}}`)
	v.publish()
	p, _ := newProvider(t, v)
	price := func(host string) float64 {
		for _, o := range find(t, p.List(class, ""), oneType).Offerings {
			if o.Zone() == host {
				return o.Price
			}
		}
		return 0
	}
	base := price("pve9")
	last := price("pve1")
	g.Expect(last).To(Equal(3*base), "on an empty host the price")
	for _, cpus := range []int{1, 5, 9, 13} {
		v.change(func(r map[string]*proxmox.Resources) {
			r["east"].Guests = append(r["east"].Guests[:2:2], proxmox.GuestRow{VMID: 100, Kind: proxmox.KindQEMU, Host: "pve1", Status: "running", CPUs: cpus, MemoryBytes: gib})
		})
		g.Expect(price("pve1")).To(BeNumerically("<", last), "with %d CPUs in use the price", cpus)
		last = price("pve1")
	}
	g.Expect(last).To(Equal(1.25*base), "on a full host the price")
	g.Expect(price("pve2")).To(BeNumerically(">", last), "prices of the other hosts")
	g.Expect(price("pve9")).To(Equal(base), "prices of the other hosts")
}
