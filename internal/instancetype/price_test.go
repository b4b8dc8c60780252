// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package instancetype_test

import (
	"testing"

	. "github.com/onsi/gomega"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instancetype"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/declared"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/observed"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

func TestPriceByHost(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	v, class := newViewer(), newNodeClassWithAllHosts()
	v.settings = parseSettings(t, `{"*": {"pve1": {"pricefactor": 2}, "pve9": {"pricefactor": 0.5}}}`)
	v.publish()
	p, _ := newProvider(t, v)
	pve2, pve9 := price(t, p, class, zone("east", "pve2")), price(t, p, class, zone("west", "pve9"))
	g.Expect(price(t, p, class, zone("east", "pve1"))).To(Equal(2 * pve2))
	g.Expect(pve9).To(Equal(pve2 / 2))
	// Karpenter expects the cheapest offering, so the VM is placed there, although
	// another Host has the same capacity.
	g.Expect(choose(v, p, class, newClaim("1m", "1Mi"))).To(And(HaveField("Zone", zone("west", "pve9")), HaveField("Price", pve9)))
	v.change(func(r map[string]*proxmox.Resources) { r["west"].Hosts[0].Online = false })
	g.Expect(choose(v, p, class, newClaim("1m", "1Mi"))).To(HaveField("Zone", zone("east", "pve2")), "want the next cheapest")
}

func TestPriceOfHostsWithSameName(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	v := newViewer()
	v.addHost("west", "pve1", 908, "host")
	v.settings = parseSettings(t, `{"west": {"pve1": {"pricefactor": 0.5}}, "east": {"pve1": {"pricefactor": 3}, "pve2": {"pricefactor": 3}}}`)
	v.publish()
	p, _ := newProvider(t, v)
	both := newNodeClass("east/pve1/901", "east/pve2/902", "west/pve1/908", "west/pve9/909")
	highest := price(t, p, both, zone("east", "pve1"))
	g.Expect(price(t, p, both, zone("west", "pve1"))).To(Equal(highest), "want the higher one for both")
	g.Expect(price(t, p, both, zone("east", "pve2"))).To(Equal(highest))
	g.Expect(price(t, p, both, zone("west", "pve9"))*3).To(Equal(highest), "a Host with a unique name must have its own price")
	// A class of one region has only one of them.
	west := newNodeClass("west/pve1/908", "west/pve9/909")
	west.Name, west.Spec.Region = "west", "west"
	g.Expect(price(t, p, west, zone("west", "pve1"))).To(Equal(price(t, p, west, zone("west", "pve9")) / 2))
}

func TestPriceFavorsLargerNodes(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	c := instancetype.DefaultCatalog()
	price := func(name string) float64 {
		typ, ok := c.Get(name)
		g.Expect(ok).To(BeTrue(), "no type %s", name)
		return pricing().Price(typ, 0)
	}
	g.Expect(price("t1.2VCPU-6GB")).To(BeNumerically("~", 0.025*2+0.001*6.442450944+0.005, 1e-12))
	g.Expect(2*price("s1.2VCPU-8GB")).To(BeNumerically(">", price("s1.4VCPU-16GB")), "two small Nodes are not more expensive than a large one")
	g.Expect(price("c1.2VCPU-4GB")).To(BeNumerically("<", price("m1.2VCPU-16GB")), "more memory or more CPUs must cost more")
	g.Expect(price("m1.1VCPU-8GB")).To(BeNumerically("<", price("c1.2VCPU-4GB")), "more memory or more CPUs must cost more")
}

func parseSettings(t *testing.T, text string) declared.Settings {
	t.Helper()
	settings, err := declared.ParseSettings([]byte(text))
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
	sleep := func(state declared.SleepState) {
		v.settings, v.sleeping = settings, map[observed.HostName]declared.Sleep{{Region: "west", Host: pve9}: {State: state}}
		v.change(func(r map[string]*proxmox.Resources) { r["west"].Hosts[0].Online = state == declared.ShuttingDown })
	}
	p, _ := newProvider(t, v)
	chosen := func() string {
		placed, err := choose(v, p, class, newClaim("1m", "1Mi"))
		g.Expect(err).NotTo(HaveOccurred())
		return placed.Zone.Host
	}
	east := func(host string) float64 { return price(t, p, class, zone("east", host)) }
	asleep := func() float64 { return price(t, p, class, zone("west", pve9)) }
	for _, state := range []declared.SleepState{declared.ShuttingDown, declared.Asleep, declared.Waking} {
		sleep(state)
		g.Expect(offers(t, p, class, oneType)).To(Equal("pve1 pve2 pve9"), string(state))
		highest := max(east("pve1"), east("pve2"))
		g.Expect(asleep()).To(And(BeNumerically(">", highest), BeNumerically("<=", 1.1*highest)), "%s: the price", state)
		g.Expect(chosen()).NotTo(Equal(pve9), string(state))
	}
	v.change(func(r map[string]*proxmox.Resources) {
		r["east"].Hosts[0].Online, r["east"].Hosts[1].Online = false, false
	})
	g.Expect(chosen()).To(Equal(pve9))
	g.Expect(asleep()).To(BeNumerically(">=", 10*east("pve1")), "without capacity elsewhere, the price")
	sleep(declared.WakeFailed)
	g.Expect(offers(t, p, class, oneType)).To(Equal("!pve1 !pve2 !pve9"))
}

// Karpenter finds the price of a Node on the Host that is on, not that of one with the same name
// that is asleep.
func TestPriceOfSleepingHostWithSameName(t *testing.T) {
	t.Parallel()
	v, class := newViewer(), newNodeClass("east/pve1/901", "east/pve2/902", "west/pve1/908", "west/pve9/909")
	v.addHost("west", "pve1", 908, "host")
	v.settings = parseSettings(t, `{"east": {"pve1": {"powermanagement": "Enabled"}}}`)
	v.sleeping = map[observed.HostName]declared.Sleep{{Region: "east", Host: "pve1"}: {State: declared.Asleep}}
	v.publish()
	p, _ := newProvider(t, v)
	found, ok := find(t, p.List(class, ""), oneType).OfferingPrice("pve1", karpv1.CapacityTypeOnDemand)
	NewWithT(t).Expect(ok).To(BeTrue())
	NewWithT(t).Expect(found).To(Equal(price(t, p, class, zone("west", "pve1"))))
}

// VMs on a Host with few of them are more expensive, so they are moved to others.
func TestPriceEnergy(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	v, class := newViewer(), newNodeClassWithAllHosts()
	v.settings = parseSettings(t, `{"*": {"*": {"powermanagement": "Enabled", "wattsidle": 50, "wattsfull": 200}, "pve9": {"powermanagement": "Report"}}}`)
	v.publish()
	p, _ := newProvider(t, v)
	base := price(t, p, class, zone("west", "pve9"))
	last := price(t, p, class, zone("east", "pve1"))
	g.Expect(last).To(Equal(3*base), "on an empty host the price")
	for _, cpus := range []int{1, 5, 9, 13} {
		v.change(func(r map[string]*proxmox.Resources) {
			r["east"].Guests = append(r["east"].Guests[:2:2], guest(100, "pve1", cpus))
		})
		g.Expect(price(t, p, class, zone("east", "pve1"))).To(BeNumerically("<", last), "with %d CPUs in use the price", cpus)
		last = price(t, p, class, zone("east", "pve1"))
	}
	g.Expect(last).To(Equal(1.25*base), "on a full host the price")
	g.Expect(price(t, p, class, zone("east", "pve2"))).To(BeNumerically(">", last), "prices of the other hosts")
	g.Expect(price(t, p, class, zone("west", "pve9"))).To(Equal(base), "prices of the other hosts")
}
