// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"cmp"
	"time"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// Row states of a guest that decide whether it counts.
const (
	statusStopped = "stopped"
	statusRunning = "running"
)

// Reading is what one poll of a Cluster brought.
type PollResult struct {
	Region    string
	Taken     time.Time
	Version   proxmox.Version
	Options   proxmox.ClusterOptions
	Facts     *Facts
	Resources proxmox.Resources
	// Configs by VMID, as far as they were read.
	Configs           map[int]*proxmox.VMConfig
	ReportedAddresses ReportedAddresses
	// Complete is true when all addresses were asked for.
	Complete bool
	// Mappings name PCI devices.
	Mappings []proxmox.PCIMapping
	// Hardware by Host, as far as it was read.
	Hardware map[string]proxmox.HostInfo
}

// NewSnapshot makes a Snapshot of a reading. Rows without figures take them from
// the previous Snapshot, if there is one; own is the range of our VMIDs.
func NewSnapshot(reading PollResult, previous *Snapshot, own VMIDRange) *Snapshot {
	s := &Snapshot{
		Region:   reading.Region,
		Taken:    reading.Taken,
		Version:  reading.Version,
		Options:  reading.Options,
		Facts:    reading.Facts,
		Hosts:    make(map[string]Host, len(reading.Resources.Hosts)),
		Guests:   make(map[int]Guest, len(reading.Resources.Guests)),
		Storages: make(map[StorageKey]proxmox.StorageRow, len(reading.Resources.Storages)),
		Mappings: reading.Mappings,
	}
	for _, row := range reading.Resources.Hosts {
		s.Hosts[row.Name] = Host{
			HostRow: withLastFigures(row, previous), OutOfServiceSince: awaySince(row, previous, reading.Taken), Hardware: reading.Hardware[row.Name],
		}
	}
	for _, row := range reading.Resources.Storages {
		s.Storages[StorageKey{Host: row.Host, Storage: row.Name}] = row
	}
	for _, row := range reading.Resources.Guests {
		guest := Guest{GuestRow: row, Config: reading.Configs[row.VMID]}
		before, ok := previous.guest(row.VMID)
		if ok {
			guest = carryOver(guest, before)
		}
		switch {
		case guest.Config == before.Config:
			guest.addresses = before.addresses
		case guest.Config != nil:
			guest.addresses = guest.Config.Network().Addresses()
		}
		s.add(guest, own)
	}
	s.Addresses, s.AddressesKnown = addressesOf(reading, s.Guests), reading.Complete
	return s
}

// add puts a guest in and charges its Host for it.
func (s *Snapshot) add(guest Guest, own VMIDRange) {
	host, ok := s.Hosts[guest.Host]
	guest.Allocated = charge(guest, host.CPUs, own)
	s.Guests[guest.VMID] = guest
	if ok {
		host.Allocated = host.Allocated.Plus(guest.Allocated)
		s.Hosts[guest.Host] = host
	}
}

// guest looks a VMID up; a nil Snapshot has none.
func (s *Snapshot) guest(vmid int) (Guest, bool) {
	if s == nil {
		return Guest{}, false
	}
	g, ok := s.Guests[vmid]
	return g, ok
}

// withLastFigures keeps the size of a Host that is away: Proxmox shows none, and
// what was promised there does not shrink with it.
func withLastFigures(row proxmox.HostRow, previous *Snapshot) proxmox.HostRow {
	if row.Online || row.CPUs > 0 || previous == nil {
		return row
	}
	before := previous.Hosts[row.Name]
	row.CPUs, row.MemoryBytes = before.CPUs, before.MemoryBytes
	row.Arch = cmp.Or(before.Arch, row.Arch)
	return row
}

// awaySince tells since when a Host that is away was seen to be.
func awaySince(row proxmox.HostRow, previous *Snapshot, now time.Time) time.Time {
	if row.Online && !row.Maintenance {
		return time.Time{}
	}
	if previous != nil && !previous.Hosts[row.Name].OutOfServiceSince.IsZero() {
		return previous.Hosts[row.Name].OutOfServiceSince
	}
	return now
}

// carryOver fills a row without figures from the guest's last appearance. A VM
// and a container never share a VMID's history.
func carryOver(guest, before Guest) Guest {
	if guest.HasResources() || guest.Kind != before.Kind || !before.HasResources() {
		return guest
	}
	guest.Stale = true
	guest.Template = before.Template
	if guest.Name == "" {
		guest.Name = before.Name
	}
	guest.CPUs, guest.MemoryBytes, guest.DiskBytes = before.CPUs, before.MemoryBytes, before.DiskBytes
	guest.Allocated = before.Allocated
	return guest
}

// charge applies the rule of the package comment. For a stale row it is what the
// guest was charged before: whether it runs is not known now.
func charge(guest Guest, hostCPUs int, own VMIDRange) Amount {
	switch {
	case guest.Template || (guest.Config != nil && guest.Config.IsTemplate()):
		return Amount{}
	case guest.Stale:
		return guest.Allocated
	case !guest.HasResources():
		return configured(guest)
	case guest.Status == statusStopped && !own.Contains(guest.VMID):
		return Amount{}
	}
	amount := Amount{CPUs: guest.CPUs, MemoryBytes: guest.MemoryBytes}
	if guest.Kind == proxmox.KindLXC && guest.CPUs >= hostCPUs {
		amount.CPUs = 0
	}
	return amount
}

// configured is what a guest's configuration asks for, where we have read it.
func configured(guest Guest) Amount {
	if guest.Config == nil {
		return Amount{}
	}
	return Amount{
		CPUs:        guest.Config.Compute().Cores() * guest.Config.Compute().Sockets(),
		MemoryBytes: int64(guest.Config.Compute().MemoryMiB()) << 20,
	}
}
