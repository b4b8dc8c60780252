// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package observed

import (
	"cmp"
	"maps"
	"net/netip"
	"time"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/ownership"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// Status values of a guest row.
const (
	StatusStopped = "stopped"
	StatusRunning = "running"
)

// ReportedAddresses are the addresses that are not in VM configurations.
type ReportedAddresses struct {
	// Guests are addresses by VMID: of containers from their configuration, of VMs from
	// their agent.
	Guests map[int][]netip.Addr
	// SDN are the addresses in the IPAM of Proxmox.
	SDN []proxmox.SDNAddress
}

// Result is the data from one poll of a Cluster.
type Result struct {
	Region    string
	Taken     time.Time
	Version   proxmox.Version
	Options   proxmox.ClusterOptions
	Facts     *Facts
	Resources proxmox.Resources
	// Configs are the configurations by VMID that were read.
	Configs           map[int]*proxmox.VMConfig
	ReportedAddresses ReportedAddresses
	// Complete is true once all addresses were read.
	Complete bool
	// Mappings are the PCI mappings.
	Mappings []proxmox.PCIMapping
	// MaintenanceUnknown is true until it was read which Hosts are in HA maintenance.
	MaintenanceUnknown bool
	// Hardware by Host, if it was read.
	Hardware map[string]proxmox.HostInfo
	// Known is what is known about Hosts that were shut down to save energy.
	Known map[string]KnownHost
}

// NewResult returns an empty result.
func NewResult(region string) Result {
	return Result{
		Region: region, Configs: map[int]*proxmox.VMConfig{}, Hardware: map[string]proxmox.HostInfo{},
		ReportedAddresses: ReportedAddresses{Guests: map[int][]netip.Addr{}},
		Facts: &Facts{
			Bridges: map[string]map[string]proxmox.Bridge{}, InterfaceAddresses: map[string][]netip.Addr{}, Pools: map[string]bool{},
			Snippets: map[StorageKey]map[string]bool{}, Topologies: map[string]PublishedTopology{},
		},
	}
}

// NewSnapshot returns the Snapshot of a poll. Rows without resources take them from the
// previous Snapshot, which may be nil. own is the range of our VMIDs.
func NewSnapshot(result Result, previous *Snapshot, own VMIDRange) *Snapshot {
	s := &Snapshot{
		Region:   result.Region,
		Taken:    result.Taken,
		Version:  result.Version,
		Options:  result.Options,
		Facts:    result.Facts,
		Hosts:    make(map[string]Host, len(result.Resources.Hosts)),
		Guests:   make(map[int]Guest, len(result.Resources.Guests)),
		Storages: make(map[StorageKey]proxmox.StorageRow, len(result.Resources.Storages)),
		Mappings: result.Mappings,

		MaintenanceUnknown: result.MaintenanceUnknown,
	}
	for _, row := range result.Resources.Hosts {
		before, known := previous.Host(row.Name), result.Known[row.Name]
		host := Host{
			HostRow: known.withKnown(withLastSize(row, previous)), Hardware: cmp.Or(result.Hardware[row.Name], known.Hardware), SizeReported: row.CPUs > 0,
			Topology:          cmp.Or(result.Facts.topologyOf(row.Name), known.topology()),
			OutOfServiceSince: since(!row.Online || row.Maintenance, before.OutOfServiceSince, result.Taken),
			OfflineSince:      since(!row.Online, before.OfflineSince, result.Taken),
			LastOnline:        before.LastOnline,
		}
		if row.Online {
			host.LastOnline = result.Taken
		}
		s.Hosts[row.Name] = host
	}
	s.observe(previous)
	for _, row := range result.Resources.Storages {
		s.Storages[StorageKey{Host: row.Host, Storage: row.Name}] = row
	}
	s.addKnownStorages(result.Known)
	for _, row := range result.Resources.Guests {
		guest := Guest{GuestRow: row, Config: result.Configs[row.VMID]}
		before, ok := previous.Guest(row.VMID)
		if last, known := result.Known[row.Host].guest(row); known {
			guest.Config = cmp.Or(guest.Config, last.Config)
			if !row.HasResources() && !before.HasResources() {
				before, ok = last, true
			}
		}
		if ok {
			guest = carryOver(guest, before, s.Hosts[row.Host].isBooting())
		}
		switch {
		case guest.Config == before.Config:
			guest.addresses, guest.LastNotes = before.addresses, before.LastNotes
		case guest.Config != nil:
			guest.LastNotes = lastNotes(*guest.Config, before)
			guest.addresses = guest.Config.Network().Addresses()
		}
		s.add(guest, own)
	}
	s.Addresses, s.AddressesKnown = collectAddresses(result, s.Hosts, s.Guests, own), result.Complete
	return s
}

// lastNotes returns the last notes with an ownership mark, unless the configuration has one.
func lastNotes(config proxmox.VMConfig, before Guest) string {
	if _, marked := ownership.Read(config.Description()); marked {
		return ""
	}
	if before.Config != nil {
		if _, marked := ownership.Read(before.Config.Description()); marked {
			return before.Config.Description()
		}
	}
	return before.LastNotes
}

// add adds a guest and its allocation on its Host.
func (s *Snapshot) add(guest Guest, own VMIDRange) {
	host, ok := s.Hosts[guest.Host]
	guest.Allocated = allocationOf(guest, host.CPUs, own)
	s.Guests[guest.VMID] = guest
	if ok {
		host.Allocated = host.Allocated.Plus(guest.Allocated)
		s.Hosts[guest.Host] = host
	}
}

// maxObservationGap is the time between two Snapshots after which a Host may have been a member of
// the Cluster in between.
const maxObservationGap = 10 * time.Minute

// observe records since when Hosts are missing.
func (s *Snapshot) observe(previous *Snapshot) {
	s.ObservedSince, s.AbsentSince = s.Taken, map[string]time.Time{}
	if previous == nil || s.Taken.Sub(previous.Taken) >= maxObservationGap {
		return
	}
	s.ObservedSince = previous.ObservedSince
	maps.Copy(s.AbsentSince, previous.AbsentSince)
	for name := range previous.Hosts {
		s.AbsentSince[name] = s.Taken
	}
	maps.DeleteFunc(s.AbsentSince, func(name string, _ time.Time) bool {
		_, member := s.Hosts[name]
		return member
	})
}

// Guest returns a guest by VMID. A nil Snapshot has none.
func (s *Snapshot) Guest(vmid int) (Guest, bool) {
	if s == nil {
		return Guest{}, false
	}
	g, ok := s.Guests[vmid]
	return g, ok
}

// Host returns a Host by name; zero if there is none. A nil Snapshot has none.
func (s *Snapshot) Host(name string) Host {
	if s == nil {
		return Host{}
	}
	return s.Hosts[name]
}

// withLastSize keeps the size of an offline Host, for which Proxmox reports none. Its
// allocations remain as well.
func withLastSize(row proxmox.HostRow, previous *Snapshot) proxmox.HostRow {
	if row.Online || row.CPUs > 0 || previous == nil {
		return row
	}
	before := previous.Hosts[row.Name]
	row.CPUs, row.MemoryBytes = before.CPUs, before.MemoryBytes
	row.Arch = cmp.Or(before.Arch, row.Arch)
	return row
}

// since returns when something was first seen to be the case; zero if it is not.
func since(is bool, before, now time.Time) time.Time {
	switch {
	case !is:
		return time.Time{}
	case before.IsZero():
		return now
	}
	return before
}

// bootTime is how long after its start a Host may still start guests: Proxmox starts them one
// after the other.
const bootTime = 15 * time.Minute

// isBooting reports whether the Host may still start the guests that ran before it was restarted.
func (h Host) isBooting() bool {
	return h.UptimeSeconds > 0 && h.UptimeSeconds < int64(bootTime.Seconds())
}

// carryOver sets the resources of a row that has none from the guest's last row, unless a
// VM replaced a container with the same VMID or vice versa. A guest on a Host that boots
// keeps its last allocation until it is started.
func carryOver(guest, before Guest, booting bool) Guest {
	if guest.Kind != before.Kind || !before.HasResources() {
		return guest
	}
	if guest.HasResources() {
		if booting && guest.Host == before.Host {
			guest.Allocated = before.Allocated
		}
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

// allocationOf implements the rule in the package comment. For a stale row it is the last
// allocation, because it is unknown whether the guest runs. The same applies to a stopped guest
// if carryOver has set its last allocation.
func allocationOf(guest Guest, hostCPUs int, own VMIDRange) Amount {
	switch {
	case guest.Template || (guest.Config != nil && guest.Config.IsTemplate()) || guest.isTopologyVM():
		return Amount{}
	case guest.Stale:
		return guest.Allocated
	case !guest.HasResources():
		return configuredAmount(guest)
	case guest.Status == StatusStopped && !own.Contains(guest.VMID):
		return guest.Allocated
	}
	amount := Amount{CPUs: guest.CPUs, MemoryBytes: guest.MemoryBytes}
	if guest.Kind == proxmox.KindLXC && guest.CPUs >= hostCPUs {
		amount.CPUs = 0
	}
	return amount
}

// configuredAmount returns the size in a guest's configuration; zero if it was not read.
func configuredAmount(guest Guest) Amount {
	if guest.Config == nil {
		return Amount{}
	}
	return Amount{
		CPUs:        guest.Config.Compute().Cores() * guest.Config.Compute().Sockets(),
		MemoryBytes: int64(guest.Config.Compute().MemoryMiB()) << 20,
	}
}
