// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package instancetype_test

import (
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instancetype"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/placement"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

func TestPriceByHost(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	v, class := newViewer(), newNodeClassWithAllHosts()
	var err error
	if v.settings, err = inventory.ParseSettings([]byte(`{"*": {"pve1": {"pricefactor": 2}, "pve9": {"pricefactor": 0.5}}}`)); err != nil {
		t.Fatal(err)
	}
	v.publish()
	p, _ := newProvider(t, v)
	prices := map[string]float64{}
	for _, o := range find(t, p.List(class, ""), oneType).Offerings {
		prices[o.Zone()] = o.Price
	}
	g.Expect(prices["pve1"]).To(Equal(2 * prices["pve2"]))
	g.Expect(prices["pve9"]).To(Equal(prices["pve2"] / 2))
	// Karpenter expects the cheapest offering, so the VM is placed there, although
	// another Host has the same capacity.
	placed, err := placement.Choose(v.View(), must(p.Request(class, newClaim("1m", "1Mi"), instancetype.RequestOptions{})))
	if err != nil || placed.Zone != zone("west", "pve9") || placed.Price != prices["pve9"] {
		t.Errorf("placed on %s at %g (%v), want pve9", placed.Zone, placed.Price, err)
	}
	v.change(func(r map[string]*proxmox.Resources) { r["west"].Hosts[0].Online = false })
	placed, err = placement.Choose(v.View(), must(p.Request(class, newClaim("1m", "1Mi"), instancetype.RequestOptions{})))
	g.Expect(err).NotTo(HaveOccurred(), "want the next cheapest")
	g.Expect(placed.Zone).To(Equal(zone("east", "pve2")), "want the next cheapest")
}

// TestPriceOfHostsWithSameName checks that Hosts with the same name have the same price.
// Karpenter finds the price of a Node by zone and capacity type and takes the first
// match. If the prices differed, a Node on the cheaper Host would be replaced forever.
func TestPriceOfHostsWithSameName(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	v := newViewer()
	v.addHost("west", "pve1", 908, "host")
	var err error
	if v.settings, err = inventory.ParseSettings([]byte(`{"west": {"pve1": {"pricefactor": 0.5}}, "east": {"pve1": {"pricefactor": 3}, "pve2": {"pricefactor": 3}}}`)); err != nil {
		t.Fatal(err)
	}
	v.publish()
	p, _ := newProvider(t, v)
	price := func(class *v1alpha1.ProxmoxNodeClass, region, host string) float64 {
		t.Helper()
		for _, o := range find(t, p.List(class, ""), oneType).Offerings {
			if o.Zone() == host && o.Requirements.Get(corev1.LabelTopologyRegion).Has(region) {
				return o.Price
			}
		}
		t.Fatalf("%s/%s is not offered", region, host)
		return 0
	}
	both := newNodeClass("east/pve1/901", "east/pve2/902", "west/pve1/908", "west/pve9/909")
	if east, west := price(both, "east", "pve1"), price(both, "west", "pve1"); east != west || east != price(both, "east", "pve2") {
		t.Errorf("pve1 costs %g in east and %g in west, want the higher one for both", east, west)
	}
	g.Expect(price(both, "west", "pve9")*3).To(Equal(price(both, "east", "pve1")), "a Host with a unique name must have its own price")
	// A class of one region has only one of them.
	west := newNodeClass("west/pve1/908", "west/pve9/909")
	west.Name, west.Spec.Region = "west", "west"
	g.Expect(price(west, "west", "pve1")).To(Equal(price(west, "west", "pve9") / 2))
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
	if got, want := price("t1.2VCPU-6GB"), 0.025*2+0.001*6.442450944+0.005; got < want-1e-12 || got > want+1e-12 {
		t.Errorf("t1.2VCPU-6GB costs %g, want %g", got, want)
	}
	g.Expect(2*price("s1.2VCPU-8GB")).To(BeNumerically(">", price("s1.4VCPU-16GB")), "two small Nodes are not more expensive than a large one")
	g.Expect(price("c1.2VCPU-4GB")).To(BeNumerically("<", price("m1.2VCPU-16GB")), "more memory or more CPUs must cost more")
	g.Expect(price("m1.1VCPU-8GB")).To(BeNumerically("<", price("c1.2VCPU-4GB")), "more memory or more CPUs must cost more")
}
