// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// AddressOwner has an address. VMID is 0 where it is no guest.
type AddressOwner struct {
	VMID        int
	Description string
}

// Addresses in use in a Cluster, with those who have them: mostly one.
type Addresses map[netip.Addr][]AddressOwner

func (a Addresses) add(owner AddressOwner, addresses ...netip.Addr) {
	for _, addr := range addresses {
		if addr.IsValid() && !slices.Contains(a[addr], owner) {
			a[addr] = append(a[addr], owner)
		}
	}
}

// without is the same less a guest's.
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

// addressesOf collects what a reading tells about addresses. Templates have none: what
// their configurations say is for the VMs that are made of them.
func collectAddresses(reading PollResult, guests map[int]Guest) Addresses {
	out := Addresses{}
	for _, guest := range guests {
		if guest.Template || (guest.Config != nil && guest.Config.IsTemplate()) {
			continue
		}
		owner := guestOwner(guest)
		out.add(owner, guest.addresses...)
		out.add(owner, reading.ReportedAddresses.Guests[guest.VMID]...)
	}
	if reading.Facts != nil {
		for host, bridges := range reading.Facts.Bridges {
			for _, b := range bridges {
				out.add(AddressOwner{Description: "host " + host}, b.CIDR4.Addr(), b.CIDR6.Addr())
				out.add(AddressOwner{Description: "the gateway of host " + host}, b.Gateway4, b.Gateway6)
			}
		}
	}
	for _, given := range reading.ReportedAddresses.SDN {
		owner := AddressOwner{Description: "the gateway of vnet " + given.VNet}
		if given.VMID != 0 {
			owner = AddressOwner{VMID: given.VMID, Description: fmt.Sprintf("guest %d", given.VMID)}
			if guest, ok := guests[given.VMID]; ok {
				owner = guestOwner(guest)
			}
		}
		out.add(owner, given.Address)
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

// AddressOwner tells who has an address, or was promised it; false for nobody that we
// know of. An address counts in all Clusters: networks may span them.
func (v View) AddressOwner(addr netip.Addr) (string, bool) {
	if v.index != nil {
		if claim, ok := v.index.reservedAddresses[addr]; ok {
			return "claim " + claim, true
		}
	}
	for region, snapshot := range v.Snapshots {
		if owners := snapshot.Addresses[addr]; len(owners) > 0 {
			return fmt.Sprintf("%s in region %s", owners[0].Description, region), true
		}
	}
	return "", false
}

// AddressTaken tells whether somebody has an address or was promised it.
func (v View) AddressTaken(addr netip.Addr) bool {
	if v.index != nil {
		if _, promised := v.index.reservedAddresses[addr]; promised {
			return true
		}
	}
	for _, snapshot := range v.Snapshots {
		if len(snapshot.Addresses[addr]) > 0 {
			return true
		}
	}
	return false
}

// AddressConflict tells who else than that VM has an address.
func (v View) AddressConflict(addr netip.Addr, region string, vmid int) (string, bool) {
	for name, snapshot := range v.Snapshots {
		for _, owner := range snapshot.Addresses[addr] {
			if name != region || owner.VMID != vmid {
				return fmt.Sprintf("%s in region %s", owner.Description, name), true
			}
		}
	}
	return "", false
}

// Resting tells whether an address came back a moment ago.
func (v View) RecentlyReleased(addr netip.Addr) bool {
	_, ok := v.recentlyReleased[addr]
	return ok
}

// Addresses lists every address that is in use or promised; some may come twice.
func (v View) Addresses(yield func(netip.Addr) bool) {
	if v.index != nil {
		for addr := range v.index.reservedAddresses {
			if !yield(addr) {
				return
			}
		}
	}
	for _, snapshot := range v.Snapshots {
		for addr := range snapshot.Addresses {
			if !yield(addr) {
				return
			}
		}
	}
}

// restTime is how long an address that came back is given only when no other is left.
// Neighbours forget a MAC within minutes.
const reuseDelay = 10 * time.Minute

// rest notes that addresses came back. The map is replaced: Views hold the old one.
// The caller holds the lock.
func (i *Inventory) markReleased(addresses []netip.Addr) {
	if len(addresses) == 0 {
		return
	}
	now := i.options.Clock.Now()
	resting := make(map[netip.Addr]time.Time, len(i.recentlyReleased)+len(addresses))
	for addr, since := range i.recentlyReleased {
		if now.Sub(since) < reuseDelay {
			resting[addr] = since
		}
	}
	for _, addr := range addresses {
		resting[addr] = now
	}
	i.recentlyReleased = resting
}
