// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/backoff"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/declared"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/observed"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// View is the state of all Clusters at one moment: the last good Snapshot of each
// Cluster and the Reservations. A View is immutable. Create it with NewView; the zero
// value contains no Hosts.
type View struct {
	// Snapshots by region. A Cluster that was never read has none.
	Snapshots map[string]*observed.Snapshot
	// Failures by region: the error of the last poll if it failed, always a *PollError.
	Failures map[string]error
	// Reservations by claim UID.
	Reservations map[string]Reservation
	// Generation increases with every relevant change.
	Generation uint64

	settings declared.Settings
	records  declared.Records
	index    *index
	released *backoff.Holds[netip.Addr]
}

// Host returns the state of a Host. It returns false, and a state that is available for nothing, if no
// Snapshot lists the Host.
func (v View) Host(region, host string) (HostState, bool) {
	if v.index != nil {
		if account, ok := v.index.hosts[region][host]; ok {
			return account.state, true
		}
	}
	return HostState{Region: region, Name: host, Conditions: []HostCondition{{Reason: Unlisted, Message: v.unlistedMessage(region)}}}, false
}

// Hosts returns all known Hosts sorted by region and name, including those out of
// service.
func (v View) Hosts() []HostState {
	if v.index == nil {
		return nil
	}
	var hosts []HostState
	for _, accounts := range v.index.hosts {
		for _, account := range accounts {
			hosts = append(hosts, account.state)
		}
	}
	slices.SortFunc(hosts, func(a, b HostState) int {
		return cmp.Or(cmp.Compare(a.Region, b.Region), cmp.Compare(a.Name, b.Name))
	})
	return hosts
}

// unlistedMessage describes why no Snapshot lists a Host of the region.
func (v View) unlistedMessage(region string) string {
	switch err, failed := v.Failures[region]; {
	case v.Snapshots[region] != nil:
		return fmt.Sprintf("region %s has no such host", region)
	case failed:
		return fmt.Sprintf("region %s could not be read yet: %v", region, err)
	default:
		return fmt.Sprintf("region %s was not read yet", region)
	}
}

// Guest returns a guest from the region's Snapshot. It returns false if the Snapshot
// does not list the VMID.
func (v View) Guest(region string, vmid int) (observed.Guest, bool) {
	return v.Snapshots[region].Guest(vmid)
}

// IsVMIDTaken reports whether a VMID is in use or reserved.
func (v View) IsVMIDTaken(region string, vmid int) bool {
	if _, ok := v.Guest(region, vmid); ok {
		return true
	}
	if v.index == nil {
		return false
	}
	_, ok := v.index.vmids[vmidKey{region, vmid}]
	return ok
}

// NodePoolVMs returns the number of VMs of a NodePool on a Host, including those that
// are being launched.
func (v View) NodePoolVMs(region, host, nodePool string) int {
	if v.index == nil {
		return 0
	}
	return v.index.nodePoolVMs[nodePool][hostKey{region, host}]
}

// OtherNodePoolHost returns the name of another Host that runs VMs of the NodePool, or
// an empty string.
func (v View) OtherNodePoolHost(region, host, nodePool string) string {
	if v.index == nil {
		return ""
	}
	found := ""
	for other, vms := range v.index.nodePoolVMs[nodePool] {
		if other != (hostKey{region, host}) && vms > 0 && (found == "" || other.host < found) {
			found = other.host
		}
	}
	return found
}

// Storage returns the state of a storage of a Host. It returns false if the Snapshot
// does not list it.
func (v View) Storage(region, host, storage string) (StorageState, bool) {
	snapshot := v.Snapshots[region]
	if snapshot == nil || v.index == nil {
		return StorageState{}, false
	}
	row, ok := snapshot.Storages[observed.StorageKey{Host: host, Storage: storage}]
	if !ok {
		return StorageState{}, false
	}
	account, ok := v.index.hosts[region][host]
	if !ok {
		return StorageState{}, false
	}
	key := diskKeyOf(region, row)
	reserved := account.limits.ReservedBytes(row, v.index.reservedBytes[key])
	free := int64(float64(row.TotalBytes)*account.limits.StorageHighWater) - row.UsedBytes - reserved
	return StorageState{StorageRow: row, FreeBytes: free, ReservedBytes: reserved, QueuedClones: v.index.queuedClones[key]}, true
}

