// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"maps"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/observed"
)

// Without returns the View as it will be when a VM is deleted: without the guest and its
// Reservation. The capacity of storages is the same, because Proxmox does not report how
// much of it the VM uses.
func (v View) Without(region string, vmid int) View {
	reservations := maps.Clone(v.Reservations)
	maps.DeleteFunc(reservations, func(_ string, r Reservation) bool { return r.Region == region && r.VMID == vmid })
	snapshots := maps.Clone(v.Snapshots)
	if _, ok := v.Guest(region, vmid); ok {
		snapshots[region] = snapshots[region].Without(vmid)
	}
	return v.with(snapshots, reservations)
}

// WithReservations returns the View with other Reservations, for a process that makes none
// itself.
func (v View) WithReservations(reservations ...Reservation) View {
	byClaim := make(map[string]Reservation, len(reservations))
	for _, r := range reservations {
		r.Fulfilled = isVisible(r, v.Snapshots[r.Region])
		byClaim[r.ClaimUID] = r
	}
	return v.with(v.Snapshots, byClaim)
}

// with returns the View with other Snapshots and Reservations.
func (v View) with(snapshots map[string]*observed.Snapshot, reservations map[string]Reservation) View {
	out := NewView(snapshots, v.Failures, reservations, v.settings, v.records)
	out.Generation, out.released = v.Generation, v.released
	return out
}
