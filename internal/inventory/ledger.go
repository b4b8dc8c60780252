// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"errors"
	"fmt"
)

// Reserve promises capacity and a VMID to a Claim. The decision runs on the
// current View while no other Reservation can be made, so that two Claims never
// get the same: it must be pure and quick. A decision for a Claim that already
// holds a Reservation changes nothing; the standing one is returned.
func (i *Inventory) Reserve(claimUID string, decide func(View) (Reservation, error)) (Reservation, error) {
	if claimUID == "" {
		return Reservation{}, errors.New("reserving capacity, the claim has no UID")
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	if standing, ok := i.reservations[claimUID]; ok {
		return standing, nil
	}
	view := i.View()
	r, err := decide(view)
	if err != nil {
		return Reservation{}, err
	}
	if view.IsVMIDTaken(r.Region, r.VMID) {
		return Reservation{}, fmt.Errorf("reserving capacity, VMID %d is taken in region %s", r.VMID, r.Region)
	}
	for _, addr := range r.Addresses {
		if owner, taken := view.AddressOwner(addr); taken {
			return Reservation{}, fmt.Errorf("reserving capacity, address %s is taken by %s", addr, owner)
		}
	}
	r.ClaimUID = claimUID
	r.Fulfilled = false
	if r.CreatedAt.IsZero() {
		r.CreatedAt = i.options.Clock.Now()
	}
	i.reservations[claimUID] = r
	i.publish(true)
	return r, nil
}

// Restore puts a Reservation back that an earlier process made, from the intent
// on its Claim. What was promised stands, whether it fits or not; a Reservation
// that the Claim already holds stays as it is.
func (i *Inventory) Restore(r Reservation) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if _, ok := i.reservations[r.ClaimUID]; ok || r.ClaimUID == "" {
		return
	}
	r.Fulfilled = false
	i.reservations[r.ClaimUID] = r
	i.fulfill(r.Region)
	i.publish(true)
}

// Release gives back what a Claim holds: its launch was given up, or its VM is gone.
func (i *Inventory) Release(claimUID string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	r, ok := i.reservations[claimUID]
	if !ok {
		return
	}
	delete(i.reservations, claimUID)
	i.markReleased(r.Addresses)
	i.publish(true)
}

// settle ends the capacity part of the region's Reservations whose VM is visible
// as promised, and tells whether there were any. The caller holds the lock.
func (i *Inventory) fulfill(region string) bool {
	changed := false
	for uid, r := range i.reservations {
		if r.Region != region || r.Fulfilled || !isVisible(r, i.snapshots[region]) {
			continue
		}
		r.Fulfilled = true
		i.reservations[uid] = r
		changed = true
	}
	return changed
}

// isVisible tells whether the Snapshot shows the VM with what it was promised. A
// clone shows its template's figures until it is configured; one that runs was
// configured. On whichever Host it is: a VM that was migrated in between counts
// there, and a stranger on our VMID makes the launch fail anyway.
func isVisible(r Reservation, snapshot *Snapshot) bool {
	guest, ok := snapshot.guest(r.VMID)
	if !ok || !guest.HasResources() || guest.Stale {
		return false
	}
	return guest.Status == statusRunning || guest.Allocated.covers(r.Amount)
}
