// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package instancetype_test

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

func TestListFlappingOffering(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	v, class := newViewer(), newNodeClassWithAllHosts()
	p, clock := newProvider(t, v)
	offered := func() bool { return availability(find(t, p.List(class, ""), oneType))["pve1"] }
	online := func(on bool) {
		clock.Step(5 * time.Second)
		v.change(func(r map[string]*proxmox.Resources) { r["east"].Hosts[0].Online = on })
	}
	offered()
	for n := range 2 {
		if online(false); offered() {
			t.Fatalf("an offline Host is offered, time %d", n)
		}
		if online(true); !offered() {
			t.Fatalf("a Host that is online again is not offered immediately, time %d", n)
		}
	}
	online(false)
	g.Expect(offered()).To(BeFalse(), "an offline Host is offered")
	online(true)
	g.Expect(offered()).To(BeFalse(), "the third time within minutes, it must be delayed")
	g.Expect(p.UnavailableReasons(class, oneType)[zone("east", "pve1")]).To(ContainSubstring("became unavailable 3 times"))
	g.Expect(availability(find(t, p.List(class, ""), oneType))["pve2"]).To(BeTrue(), "the other Host is delayed too")
	clock.Step(30 * time.Second)
	g.Expect(offered()).To(BeTrue(), "after the backoff it is still delayed")
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

// VMs of this provider fill a Host and are deleted: that is no reason to hide its
// capacity. Guests of other users are.
func TestListOwnFills(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		fill, empty func(v *viewer, now time.Time)
		want        bool
	}{
		"own": {
			fill: func(v *viewer, now time.Time) {
				v.reserved = map[string]inventory.Reservation{"uid": {
					ClaimUID: "uid", Region: "east", Host: "pve1", VMID: 20000, Amount: inventory.Amount{CPUs: 16, MemoryBytes: gib}, CreatedAt: now,
				}}
				v.publish()
			},
			empty: func(v *viewer, _ time.Time) { v.reserved = nil; v.publish() },
			want:  true,
		},
		"other_users": {
			fill: func(v *viewer, _ time.Time) {
				v.change(func(r map[string]*proxmox.Resources) {
					r["east"].Guests = append(r["east"].Guests, proxmox.GuestRow{VMID: 300, Kind: proxmox.KindQEMU, Host: "pve1", Status: "running", CPUs: 16, MemoryBytes: gib})
				})
			},
			empty: func(v *viewer, _ time.Time) {
				v.change(func(r map[string]*proxmox.Resources) { r["east"].Guests = r["east"].Guests[:len(r["east"].Guests)-1] })
			},
			want: false,
		},
		"own_and_host_offline": {
			fill: func(v *viewer, now time.Time) {
				v.reserved = map[string]inventory.Reservation{"uid": {ClaimUID: "uid", Region: "east", Host: "pve1", VMID: 20000, Amount: inventory.Amount{CPUs: 1}, CreatedAt: now}}
				v.change(func(r map[string]*proxmox.Resources) { r["east"].Hosts[0].Online = false })
			},
			empty: func(v *viewer, _ time.Time) {
				v.change(func(r map[string]*proxmox.Resources) { r["east"].Hosts[0].Online = true })
			},
			want: false,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := NewWithT(t)
			v, class := newViewer(), newNodeClassWithAllHosts()
			p, clock := newProvider(t, v)
			offered := func() bool { return availability(find(t, p.List(class, ""), oneType))["pve1"] }
			offered()
			got := false
			for range 3 {
				clock.Step(5 * time.Second)
				test.fill(v, clock.Now())
				g.Expect(offered()).To(BeFalse(), "the Host is full, but offered")
				clock.Step(5 * time.Second)
				test.empty(v, clock.Now())
				got = offered()
			}
			g.Expect(got).To(Equal(test.want), "after the third time, the Host is offered")
		})
	}
}
