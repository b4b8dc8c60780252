// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package template

import (
	"cmp"
	"maps"
	"slices"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
)

// Rollout is what a ProxmoxTemplate requires in a View, and what it has.
type Rollout struct {
	Desired Desired
	View    inventory.View
	// Existing are its Templates, sorted by region and VMID.
	Existing []Existing
	// Locations are where Templates are required, sorted by region and Host. A shared Template that already exists
	// keeps its Host while that is online. A Host that is excluded by settings is only included if its Template
	// exists or is being built: it gets no new one.
	Locations []Location
}

// NewRollout returns the Rollout of a ProxmoxTemplate of a Kubernetes cluster.
func NewRollout(view inventory.View, kubeCluster string, desired Desired) Rollout {
	r := Rollout{Desired: desired, View: view, Existing: ListOwned(view, kubeCluster, desired.UID)}
	for _, region := range slices.Sorted(maps.Keys(view.Snapshots)) {
		if desired.appliesTo(region) {
			r.Locations = append(r.Locations, r.locationsInRegion(region)...)
		}
	}
	return r
}

// rollout returns the Rollout of a ProxmoxTemplate in the current View.
func (p *Provider) rollout(desired Desired) Rollout {
	return NewRollout(p.inventory.View(), p.kubeCluster, desired)
}

// isReady reports whether the Template that is required at a Location exists.
func (r Rollout) isReady(l Location) bool { return l.hasTemplate(r.Desired, r.Existing) }

func (r Rollout) locationsInRegion(region string) []Location {
	var locations []Location
	snapshot := r.View.Snapshots[region]
	shared := map[string]int{} // index in locations by storage
	for _, host := range slices.Sorted(maps.Keys(snapshot.Hosts)) {
		location, required := r.locationOn(snapshot, host)
		if !required {
			continue
		}
		if !location.Shared {
			locations = append(locations, location)
			continue
		}
		n, ok := shared[location.Storage]
		if !ok {
			shared[location.Storage] = len(locations)
			locations = append(locations, location)
			continue
		}
		if r.rank(snapshot, location) > r.rank(snapshot, locations[n]) {
			locations[n] = location
		}
	}
	slices.SortFunc(locations, func(a, b Location) int { return cmp.Compare(a.Host, b.Host) })
	return locations
}
