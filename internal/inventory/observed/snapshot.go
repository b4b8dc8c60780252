// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package observed

import (
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// Snapshot is the state of a Cluster at one moment. It is immutable.
type Snapshot struct {
	Region string
	// Taken is when the poll succeeded.
	Taken   time.Time
	Version proxmox.Version
	Options proxmox.ClusterOptions
	// Facts are nil until they were read.
	Facts    *Facts
	Hosts    map[string]Host
	Guests   map[int]Guest // by VMID, unique in a Cluster
	Storages map[StorageKey]proxmox.StorageRow
	// Mappings are the PCI mappings of the Cluster.
	Mappings []proxmox.PCIMapping
	// MaintenanceUnknown is true until it was read which Hosts are in HA maintenance.
	MaintenanceUnknown bool
	// Addresses of guests, Hosts and the IPAM of Proxmox.
	Addresses Addresses
	// AddressesKnown is true once all sources of addresses were read; see
	// Inventory.WatchAddresses.
	AddressesKnown bool
	// ObservedSince is the time of the first Snapshot, AbsentSince by Host that of the first one that lacks a
	// Host which an earlier one lists.
	ObservedSince time.Time
	AbsentSince   map[string]time.Time
}

// Host is a row with the allocations of its guests.
type Host struct {
	proxmox.HostRow
	// Allocated is the sum of its guests' allocations.
	Allocated Amount
	// OutOfServiceSince is when the Host was first seen offline or in maintenance; zero if
	// it is neither.
	OutOfServiceSince time.Time
	// OfflineSince is when the Host was first seen offline; zero if it is online.
	OfflineSince time.Time
	// LastOnline is when the Host was last seen online; zero if it was not.
	LastOnline time.Time
	// Hardware is zero until it was read.
	Hardware proxmox.HostInfo
	// Topology is zero if none is published.
	Topology PublishedTopology
	// SizeReported is false if the size is not in the row, but from an earlier one.
	SizeReported bool
}

// Guest is a row with its configuration. Config is nil until it was read, and for
// containers.
type Guest struct {
	proxmox.GuestRow
	Config *proxmox.VMConfig
	// LastNotes are the last notes with an ownership mark that were read; empty if those in Config have one.
	LastNotes string
	// Stale is true if the row has no resources and name, template flag and resources come
	// from an earlier poll. Status is always current.
	Stale bool
	// Allocated is what the guest uses of its Host by the rule in the package comment.
	Allocated Amount

	// addresses in Config.
	addresses []netip.Addr
}

// StorageKey identifies a storage on a Host.
type StorageKey struct{ Host, Storage string }

// VMIDRange is an inclusive range of VMIDs. The zero value is empty.
type VMIDRange struct{ From, To int }

// Contains reports whether the VMID is in the range.
func (r VMIDRange) Contains(vmid int) bool { return r.From <= vmid && vmid <= r.To && vmid > 0 }

// StoragesOf returns the names of a Host's storages in order.
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

// Without returns a copy of the Snapshot that lacks a guest.
func (s *Snapshot) Without(vmid int) *Snapshot {
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

// IsOnline reports whether a Host answers requests.
func (s *Snapshot) IsOnline(host string) bool { return s.Host(host).Online }
