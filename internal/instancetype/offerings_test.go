// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package instancetype_test

import (
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	corev1 "k8s.io/api/core/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instancetype"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/placement"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

const oneType = "c1.1VCPU-2GB"

func TestOfferingsThatComeAndGoAreHeldBack(t *testing.T) {
	t.Parallel()
	v, class := newViewer(), everywhere()
	p, clock := newProvider(t, v)
	offered := func() bool { return availability(find(t, p.List(class), oneType))["pve1"] }
	online := func(on bool) {
		clock.Step(5 * time.Second)
		v.change(func(r map[string]*proxmox.Resources) { r["east"].Hosts[0].Online = on })
	}
	offered()
	for n := range 2 {
		if online(false); offered() {
			t.Fatalf("a Host that was lost is offered, time %d", n)
		}
		if online(true); !offered() {
			t.Fatalf("a Host that came back is not offered at once, time %d", n)
		}
	}
	online(false)
	if offered() {
		t.Error("a Host that was lost is offered")
	}
	online(true)
	if offered() {
		t.Error("the third time within minutes, it must prove itself first")
	}
	if reason := p.UnavailableReasons(class, oneType)[zone("east", "pve1")]; !strings.Contains(reason, "lost 3 times") {
		t.Errorf("the reason is %q", reason)
	}
	if !availability(find(t, p.List(class), oneType))["pve2"] {
		t.Error("its neighbour is held back too")
	}
	clock.Step(30 * time.Second)
	if !offered() {
		t.Error("after its time it is still held back, though nothing else changed")
	}
	if reason := p.UnavailableReasons(class, oneType)[zone("east", "pve1")]; reason != "" {
		t.Errorf("it is offered, but the reason is %q", reason)
	}
	clock.Step(6 * time.Minute)
	online(false)
	offered()
	if online(true); !offered() {
		t.Error("old losses still count")
	}
}

func TestPoolRulesShapeThePoolsOfferings(t *testing.T) {
	t.Parallel()
	for affinity, want := range map[v1alpha1.PoolAffinity]map[string]bool{
		v1alpha1.PoolAffinityNone:          {"pve1": true, "pve2": true, "pve9": true},
		v1alpha1.PoolAffinitySameHost:      {"pve1": false, "pve2": true, "pve9": false},
		v1alpha1.PoolAffinitySeparateHosts: {"pve1": true, "pve2": false, "pve9": true},
	} {
		v, class := newViewer(), everywhere()
		class.Spec.PlacementStrategy.PoolAffinity = affinity
		v.reserved = map[string]inventory.Reservation{"a": {ClaimUID: "a", NodePool: "db", Region: "east", Host: "pve2", VMID: 20001}}
		v.publish()
		p, _ := newProvider(t, v)
		if got := availability(find(t, p.ListFor(class, "db"), oneType)); !maps.Equal(got, want) {
			t.Errorf("%s: pool db is offered %v, want %v", affinity, got, want)
		}
		all := map[string]bool{"pve1": true, "pve2": true, "pve9": true}
		if got := availability(find(t, p.ListFor(class, "web"), oneType)); !maps.Equal(got, all) {
			t.Errorf("%s: pool web, which has no VM, is offered %v", affinity, got)
		}
		claim := newClaim("1m", "1Mi")
		claim.Labels["karpenter.sh/nodepool"] = "db"
		placed, err := placement.Choose(v.View(), must(p.Request(class, claim, instancetype.RequestOptions{})))
		if err != nil || !want[placed.Zone.Host] {
			t.Errorf("%s: the claim was placed on %s (%v), which is not offered", affinity, placed.Zone, err)
		}
	}
}

func TestHostsHaveTheirPrice(t *testing.T) {
	t.Parallel()
	v, class := newViewer(), everywhere()
	var err error
	if v.settings, err = inventory.ParseSettings([]byte(`{"*": {"pve1": {"pricefactor": 2}, "pve9": {"pricefactor": 0.5}}}`)); err != nil {
		t.Fatal(err)
	}
	v.publish()
	p, _ := newProvider(t, v)
	prices := map[string]float64{}
	for _, o := range find(t, p.List(class), oneType).Offerings {
		prices[o.Zone()] = o.Price
	}
	if prices["pve1"] != 2*prices["pve2"] || prices["pve9"] != prices["pve2"]/2 {
		t.Errorf("the prices are %v", prices)
	}
	// The cheapest offering is what Karpenter counts on: it is where the VM goes,
	// though another Host has the same room.
	placed, err := placement.Choose(v.View(), must(p.Request(class, newClaim("1m", "1Mi"), instancetype.RequestOptions{})))
	if err != nil || placed.Zone != zone("west", "pve9") || placed.Price != prices["pve9"] {
		t.Errorf("placed on %s at %g (%v), want pve9", placed.Zone, placed.Price, err)
	}
	v.change(func(r map[string]*proxmox.Resources) { r["west"].Hosts[0].Online = false })
	placed, err = placement.Choose(v.View(), must(p.Request(class, newClaim("1m", "1Mi"), instancetype.RequestOptions{})))
	if err != nil || placed.Zone != zone("east", "pve2") {
		t.Errorf("placed on %s (%v), want the next cheapest", placed.Zone, err)
	}
}

// Karpenter looks up what a Node costs by zone and capacity type, and takes the first
// offering that it finds. Would hosts of one name differ in price, a Node on the cheaper
// one would be replaced for ever.
func TestHostsOfOneNameHaveOnePrice(t *testing.T) {
	t.Parallel()
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
		for _, o := range find(t, p.List(class), oneType).Offerings {
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
	if price(both, "west", "pve9")*3 != price(both, "east", "pve1") {
		t.Error("a name that is used once has its own price")
	}
	// A class of one region has one of them only.
	west := newNodeClass("west/pve1/908", "west/pve9/909")
	west.Name, west.Spec.Region = "west", "west"
	if got, want := price(west, "west", "pve1"), price(west, "west", "pve9")/2; got != want {
		t.Errorf("pve1 costs %g, want %g", got, want)
	}
}

func TestArchitectureAndSystemFollowHostAndTemplate(t *testing.T) {
	t.Parallel()
	v, class := newViewer(), everywhere()
	v.resources["east"].Hosts[1].Arch = "aarch64"
	v.configs[909].Options["ostype"] = "win11"
	v.publish()
	p, _ := newProvider(t, v)
	for host, want := range map[string][2]string{"pve1": {"amd64", "linux"}, "pve2": {"arm64", "linux"}, "pve9": {"amd64", "windows"}} {
		region := map[string]string{"pve9": "west"}[host]
		if region == "" {
			region = "east"
		}
		labels := p.Labels(class, oneType, zone(region, host))
		if labels[corev1.LabelArchStable] != want[0] || labels[corev1.LabelOSStable] != want[1] {
			t.Errorf("a Node on %s is %s, %s, want %v", host, labels[corev1.LabelArchStable], labels[corev1.LabelOSStable], want)
		}
	}
	for key, want := range map[string]map[string][]string{
		corev1.LabelArchStable: {"arm64": {"pve2"}, "amd64": {"pve1", "pve9"}},
		corev1.LabelOSStable:   {"windows": {"pve9"}, "linux": {"pve1", "pve2"}},
	} {
		for value, zones := range want {
			got := hosts(must(p.Request(class, newClaim("1m", "1Mi", requirement(key, corev1.NodeSelectorOpIn, value)), instancetype.RequestOptions{})))
			if strings.Join(got, ",") != strings.Join(zones, ",") {
				t.Errorf("%s %s may go to %v, want %v", key, value, got, zones)
			}
		}
	}
}

func TestOfferingsAreMeasured(t *testing.T) {
	t.Parallel()
	v, class := newViewer(), everywhere()
	v.resources["east"].Hosts[0].Online = false
	v.publish()
	registry := prometheus.NewRegistry()
	p, err := instancetype.New(instancetype.Deps{Inventory: v, Pricing: pricing(), Registerer: registry, VolumeLimits: map[string]int{"csi.example": 24}})
	if err != nil {
		t.Fatal(err)
	}
	if limits := find(t, p.List(class), oneType).VolumeAttachmentLimits; limits["csi.example"] != 24 {
		t.Errorf("the volume limits are %v", limits)
	}
	if n, err := testutil.GatherAndCount(registry, "karpenter_proxmox_offering_available"); err != nil || n != 60 {
		t.Errorf("%d offerings are measured (%v), want 20 types on 3 Hosts", n, err)
	}
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		if family.GetName() != "karpenter_proxmox_offering_available" {
			continue
		}
		for _, m := range family.GetMetric() {
			labels := map[string]string{}
			for _, l := range m.GetLabel() {
				labels[l.GetName()] = l.GetValue()
			}
			if labels["instance_type"] == oneType && (m.GetGauge().GetValue() == 1) != (labels["host"] != "pve1") {
				t.Errorf("the offering %v is %g", labels, m.GetGauge().GetValue())
			}
		}
	}
}
