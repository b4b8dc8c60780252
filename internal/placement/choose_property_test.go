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

// TestChooseProperties compares Choose with brute force in many small environments:
// capacity is never exceeded, an option that fits is found, the cheapest first, on the
// Host that the strategy prefers, and the result is deterministic.
func TestChooseProperties(t *testing.T) {
	t.Parallel()
	placed := 0
	for seed := range uint64(seeds) {
		env, request := randomEnv(seed)
		got, err := placement.Choose(env.view(), request)
		wantOption, candidates := env.oracle(request)
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
		if better := env.better(request, got, candidates); better != "" {
			t.Fatalf("seed %d: %s on %s, but %s is better", seed, got.InstanceType, got.Zone, better)
		}
		for n := range request.Options { // the order of zones must not matter
			request.Options[n].Zones = slices.Clone(request.Options[n].Zones)
			slices.Reverse(request.Options[n].Zones)
		}
		if again, err := placement.Choose(env.view(), request); err != nil || !reflect.DeepEqual(again, got) {
			t.Fatalf("seed %d: first %+v, then %+v (%v)", seed, got, again, err)
		}
	}
	if placed < seeds/4 || placed > seeds*9/10 {
		t.Errorf("%d of %d environments had capacity: the generator is unbalanced", placed, seeds)
	}
}

// oracle returns the cheapest option that fits on any Host, and all zones where it fits.
func (env *testEnv) oracle(request placement.Request) (string, []placement.Zone) {
	for _, option := range request.Options {
		var zones []placement.Zone
		for _, z := range option.Zones {
			if env.fits(z, option.Need) && env.obeys(z, request) {
				zones = append(zones, z)
			}
		}
		if len(zones) > 0 {
			return option.InstanceType, zones
		}
	}
	return "", nil
}

// better returns a candidate that the strategy prefers over the choice.
func (env *testEnv) better(request placement.Request, got placement.Placement, candidates []placement.Zone) string {
	for _, z := range candidates {
		vms, share := env.vms(z, request.NodePool), env.share(z, got.Need)
		gotVMs, gotShare := env.vms(got.Zone, request.NodePool), env.share(got.Zone, got.Need)
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

// obeys is the oracle for the NodePool's affinity.
func (env *testEnv) obeys(z placement.Zone, request placement.Request) bool {
	here, elsewhere := env.vms(z, request.NodePool), 0
	for _, r := range env.reservations {
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

func (env *testEnv) vms(z placement.Zone, nodePool string) (n int) {
	for _, r := range env.reservations {
		if r.Region == z.Region && r.Host == z.Host && r.NodePool == nodePool {
			n++
		}
	}
	return n
}

// share is the larger of the CPU and memory shares after the placement.
func (env *testEnv) share(z placement.Zone, n placement.Need) float64 {
	cpus, memory, _, _ := env.free(z)
	for _, row := range env.resources[z.Region].Hosts {
		if row.Name == z.Host {
			return max(float64(row.CPUs-cpus+n.CPUs)/float64(row.CPUs), float64(row.MemoryBytes-gib-memory+n.MemoryBytes)/float64(row.MemoryBytes-gib))
		}
	}
	return 0
}

// TestFitProperties checks that Fit, Fits and the oracle agree, and that Fit returns a
// reason exactly when the VM does not fit.
func TestFitProperties(t *testing.T) {
	t.Parallel()
	for seed := range uint64(seeds) {
		env, request := randomEnv(seed)
		view := env.view()
		for _, option := range request.Options {
			for _, z := range option.Zones {
				ok, reason := placement.Fit(view, z, option.Need)
				if quick := placement.Fits(view, z, option.Need); ok != quick || ok != env.fits(z, option.Need) || ok != (reason == "") {
					t.Fatalf("seed %d, %s on %s: Fit returns %v (%s), Fits %v, the oracle %v",
						seed, option.InstanceType, z, ok, reason, quick, env.fits(z, option.Need))
				}
			}
		}
	}
}
