// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package inventory

import "net/netip"

// The methods in this file are removed once no call site is left.

func (i *Inventory) Reserve(uid string, decide DecideFunc) (Reservation, error) {
	return i.ledger.Reserve(uid, decide)
}
func (i *Inventory) Restore(r Reservation)                  { i.ledger.Restore(r) }
func (i *Inventory) Release(uid string)                     { i.ledger.Release(uid) }
func (i *Inventory) ObserveDeleted(region string, vmid int) { i.ledger.ObserveDeleted(region, vmid) }

func (v View) Free(region, host string) Amount {
	state, _ := v.Host(region, host)
	return state.Free
}

func (v View) AddressOwner(addr netip.Addr) (string, bool) { return v.Addresses().Owner(addr) }

func (v View) AddressConflict(addr netip.Addr, region string, vmid int) (string, bool) {
	return v.Addresses().Conflict(addr, region, vmid)
}
