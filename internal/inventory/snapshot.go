// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// Snapshot is a Cluster at one moment. It is never changed once made: a new
// reading is a new Snapshot.
type Snapshot struct {
	Region string
	// Taken is when the reading succeeded; the age of the view.
	Taken   time.Time
	Version proxmox.Version
	Options proxmox.ClusterOptions
	// Facts are nil until they were read.
	Facts    *Facts
	Hosts    map[string]Host
	Guests   map[int]Guest // by VMID, unique in a Cluster
	Storages map[StorageKey]proxmox.StorageRow
	// Mappings name PCI devices of the Hosts.
	Mappings []proxmox.PCIMapping
	// Addresses that guests, Hosts and the Cluster's own IPAM are known to have.
	Addresses Addresses
	// AddressesKnown is true when everything that could be asked for them was asked
	// at least once: see Inventory.WatchAddresses.
	AddressesKnown bool
}

// Host is a Host with what its guests were promised.
type Host struct {
	proxmox.HostRow
	// Allocated sums what the guests on it are charged for.
	Allocated Amount
	// OutOfServiceSince is when the Host was first seen offline or in maintenance; zero
	// while it is neither.
	OutOfServiceSince time.Time
	// Hardware as the Host tells; zero until it was read.
	Hardware proxmox.HostInfo
}

// Guest is a row, with the configuration of VMs and templates. Config is nil
// until it was read.
type Guest struct {
	proxmox.GuestRow
	Config *proxmox.VMConfig
	// Stale is true when the row came without figures, and name, template flag
	// and figures are those of an earlier reading. Status is as reported.
	Stale bool
	// Charged is what the guest takes from its Host by the rule in the package
	// comment; zero for what does not count.
	Allocated Amount

	// addresses that Config tells.
	addresses []netip.Addr
}

// StorageKey names a storage on a Host.
type StorageKey struct{ Host, Storage string }

// Amount is a quantity of what a Host gives to VMs.
type Amount struct {
	CPUs        int
	MemoryBytes int64
}

// Plus is the sum of both.
func (a Amount) Plus(b Amount) Amount {
	return Amount{CPUs: a.CPUs + b.CPUs, MemoryBytes: a.MemoryBytes + b.MemoryBytes}
}

// Minus is the difference; it may be negative.
func (a Amount) Minus(b Amount) Amount {
	return Amount{CPUs: a.CPUs - b.CPUs, MemoryBytes: a.MemoryBytes - b.MemoryBytes}
}

// atLeast is the larger of both, each quantity for itself.
func (a Amount) atLeast(b Amount) Amount {
	return Amount{CPUs: max(a.CPUs, b.CPUs), MemoryBytes: max(a.MemoryBytes, b.MemoryBytes)}
}

// covers tells whether a is no smaller than b in any quantity.
func (a Amount) covers(b Amount) bool {
	return a.CPUs >= b.CPUs && a.MemoryBytes >= b.MemoryBytes
}

// Reservation is capacity and a VMID promised to a Claim but perhaps not yet
// visible in a Snapshot.
type Reservation struct {
	ClaimUID string
	NodePool string
	Region   string
	Host     string
	VMID     int
	Storage  string
	Amount
	DiskBytes int64
	// Devices are the PCI mappings that the VM gets a device of, each once.
	Devices []string
	// Binding to cells and cores of the Host; nil where the VM floats.
	Binding *Binding
	// Addresses promised to the VM's interfaces.
	Addresses []netip.Addr
	// Made is when it was promised.
	CreatedAt time.Time
	// Settled is true once a Snapshot showed the VM as promised: from then on the
	// VM itself counts, and the Reservation only keeps VMID and NodePool.
	Fulfilled bool
}

// VMIDRange is a range of VMIDs, both ends included. The zero value is empty.
type VMIDRange struct{ From, To int }

// Contains tells whether the VMID lies in the range.
func (r VMIDRange) Contains(vmid int) bool { return r.From <= vmid && vmid <= r.To && vmid > 0 }

// StoragesOf names the storages of a Host.
func (s *Snapshot) StoragesOf(host string) []string {
	var names []string
	for key := range s.Storages {
		if key.Host == host {
			names = append(names, key.Storage)
		}
	}
	slices.Sort(names)
	return names
}

// without is the Snapshot with a guest less.
func (s *Snapshot) without(vmid int) *Snapshot {
	guest := s.Guests[vmid]
	rest := *s
	rest.Guests = maps.Clone(s.Guests)
	delete(rest.Guests, vmid)
	rest.Addresses = s.Addresses.without(vmid)
	if host, ok := s.Hosts[guest.Host]; ok {
		host.Allocated = host.Allocated.Minus(guest.Allocated)
		rest.Hosts = maps.Clone(s.Hosts)
		rest.Hosts[guest.Host] = host
	}
	return &rest
}
