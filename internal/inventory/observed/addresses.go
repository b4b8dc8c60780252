// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package observed

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"

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
func collectAddresses(result Result, hosts map[string]Host, guests map[int]Guest, own VMIDRange) Addresses {
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
