// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"cmp"
	"fmt"
	"iter"
	"maps"
	"net/netip"
	"slices"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/backoff"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// AddressOwner is a guest, Host or gateway that uses an address. VMID is 0 if the owner
// is not a guest.
type AddressOwner struct {
	VMID        int
	Description string
}

// Addresses are the addresses in use in a Cluster with their owners. More than one owner
// is a conflict.
type Addresses map[netip.Addr][]AddressOwner

func (a Addresses) add(owner AddressOwner, addresses ...netip.Addr) {
	for _, addr := range addresses {
		if addr.IsValid() && !slices.Contains(a[addr], owner) {
			a[addr] = append(a[addr], owner)
		}
	}
}

// without returns a copy that lacks a guest's addresses.
func (a Addresses) without(vmid int) Addresses {
	rest := make(Addresses, len(a))
	for addr, owners := range a {
		left := slices.DeleteFunc(slices.Clone(owners), func(o AddressOwner) bool { return o.VMID == vmid })
		if len(left) > 0 {
			rest[addr] = left
		}
	}
	return rest
}

func (a Addresses) equal(b Addresses) bool {
	return maps.EqualFunc(a, b, func(x, y []AddressOwner) bool { return slices.Equal(x, y) })
}

// collectAddresses returns all addresses in a poll result. It skips templates, because the
// addresses in their configuration are for the VMs cloned from them, and our VMs on Hosts that
// were removed from the Cluster, which never run again.
func collectAddresses(result PollResult, hosts map[string]Host, guests map[int]Guest, own VMIDRange) Addresses {
	out := Addresses{}
	for _, guest := range guests {
		_, member := hosts[guest.Host]
		if !member && own.Contains(guest.VMID) || guest.Template || (guest.Config != nil && guest.Config.IsTemplate()) {
			continue
		}
		owner := guestOwner(guest)
		out.add(owner, guest.addresses...)
		out.add(owner, result.ReportedAddresses.Guests[guest.VMID]...)
	}
	if result.Facts != nil {
		for host, addresses := range result.Facts.InterfaceAddresses {
			out.add(AddressOwner{Description: "host " + host}, addresses...)
		}
		for host, bridges := range result.Facts.Bridges {
			for _, b := range bridges {
				out.add(AddressOwner{Description: "host " + host}, b.CIDR4.Addr(), b.CIDR6.Addr())
				out.add(AddressOwner{Description: "the gateway of host " + host}, b.Gateway4, b.Gateway6)
			}
		}
	}
	for _, lease := range result.ReportedAddresses.SDN {
		owner := AddressOwner{Description: "the gateway of vnet " + lease.VNet}
		if lease.VMID != 0 {
			owner = AddressOwner{VMID: lease.VMID, Description: fmt.Sprintf("guest %d", lease.VMID)}
			if guest, ok := guests[lease.VMID]; ok {
				owner = guestOwner(guest)
			}
		}
		out.add(owner, lease.Address)
	}
	for _, owners := range out {
		slices.SortFunc(owners, func(a, b AddressOwner) int {
			return cmp.Or(cmp.Compare(a.VMID, b.VMID), cmp.Compare(a.Description, b.Description))
		})
	}
	return out
}

func guestOwner(guest Guest) AddressOwner {
	kind := "VM"
	if guest.Kind == proxmox.KindLXC {
		kind = "container"
	}
	return AddressOwner{VMID: guest.VMID, Description: fmt.Sprintf("%s %d", kind, guest.VMID)}
}

// AddressView answers questions about the addresses in a View. An address counts in all
// Clusters, because networks can span them.
type AddressView struct {
	snapshots map[string]*Snapshot
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