// Unavailable returns why nothing may be concluded from the last Snapshot of a Cluster
// and why it accepts no launches: its last polls failed. It returns nil if the Cluster is
// available.
func (v View) Unavailable(region string) error {
	if failure := v.Failures[region]; isConclusive(failure) {
		return failure
	}
	return nil
}

// IsRemoved reports whether a Host was removed permanently from its Cluster: the Cluster is
// reachable and polls have found no such Host for the given duration, even if it still lists guests of it.
// An offline Host is listed.
func (v View) IsRemoved(name observed.HostName, after time.Duration) bool {
	s := v.Snapshots[name.Region]
	if name.Host == "" || s == nil || v.Failures[name.Region] != nil {
		return false
	}
	if _, member := s.Hosts[name.Host]; member {
		return false
	}
	since, seen := s.AbsentSince[name.Host]
	if !seen {
		since = s.ObservedSince
	}
	return s.Taken.Sub(since) >= after
}

// IsFenced reports whether an administrator declared a Host as powered off, and it was not
// seen online since.
func (v View) IsFenced(name observed.HostName) bool {
	_, fenced := v.records.Fences[name]
	return fenced && !v.HasFenceEnded(name)
}

// HasFenceEnded reports whether a Host was seen online after an administrator declared it as
// powered off.
func (v View) HasFenceEnded(name observed.HostName) bool {
	fence, fenced := v.records.Fences[name]
	return fenced && fence.HasEnded(v.Snapshots[name.Region].Host(name.Host).LastOnline)
}

// HostEnergy returns the Energy of a Host; zero if it is offline.
func (v View) HostEnergy(host HostState) declared.Energy {
	if row := v.Snapshots[host.Region].Hosts[host.Name]; row.Online {
		return host.Power.Energy(row.CPULoad)
	}
	return declared.Energy{}
}

// SavedEnergy returns the Energy of a Host without load if it is off to save energy.
func (h HostState) SavedEnergy() declared.Energy {
	if h.Sleep != declared.Asleep {
		return declared.Energy{}
	}
	return h.Power.Energy(0)
}

// NodePoolEnergy returns the Energy of each NodePool. The guests of a Host share its Energy in
// proportion to their CPUs.
func (v View) NodePoolEnergy() map[string]declared.Energy {
	out := map[string]declared.Energy{}
	for _, r := range v.Reservations {
		guest, ok := v.Guest(r.Region, r.VMID)
		host, known := v.Host(r.Region, guest.Host)
		if r.Template || !ok || !known || guest.Allocated.CPUs == 0 {
			continue
		}
		if energy := v.HostEnergy(host); energy.Watts > 0 {
			out[r.NodePool] = out[r.NodePool].Plus(energy.Part(float64(guest.Allocated.CPUs) / float64(host.Allocated.CPUs)))
		}
	}
	return out
}

// index holds the precomputed answers of a View, so thousands of fit checks cost one map
// lookup each.
type index struct {
	hosts map[string]map[string]*hostAccount // by region and name
	vmids map[vmidKey]struct{}
	// nodePoolVMs counts VMs by NodePool and Host.
	nodePoolVMs   map[string]map[hostKey]int
	reservedBytes map[diskKey]int64
	// queuedClones counts the VMs that are not cloned or configured yet.
	queuedClones map[diskKey]int
	// reservedAddresses are claim UIDs by address.
	reservedAddresses map[netip.Addr]string
	failovers         map[failoverKey]func() *Failover
}

// hostAccount is the state of a Host with its settings.
type hostAccount struct {
	state  HostState
	limits declared.HostSettings
	cells  func() *CellAccounts
}

type hostKey struct{ region, host string }

type vmidKey struct {
	region string
	vmid   int
}

// diskKey identifies a storage for capacity. A shared storage has no host.
type diskKey struct{ region, host, storage string }

func diskKeyOf(region string, row proxmox.StorageRow) diskKey {
	if row.Shared {
		return diskKey{region: region, storage: row.Name}
	}
	return diskKey{region: region, host: row.Host, storage: row.Name}
}

// failoverKey identifies Hosts that can replace each other.
type failoverKey struct{ region, arch string }
