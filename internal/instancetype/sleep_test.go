// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package instancetype_test

import (
	"testing"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instancetype"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/placement"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

func parseSettings(t *testing.T, text string) inventory.Settings {
	t.Helper()
	settings, err := inventory.ParseSettings([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return settings
}

// A Host that was shut down to save energy is offered, and used last.
func TestListSleeping(t *testing.T) {
	t.Parallel()
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
		if err != nil {
			t.Fatal(err)
		}
		return placed
	}
	for _, state := range []inventory.SleepState{inventory.ShuttingDown, inventory.Asleep, inventory.Waking} {
		sleep(state)
		offerings := find(t, p.List(class, "")[:1], p.List(class, "")[0].Name).Offerings
		highest, asleep := 0.0, 0.0
		for _, o := range offerings {
			if o.Zone() == pve9 {
				asleep = o.Price
				if !o.Available {
					t.Errorf("%s: the host is not offered", state)
				}
			} else {
				highest = max(highest, o.Price)
			}
		}
		if asleep < 10*highest {
			t.Errorf("%s: the price is %g, the highest one of other hosts %g", state, asleep, highest)
		}
		if placed := choose(); placed.Zone.Host == pve9 {
			t.Errorf("%s: the VM is placed on it", state)
		}
	}
	v.change(func(r map[string]*proxmox.Resources) {
		r["east"].Hosts[0].Online, r["east"].Hosts[1].Online = false, false
	})
	if placed := choose(); placed.Zone.Host != pve9 {
		t.Errorf("the VM is placed on %s", placed.Zone)
	}
	sleep(inventory.WakeFailed)
	if got := availability(find(t, p.List(class, ""), oneType)); got[pve9] {
		t.Error("a host that does not wake is offered")
	}
}

// VMs on a Host with few of them are more expensive, so they are moved to others.
func TestPriceEnergy(t *testing.T) {
	t.Parallel()
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
	if last != 3*base {
		t.Errorf("on an empty host the price is %g, want 1 + 0.25 x 8 times %g", last, base)
	}
	for _, cpus := range []int{1, 5, 9, 13} {
		v.change(func(r map[string]*proxmox.Resources) {
			r["east"].Guests = append(r["east"].Guests[:2:2], proxmox.GuestRow{VMID: 100, Kind: proxmox.KindQEMU, Host: "pve1", Status: "running", CPUs: cpus, MemoryBytes: gib})
		})
		if now := price("pve1"); now >= last {
			t.Errorf("with %d CPUs in use the price is %g, not below %g", cpus, now, last)
		}
		last = price("pve1")
	}
	if last != 1.25*base {
		t.Errorf("on a full host the price is %g, want 1.25 times %g", last, base)
	}
	if price("pve2") <= last || price("pve9") != base {
		t.Errorf("prices of the other hosts: %g, %g", price("pve2"), price("pve9"))
	}
}
