// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// View is what is known at one moment: the last good Snapshot of every Cluster
// and the Reservations on top. It is never changed once made, and must be made
// with NewView: a View put together by hand knows no Host.
type View struct {
	// Snapshots by region. A Cluster that was never read has none.
	Snapshots map[string]*Snapshot
	// Failures by region: why the last poll failed, absent when it succeeded.
	// Each is a *PollError.
	Failures map[string]error
	// Reservations by claim UID.
	Reservations map[string]Reservation
	// Generation is larger whenever something relevant differs from an earlier View.
	Generation uint64

	index            *index
	recentlyReleased map[netip.Addr]time.Time
}

// Absence is why a Host is out of service; empty when it is not.
type OutOfServiceReason string

// Why a Host is out of service.
const (
	Offline       OutOfServiceReason = "Offline"
	InMaintenance OutOfServiceReason = "InMaintenance"
	Excluded      OutOfServiceReason = "Excluded"
)

// HostState is a Host's account.
type HostState struct {
	Region string
	Name   string
	// Size is what the Host physically has: no single VM can be larger.
	Size Amount
	// Allocatable is what VMs may take altogether, by settings.
	Allocatable Amount
	// Allocated is what guests take, Reserved what is promised on top of it.
	Allocated Amount
	Reserved  Amount
	// Free = Allocatable - Allocated - Reserved; negative on a Host that somebody
	// filled beyond our settings.
	Free Amount
	// FreeDevices counts the PCI devices that are left, by mapping.
	FreeDevices map[string]int
	// Arch is Kubernetes' name of the Host's architecture: amd64 or arm64.
	Arch string
	// PriceFactor multiplies what a VM costs on this Host.
	PriceFactor float64
	// Away is why the Host is out of service; OutOfServiceSince is when it was first seen to
	// be, which is not known of an excluded one.
	OutOfService      OutOfServiceReason
	OutOfServiceSince time.Time
	// Unusable tells in words why no new VM may go there; empty when one may.
	Unusable string
}

// StorageState is a storage on a Host with what is left of it.
type StorageState struct {
	proxmox.StorageRow
	// FreeBytes is what is left below the high-water mark after Reservations;
	// negative when the mark is passed.
	FreeBytes int64
}

// PollError tells why the view of a Cluster is not fresh.
type PollError struct {
	Region string
	// Since is when the first of these failures happened, Count how many there
	// were in a row.
	Since time.Time
	Count int
	Err   error
}

// Error leaves out how often: what is told of it, in conditions for one, would change
// with each poll.
func (e *PollError) Error() string {
	return fmt.Sprintf("polling %s has failed since %s, %v", e.Region, e.Since.UTC().Format(time.RFC3339), e.Err)
}

func (e *PollError) Unwrap() error { return e.Err }

// NewView makes a View of its parts. The maps must not be changed afterwards.
func NewView(snapshots map[string]*Snapshot, failures map[string]error, reservations map[string]Reservation, settings Settings) View {
	v := View{Snapshots: snapshots, Failures: failures, Reservations: reservations}
	v.index = newIndex(v, settings)
	return v
}

// Host is the account of a Host; false for one that no Snapshot shows.
func (v View) Host(region, host string) (HostState, bool) {
	if v.index == nil {
		return HostState{}, false
	}
	account, ok := v.index.hosts[region][host]
	if !ok {
		return HostState{}, false
	}
	return account.state, true
}

// Hosts lists every known Host by region and name, those that are away included.
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

// Free is what new VMs may still take on a Host; nothing on an unknown one.
func (v View) Free(region, host string) Amount {
	state, _ := v.Host(region, host)
	return state.Free
}

// Allocatable is what VMs may take on a Host altogether.
func (v View) Allocatable(region, host string) Amount {
	state, _ := v.Host(region, host)
	return state.Allocatable
}

// Usable tells whether a new VM may go to the Host, and if not, why.
func (v View) Usable(region, host string) (ok bool, reason string) {
	state, known := v.Host(region, host)
	if !known {
		return false, v.unknownHost(region)
	}
	return state.Unusable == "", state.Unusable
}

// unknownHost tells why no Snapshot shows a Host of that region.
func (v View) unknownHost(region string) string {
	switch err, failed := v.Failures[region]; {
	case v.Snapshots[region] != nil:
		return fmt.Sprintf("region %s has no such Host", region)
	case failed:
		return fmt.Sprintf("region %s could not be read yet: %v", region, err)
	default:
		return fmt.Sprintf("region %s was not read yet", region)
	}
}

// Guest looks a VMID up in the region's Snapshot.
func (v View) Guest(region string, vmid int) (Guest, bool) {
	return v.Snapshots[region].guest(vmid)
}

// Taken tells whether a VMID is in use or promised.
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

// VMs counts the VMs of a NodePool on a Host, those on their way included.
func (v View) NodePoolVMs(region, host, nodePool string) int {
	if v.index == nil {
		return 0
	}
	return v.index.nodePoolVMs[nodePool][hostKey{region, host}]
}

// OtherNodePoolHost names a Host, other than this one, that has VMs of the NodePool;
// empty where there is none.
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

// Storage is the state of a storage on a Host; false where the Snapshot shows none.
func (v View) Storage(region, host, storage string) (StorageState, bool) {
	snapshot := v.Snapshots[region]
	if snapshot == nil || v.index == nil {
		return StorageState{}, false
	}
	row, ok := snapshot.Storages[StorageKey{Host: host, Storage: storage}]
	if !ok {
		return StorageState{}, false
	}
	account, ok := v.index.hosts[region][host]
	if !ok {
		return StorageState{}, false
	}
	promised := account.limits.reservedBytes(row, v.index.reservedBytes[diskKeyOf(region, row)])
	free := int64(float64(row.TotalBytes)*account.limits.StorageHighWater) - row.UsedBytes - promised
	return StorageState{StorageRow: row, FreeBytes: free}, true
}

// StorageFree is what is left of a storage on a Host below its high-water mark,
// after Reservations; false where there is no such storage or it is not active.
func (v View) StorageFree(region, host, storage string) (int64, bool) {
	state, ok := v.Storage(region, host, storage)
	return state.FreeBytes, ok && state.Available
}
