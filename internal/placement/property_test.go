// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package placement_test

import (
	"errors"
	"reflect"
	"slices"
	"testing"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/placement"
)

const seeds = 3000

// TestChooseAgainstTheOracle checks Choose against brute force on many small
// worlds: never above a limit, nothing lost that would have fitted, the cheapest
// option first, the strategy's Host, and the same answer for the same question.
func TestChooseAgainstTheOracle(t *testing.T) {
	t.Parallel()
	placed := 0
	for seed := range uint64(seeds) {
		w, request := random(seed)
		got, err := placement.Choose(w.view(), request)
		wantOption, candidates := w.oracle(request)
		if wantOption == "" {
			if _, ok := errors.AsType[*placement.NoFitError](err); !ok {
				t.Fatalf("seed %d: got %+v (%v), but nothing fits", seed, got, err)
			}
			continue
		}
		placed++
		if err != nil {
			t.Fatalf("seed %d: got %v, but %s fits on %v", seed, err, wantOption, candidates)
		}
		if got.InstanceType != wantOption {
			t.Fatalf("seed %d: got %s, but %s is cheaper and fits", seed, got.InstanceType, wantOption)
		}
		if !slices.Contains(candidates, got.Zone) {
			t.Fatalf("seed %d: %s does not fit on %s, only on %v", seed, got.InstanceType, got.Zone, candidates)
		}
		if better := w.better(request, got, candidates); better != "" {
			t.Fatalf("seed %d: %s on %s, but %s is better", seed, got.InstanceType, got.Zone, better)
		}
		for n := range request.Options { // the order of zones must not matter
			request.Options[n].Zones = slices.Clone(request.Options[n].Zones)
			slices.Reverse(request.Options[n].Zones)
		}
		if again, err := placement.Choose(w.view(), request); err != nil || !reflect.DeepEqual(again, got) {
			t.Fatalf("seed %d: first %+v, then %+v (%v)", seed, got, again, err)
		}
	}
	if placed < seeds/4 || placed > seeds*9/10 {
		t.Errorf("%d of %d worlds had a place: the generator lost its balance", placed, seeds)
	}
}

// oracle finds the cheapest option that fits anywhere, and all zones where it does.
func (w *world) oracle(request placement.Request) (string, []placement.Zone) {
	for _, option := range request.Options {
		var zones []placement.Zone
		for _, z := range option.Zones {
			if w.fits(z, option.Need) && w.obeys(z, request) {
				zones = append(zones, z)
			}
		}
		if len(zones) > 0 {
			return option.InstanceType, zones
		}
	}
	return "", nil
}

// better names a candidate that the strategy prefers over the choice.
func (w *world) better(request placement.Request, got placement.Placement, candidates []placement.Zone) string {
	for _, z := range candidates {
		vms, share := w.vms(z, request.NodePool), w.share(z, got.Need)
		gotVMs, gotShare := w.vms(got.Zone, request.NodePool), w.share(got.Zone, got.Need)
		switch request.Strategy {
		case v1alpha1.ZoneBalanceAvailabilityFirst:
			if vms < gotVMs {
				return z.String()
			}
		case v1alpha1.ZoneBalancePacked:
			if share > gotShare || (share == gotShare && vms > gotVMs) {
				return z.String()
			}
		default:
			if share < gotShare || (share == gotShare && vms < gotVMs) {
				return z.String()
			}
		}
	}
	return ""
}

// obeys is the oracle's verdict on the rule about the NodePool's VMs.
func (w *world) obeys(z placement.Zone, request placement.Request) bool {
	here, elsewhere := w.vms(z, request.NodePool), 0
	for _, r := range w.reservations {
		if r.NodePool == request.NodePool {
			elsewhere++
		}
	}
	elsewhere -= here
	switch request.Affinity {
	case v1alpha1.PoolAffinitySameHost:
		return elsewhere == 0
	case v1alpha1.PoolAffinitySeparateHosts:
		return here == 0
	}
	return true
}

func (w *world) vms(z placement.Zone, nodePool string) (n int) {
	for _, r := range w.reservations {
		if r.Region == z.Region && r.Host == z.Host && r.NodePool == nodePool {
			n++
		}
	}
	return n
}

// share is the larger of the CPU and memory shares after the placement.
func (w *world) share(z placement.Zone, n placement.Need) float64 {
	cpus, memory, _, _ := w.room(z)
	for _, row := range w.resources[z.Region].Hosts {
		if row.Name == z.Host {
			return max(float64(row.CPUs-cpus+n.CPUs)/float64(row.CPUs), float64(row.MemoryBytes-gib-memory+n.MemoryBytes)/float64(row.MemoryBytes-gib))
		}
	}
	return 0
}

// TestFitIsTheOneVerdict: Fit, Fits and the oracle agree, and there is a reason
// exactly where it does not fit.
func TestFitIsTheOneVerdict(t *testing.T) {
	t.Parallel()
	for seed := range uint64(seeds) {
		w, request := random(seed)
		view := w.view()
		for _, option := range request.Options {
			for _, z := range option.Zones {
				ok, reason := placement.Fit(view, z, option.Need)
				if quick := placement.Fits(view, z, option.Need); ok != quick || ok != w.fits(z, option.Need) || ok != (reason == "") {
					t.Fatalf("seed %d, %s on %s: Fit says %v (%s), Fits %v, the oracle %v",
						seed, option.InstanceType, z, ok, reason, quick, w.fits(z, option.Need))
				}
			}
		}
	}
}
