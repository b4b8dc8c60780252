// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"fmt"
	"iter"
	"net/netip"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/backoff"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/observed"
)

// AddressView answers questions about the addresses in a View. An address counts in all
// Clusters, because networks can span them.
type AddressView struct {
	snapshots map[string]*observed.Snapshot
	reserved  map[netip.Addr]string // claim UID by address
	released  *backoff.Holds[netip.Addr]
}

// Addresses returns the addresses that are in use or reserved.
func (v View) Addresses() AddressView {
	a := AddressView{snapshots: v.Snapshots, released: v.released}
	if v.index != nil {
		a.reserved = v.index.reservedAddresses
	}
	return a
}

// Owner describes the owner of an address or the Claim that reserved it. It returns
// false if the address has no known owner.
func (a AddressView) Owner(addr netip.Addr) (string, bool) {
	if claim, ok := a.reserved[addr]; ok {
		return "NodeClaim " + claim, true
	}
	for region, snapshot := range a.snapshots {
		if owners := snapshot.Addresses[addr]; len(owners) > 0 {
			return fmt.Sprintf("%s in region %s", owners[0].Description, region), true
		}
	}
	return "", false
}

// IsTaken reports whether an address is in use or reserved.
func (a AddressView) IsTaken(addr netip.Addr) bool {
	if _, reserved := a.reserved[addr]; reserved {
		return true
	}
	for _, snapshot := range a.snapshots {
		if len(snapshot.Addresses[addr]) > 0 {
			return true
		}
	}
	return false
}

// Conflict describes an owner of the address other than the given VM. It returns false
// if there is none.
func (a AddressView) Conflict(addr netip.Addr, region string, vmid int) (string, bool) {
	for name, snapshot := range a.snapshots {
		for _, owner := range snapshot.Addresses[addr] {
			if name != region || owner.VMID != vmid {
				return fmt.Sprintf("%s in region %s", owner.Description, name), true
			}
		}
	}
	return "", false
}

// IsRecentlyReleased reports whether a Reservation of the address was released within
// the last ten minutes.
func (a AddressView) IsRecentlyReleased(addr netip.Addr) bool {
	if a.released == nil {
		return false
	}
	_, _, released := a.released.Get(addr)
	return released
}

// All iterates over the addresses that are in use or reserved. It may yield an address
// more than once.
func (a AddressView) All() iter.Seq[netip.Addr] {
	return func(yield func(netip.Addr) bool) {
		for addr := range a.reserved {
			if !yield(addr) {
				return
			}
		}
		for _, snapshot := range a.snapshots {
			for addr := range snapshot.Addresses {
				if !yield(addr) {
					return
				}
			}
		}
	}
}
