// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package placement_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/placement"
)

func zones(hosts ...string) []placement.Zone {
	var all []placement.Zone
	for _, h := range hosts {
		all = append(all, zone(h))
	}
	return all
}

func TestChooseCheapestOption(t *testing.T) {
	t.Parallel()
	env := newEnv()
	env.host("r", "small", 4, 16)
	env.host("r", "large", 32, 128)
	request := placement.Request{ClaimUID: "a", NodePool: "p", Options: []placement.Option{
		{InstanceType: "cheap", Price: 1, Need: need(8, 8), Zones: zones("small")},
		{InstanceType: "middle", Price: 2, Need: need(8, 8), Zones: zones("small", "large")},
		{InstanceType: "expensive", Price: 3, Need: need(1, 1), Zones: zones("small", "large")},
	}}
	got, err := placement.Choose(env.view(), request)
	if err != nil || got.InstanceType != "middle" || got.Zone != zone("large") || got.Price != 2 {
		t.Errorf("got %+v (%v), want middle on large", got, err)
	}
}

func TestChooseBalanced(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	env := newEnv()
	env.host("r", "cpu-full", 16, 64)
	env.guest("r", "cpu-full", 100, 12, 4)
	env.host("r", "memory-full", 16, 64)
	env.guest("r", "memory-full", 101, 2, 56)
	env.host("r", "half", 16, 64)
	env.guest("r", "half", 102, 8, 32)
	request := placement.Request{ClaimUID: "a", Strategy: v1alpha1.ZoneBalanceBalanced,
		Options: []placement.Option{{InstanceType: "t", Need: need(2, 4), Zones: zones("cpu-full", "memory-full", "half")}}}
	g.Expect(placement.Choose(env.view(), request)).To(HaveField("Zone", Equal(zone("half"))), "want half: the scarcer resource decides")
}

func TestChooseAvailabilityFirst(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	env := newEnv()
	env.host("r", "pve1", 16, 64)
	env.host("r", "pve2", 16, 64)
	env.guest("r", "pve2", 100, 12, 40) // fuller, but without a VM of the NodePool
	env.reserve(inventory.Reservation{ClaimUID: "x", NodePool: "p", Region: "r", Host: "pve1", VMID: 20001, Fulfilled: true})
	request := placement.Request{ClaimUID: "a", NodePool: "p", Strategy: v1alpha1.ZoneBalanceAvailabilityFirst,
		Options: []placement.Option{{InstanceType: "t", Need: need(2, 4), Zones: zones("pve1", "pve2")}}}
	got, err := placement.Choose(env.view(), request)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(got.Zone).To(Equal(zone("pve2")))
	request.NodePool = "another"
	request.Strategy = v1alpha1.ZoneBalanceBalanced
	if got, err := placement.Choose(env.view(), request); err != nil || got.Zone != zone("pve1") {
		t.Errorf("got %+v (%v), want pve1 under Balanced", got, err)
	}
}

func TestChooseEqualHosts(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	const hosts, claims = 6, 6000
	env := newEnv()
	var names []string
	for h := range hosts {
		names = append(names, fmt.Sprint("pve", h))
		env.host("r", names[h], 16, 64)
	}
	view := env.view()
	chosen := map[placement.Zone]int{}
	for n := range claims {
		request := placement.Request{ClaimUID: fmt.Sprint("claim-", n),
			Options: []placement.Option{{InstanceType: "t", Need: need(2, 4), Zones: zones(names...)}}}
		got, err := placement.Choose(view, request)
		g.Expect(err).NotTo(HaveOccurred())
		chosen[got.Zone]++
	}
	for z, n := range chosen {
		g.Expect(n).To(BeNumerically(">=", claims/hosts*8/10), "%s was chosen", z)
		g.Expect(n).To(BeNumerically("<=", claims/hosts*12/10), "%s was chosen", z)
	}
}

func TestChooseZoneStorage(t *testing.T) {
	t.Parallel()
	env := newEnv()
	env.host("r", "pve1", 16, 64)
	env.host("r", "pve2", 16, 64)
	full := &env.region("r").Storages[0]
	full.UsedBytes = full.TotalBytes
	request := placement.Request{
		ClaimUID: "a", Storages: map[placement.Zone]string{zone("pve1"): "local", zone("pve2"): "local"},
		Options: []placement.Option{{InstanceType: "t", Need: placement.Need{CPUs: 1, MemoryBytes: gib, DiskBytes: 30 * gib}, Zones: zones("pve1", "pve2")}},
	}
	got, err := placement.Choose(env.view(), request)
	if err != nil || got.Zone != zone("pve2") || got.Need.Storage != "local" {
		t.Errorf("got %+v (%v), want pve2 with its storage", got, err)
	}
}

