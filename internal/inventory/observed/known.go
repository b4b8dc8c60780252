// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package observed

import (
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/hosttopology"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// KnownHost is what a Snapshot contains about a Host while it is off: Proxmox reports neither its
// size nor its notes, storages and templates then.
type KnownHost struct {
	Host     proxmox.HostRow  `json:"host"`
	Hardware proxmox.HostInfo `json:"hardware"`
	// Topology is the line in the notes of the Host; empty if no valid topology is published.
	Topology string               `json:"topology,omitempty"`
	Storages []proxmox.StorageRow `json:"storages,omitempty"`
	Guests   []KnownGuest         `json:"guests,omitempty"`
}

// KnownGuest is a guest of a KnownHost, with its configuration if it is a template.
type KnownGuest struct {
	proxmox.GuestRow `json:"row"`

	Config *proxmox.VMConfig `json:"config,omitempty"`
}

// KnownHost returns what the Snapshot contains about a Host.
func (s *Snapshot) KnownHost(name string) KnownHost {
	known := KnownHost{Host: s.Hosts[name].HostRow, Hardware: s.Hosts[name].Hardware}
	if topology := s.Hosts[name].Topology.Topology; topology != nil {
		known.Topology = topology.Line(name)
	}
	for _, storage := range s.StoragesOf(name) {
		known.Storages = append(known.Storages, s.Storages[StorageKey{Host: name, Storage: storage}])
	}
	for _, guest := range s.Guests {
		if guest.Host != name {
			continue
		}
		one := KnownGuest{GuestRow: guest.GuestRow}
		if guest.Template {
			one.Config = guest.Config
		}
		known.Guests = append(known.Guests, one)
	}
	return known
}

// IsUp reports whether a Host is online and reports its size, which it does some seconds later.
func (h Host) IsUp() bool { return h.Online && h.SizeReported }

// withKnown completes a row of a Host that is not up.
func (k KnownHost) withKnown(row proxmox.HostRow) proxmox.HostRow {
	if row.CPUs > 0 || k.Host.CPUs == 0 {
		return row
	}
	row.CPUs, row.MemoryBytes, row.Arch = k.Host.CPUs, k.Host.MemoryBytes, k.Host.Arch
	return row
}

// topology returns the topology that the Host had published.
func (k KnownHost) topology() PublishedTopology {
	topology, err := hosttopology.Read(k.Topology, k.Host.Name)
	if err != nil {
		return PublishedTopology{} // of another release
	}
	return PublishedTopology{Topology: topology}
}

// guest returns a guest as it was last seen; false if it was not seen on the Host.
func (k KnownHost) guest(row proxmox.GuestRow) (Guest, bool) {
	for _, known := range k.Guests {
		if known.VMID == row.VMID && known.Kind == row.Kind {
			return Guest{GuestRow: known.GuestRow, Config: known.Config}, true
		}
	}
	return Guest{}, false
}

// addKnownStorages replaces the rows of storages on Hosts that are not up: by that of a Host
// that is, if the storage is shared, otherwise by the last one.
func (s *Snapshot) addKnownStorages(known map[string]KnownHost) {
	for name, host := range known {
		if s.Hosts[name].IsUp() {
			continue
		}
		for _, last := range host.Storages {
			key := StorageKey{Host: name, Storage: last.Name}
			if row, listed := s.Storages[key]; !listed || row.Available {
				continue
			}
			s.Storages[key] = s.sharedStorage(last)
		}
	}
}

// sharedStorage returns the row of a storage with the usage that another Host reports if it is
// shared.
func (s *Snapshot) sharedStorage(last proxmox.StorageRow) proxmox.StorageRow {
	if !last.Shared {
		return last
	}
	for key, row := range s.Storages {
		if key.Storage == last.Name && row.Available && s.Hosts[key.Host].IsUp() {
			last.UsedBytes, last.TotalBytes = row.UsedBytes, row.TotalBytes
		}
	}
	return last
}
