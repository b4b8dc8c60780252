// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"k8s.io/utils/clock"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/backoff"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/observed"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// reuseDelay is how long a released address is reused only if the pool has no other
// free address. Neighbors cache the previous MAC for minutes.
const reuseDelay = 10 * time.Minute

// Ledger records changes that a poll may not show yet: Reservations, released addresses
// and deleted guests. It belongs to an Inventory, whose View includes it. All methods are
// safe for concurrent use.
type Ledger struct {
	clock clock.PassiveClock
	view  func() View
	// publish makes the changes visible in the View.
	publish func(changed bool)

	// mu is the lock of the Inventory, which guards the rest, and its Snapshots.
	mu           sync.Locker
	snapshots    map[string]*observed.Snapshot
	reservations map[string]Reservation // by Reservation.ClaimUID
	deleted      map[vmidKey]time.Time
	released     *backoff.Holds[netip.Addr]
}

// DecideFunc decides what to reserve in the current View. It runs under the ledger's
// lock: it must not block, perform I/O or call methods of the Ledger or the Inventory.
type DecideFunc func(View) (Reservation, error)

// Reserve reserves what decide returns for a Claim and returns the Reservation. No other
// Reservation is made between the decision and its recording, so two Claims never get
// the same capacity, VMID or address. If the Claim already has a Reservation, Reserve
// returns that one and does not call decide. It fails if decide fails or if the chosen
// VMID or an address is taken.
func (l *Ledger) Reserve(claimUID string, decide DecideFunc) (Reservation, error) {
	if claimUID == "" {
		return Reservation{}, errors.New("reserving capacity: the NodeClaim has no UID")
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if existing, ok := l.reservations[claimUID]; ok {
		return existing, nil
	}
	return l.record(claimUID, l.view(), decide)
}

// Replace replaces the Reservation of a Claim by what decide returns in a View without it and its
// VM. The Claim always has one of them, so Restore never adds an outdated one. If Replace fails,
// which it does as Reserve does, the Reservation remains.
func (l *Ledger) Replace(claimUID string, decide DecideFunc) (Reservation, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	view, before := l.view(), l.reservations[claimUID]
	return l.record(claimUID, view.Without(before.Region, before.VMID), decide)
}

// record makes what decide returns in a View the Reservation of a Claim. The caller holds the
// lock.
func (l *Ledger) record(claimUID string, view View, decide DecideFunc) (Reservation, error) {
	r, err := decide(view)
	if err != nil {
		return Reservation{}, err
	}
	if view.IsVMIDTaken(r.Region, r.VMID) {
		return Reservation{}, fmt.Errorf("reserving capacity: VMID %d is taken in region %s", r.VMID, r.Region)
	}
	for _, addr := range r.Addresses {
		if owner, taken := view.Addresses().Owner(addr); taken {
			return Reservation{}, fmt.Errorf("reserving capacity: address %s is taken by %s", addr, owner)
		}
	}
	r.ClaimUID = claimUID
	r.Fulfilled = false
	if r.CreatedAt.IsZero() {
		r.CreatedAt = l.clock.Now()
	}
	l.reservations[claimUID] = r
	l.publish(true)
	return r, nil
}

// Restore adds Reservations that an earlier process made, from the intents on their
// Claims, whether or not they fit. Claims that already have a Reservation keep it.
func (l *Ledger) Restore(reservations ...Reservation) {
	l.mu.Lock()
	defer l.mu.Unlock()
	restored := false
	for _, r := range reservations {
		if _, ok := l.reservations[r.ClaimUID]; ok || r.ClaimUID == "" {
			continue
		}
		r.Fulfilled = isVisible(r, l.snapshots[r.Region])
		l.reservations[r.ClaimUID] = r
		restored = true
	}
	if restored {
		l.publish(true)
	}
}

// Release removes the Reservation of a Claim whose launch was abandoned or whose VM was
// deleted.
func (l *Ledger) Release(claimUID string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	r, ok := l.reservations[claimUID]
	if !ok {
		return
	}
	delete(l.reservations, claimUID)
	for _, addr := range r.Addresses {
		l.released.Add(addr, "", reuseDelay)
	}
	l.publish(true)
}

// ObserveDeleted removes a guest from the View. The caller must have confirmed that the
// guest does not exist. A poll that began earlier does not add it back.
func (l *Ledger) ObserveDeleted(region string, vmid int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.deleted[vmidKey{region, vmid}] = l.clock.Now()
	before := l.snapshots[region]
	if _, ok := before.Guest(vmid); !ok {
		return
	}
	l.snapshots[region] = before.Without(vmid)
	l.publish(true)
}

// withoutDeleted drops the rows of guests that were deleted since the poll began, and
// evicts earlier deletions, which the poll already reflects. The caller holds the lock.
func (l *Ledger) withoutDeleted(region string, guests []proxmox.GuestRow, began time.Time) []proxmox.GuestRow {
	maps.DeleteFunc(l.deleted, func(key vmidKey, at time.Time) bool { return key.region == region && began.After(at) })
	return slices.DeleteFunc(slices.Clone(guests), func(row proxmox.GuestRow) bool {
		_, deleted := l.deleted[vmidKey{region, row.VMID}]
		return deleted
	})
}

// fulfill marks the region's Reservations whose VM the Snapshot shows as reserved, and
// reports whether there were any. The caller holds the lock.
func (l *Ledger) fulfill(region string, snapshot *observed.Snapshot) bool {
	changed := false
	for uid, r := range l.reservations {
		if r.Region != region || r.Fulfilled || !isVisible(r, snapshot) {
			continue
		}
		r.Fulfilled = true
		l.reservations[uid] = r
		changed = true
	}
	return changed
}