func TestChooseNoFitError(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	env := newEnv()
	for n, cpus := range []int{4, 4, 2} {
		env.host("r", fmt.Sprint("pve", n+1), cpus, 64)
	}
	env.region("r").Hosts[2].Online = false
	request := placement.Request{ClaimUID: "a", Excluded: map[placement.Zone]string{zone("pve4"): "the NodeClass has no template on this host"},
		Options: []placement.Option{
			{InstanceType: "small", Need: need(8, 8), Zones: zones("pve2", "pve1")},
			{InstanceType: "big", Need: need(16, 8), Zones: zones("pve1", "pve2", "pve3")},
		}}
	_, err := placement.Choose(env.view(), request)
	var noFit *placement.NoFitError
	if !errors.As(err, &noFit) || len(noFit.Hosts) != 4 {
		t.Fatalf("the error is %v", err)
	}
	want := "no host fits small, the cheapest allowed instance type: pve1, pve2: 4 CPUs in total, 8 requested | pve3: offline | pve4: the NodeClass has no template on this host"
	g.Expect(err).To(MatchError(want))

	env.host("q", "pve1", 1, 64)
	request.Options[0].Zones = append(request.Options[0].Zones, placement.Zone{Region: "q", Host: "pve1"})
	_, err = placement.Choose(env.view(), request)
	want = "no host fits small, the cheapest allowed instance type: q/pve1: 1 CPUs in total, 8 requested | r/pve1, r/pve2: 4 CPUs in total, 8 requested | " +
		"r/pve3: offline | r/pve4: the NodeClass has no template on this host"
	g.Expect(err).To(MatchError(want))

	if _, err := placement.Choose(env.view(), placement.Request{}); err == nil || err.Error() != "no host is allowed for this NodeClaim" {
		t.Errorf("without options the error is %v", err)
	}
}

func TestChoosePacked(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	env := newEnv()
	env.host("r", "empty", 16, 64)
	env.host("r", "half", 16, 64)
	env.guest("r", "half", 100, 8, 32)
	env.host("r", "full", 16, 64)
	env.guest("r", "full", 101, 15, 60)
	request := placement.Request{ClaimUID: "a", Strategy: v1alpha1.ZoneBalancePacked,
		Options: []placement.Option{{InstanceType: "t", Need: need(2, 4), Zones: zones("empty", "half", "full")}}}
	got, err := placement.Choose(env.view(), request)
	g.Expect(err).NotTo(HaveOccurred(), "want half: full has insufficient capacity, empty must stay empty")
	g.Expect(got.Zone).To(Equal(zone("half")), "want half: full has insufficient capacity, empty must stay empty")
}

func TestChoosePoolAffinity(t *testing.T) {
	t.Parallel()
	for _, strategy := range []v1alpha1.ZoneBalance{v1alpha1.ZoneBalanceBalanced, v1alpha1.ZoneBalanceAvailabilityFirst, v1alpha1.ZoneBalancePacked} {
		for affinity, want := range map[v1alpha1.PoolAffinity]int{v1alpha1.PoolAffinitySeparateHosts: 3, v1alpha1.PoolAffinitySameHost: 1} {
			env := newEnv()
			for h := range 3 {
				env.host("r", fmt.Sprint("pve", h+1), 16, 64)
			}
			env.reserve(inventory.Reservation{ClaimUID: "other", NodePool: "other", Region: "r", Host: "pve2", VMID: 20900})
			hosts := map[string]int{}
			for n := range 4 {
				request := placement.Request{ClaimUID: fmt.Sprint("claim-", n), NodePool: "p", Strategy: strategy, Affinity: affinity,
					Options: []placement.Option{{InstanceType: "t", Need: need(2, 4), Zones: zones("pve1", "pve2", "pve3")}}}
				got, err := placement.Choose(env.view(), request)
				if err == nil {
					hosts[got.Zone.Host]++
					env.reserve(inventory.Reservation{ClaimUID: request.ClaimUID, NodePool: "p", Region: "r", Host: got.Zone.Host, VMID: 20000 + n})
				} else if affinity == v1alpha1.PoolAffinitySameHost || n < 3 ||
					!strings.Contains(err.Error(), "pve1, pve2, pve3: has a VM of NodePool p, whose VMs are kept on separate hosts") {
					t.Errorf("%s, %s: VM %d: %v", strategy, affinity, n, err)
				}
			}
			NewWithT(t).Expect(hosts).To(HaveLen(want), "%s, %s: the VMs went", strategy, affinity)
		}
	}
}

func TestChooseSameHostReason(t *testing.T) {
	t.Parallel()
	env := newEnv()
	env.host("r", "pve1", 4, 16)
	env.host("r", "pve2", 16, 64)
	env.reserve(inventory.Reservation{ClaimUID: "x", NodePool: "p", Region: "r", Host: "pve1", VMID: 20001, Amount: inventory.Amount{CPUs: 4}})
	_, err := placement.Choose(env.view(), placement.Request{ClaimUID: "a", NodePool: "p", Affinity: v1alpha1.PoolAffinitySameHost,
		Options: []placement.Option{{InstanceType: "t", Need: need(2, 4), Zones: zones("pve1", "pve2")}}})
	want := "no host fits t, the cheapest allowed instance type: pve1: 0 CPUs free, 2 requested | pve2: the VMs of NodePool p are kept on pve1"
	NewWithT(t).Expect(err).To(MatchError(want))
}
