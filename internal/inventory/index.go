// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

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
	limits HostSettings
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

func newIndex(v View, settings Settings) *index {
	x := &index{
		hosts:             make(map[string]map[string]*hostAccount, len(v.Snapshots)),
		vmids:             make(map[vmidKey]struct{}, len(v.Reservations)),
		nodePoolVMs:       map[string]map[hostKey]int{},
		reservedBytes:     map[diskKey]int64{},
		queuedClones:      map[diskKey]int{},
		reservedAddresses: map[netip.Addr]string{},
		failovers:         map[failoverKey]func() *Failover{},
	}
	for region, snapshot := range v.Snapshots {
		x.hosts[region] = make(map[string]*hostAccount, len(snapshot.Hosts))
		for name, host := range snapshot.Hosts {
			limits := settings.For(region, name)
			record := settings.sleeping[HostName{Region: region, Host: name}]
			sleep := record.sleepState(host.Online)
			state := newHostState(region, host, limits, sleep, v.Failures[region])
			state.MaintenanceUnknown = state.Maintenance == "" && (snapshot.MaintenanceUnknown || settings.maintenanceUnknown)
			state.SleepSince = record.Since
			state.SleepOutdated = settings.sleepingOutdated && (sleep != "" || limits.Power.Mode == PowerEnabled || !host.IsUp())
			if state.SleepOutdated {
				state.SleepFailure = settings.sleepingFailure
			}
			x.hosts[region][name] = &hostAccount{state: state, limits: limits}
		}
	}
	for _, r := range v.Reservations {
		x.addReservation(r, v)
	}
	x.addDevices(v)
	x.addCells(v)
	x.addFailovers(v)
	return x
}

func newHostState(region string, host Host, limits HostSettings, sleep SleepState, failure error) HostState {
	state := HostState{
		Region:            region,
		Name:              host.Name,
		Size:              Amount{CPUs: host.CPUs, MemoryBytes: host.MemoryBytes},
		Allocatable:       limits.allocatable(host.HostRow),
		Allocated:         host.Allocated,
		Arch:              kubernetesArch(host.Arch),
		PriceFactor:       limits.PriceFactor,
		OutOfService:      outOfServiceReason(host.HostRow, limits, sleep),
		OutOfServiceSince: host.OutOfServiceSince,
		OfflineSince:      host.OfflineSince,
		Maintenance:       maintenanceReason(host.HostRow, limits),
		Unusable:          unusableReason(host.HostRow, limits, sleep, failure),
		KeepsReserve:      limits.KeepsReserve,
		Power:             limits.Power,
		Sleep:             sleep,
	}
	state.Free = state.Allocatable.Minus(state.Allocated)
	return state
}

// kubernetesArch returns the Kubernetes name of an architecture.
func kubernetesArch(arch string) string {
	if arch == "aarch64" {
		return "arm64"
	}
	return "amd64"
}

func outOfServiceReason(row proxmox.HostRow, limits HostSettings, sleep SleepState) OutOfServiceReason {
	switch {
	case limits.Excluded:
		return Excluded
	case !row.Online && !sleep.isAvailable():
		return Offline
	case maintenanceReason(row, limits) != "":
		return InMaintenance
	}
	return ""
}

// maintenanceReason describes who put a Host into maintenance; empty if nobody did.
func maintenanceReason(row proxmox.HostRow, limits HostSettings) string {
	if row.Maintenance {
		return "Proxmox HA maintenance"
	}
	return limits.Maintenance
}

// unusableReason describes why a Host accepts no new VMs; empty if it accepts them.
func unusableReason(row proxmox.HostRow, limits HostSettings, sleep SleepState, failure error) string {
	switch {
	case limits.Excluded:
		return "excluded by settings"
	case isConclusive(failure):
		// Without the count: conditions quote the text and would change with each poll.
		state := "been unreachable"
		if errors.Is(failure, proxmox.ErrNoQuorum) {
			state = "had no quorum"
		}
		if poll, ok := errors.AsType[*PollError](failure); ok {
			return fmt.Sprintf("the Proxmox cluster has %s since %s: %v", state, poll.Since.UTC().Format(time.RFC3339), poll.Err)
		}
		return fmt.Sprintf("the Proxmox cluster is unreachable: %v", failure)
	case !row.Online && sleep == WakeFailed:
		return "it was shut down to save energy and did not wake up in time"
	case !row.Online && !sleep.isAvailable():
		return "offline"
	case maintenanceReason(row, limits) != "":
		return "in maintenance"
	case row.CPUs == 0 || row.MemoryBytes == 0:
		return "Proxmox does not report its size: the token needs Sys.Audit on /nodes/" + row.Name
	}
	return ""
}

// isConclusive reports whether failed polls mean that a launch would fail too. A single
// failure may be transient, and removing offerings for it costs more than one failed
// launch.
func isConclusive(failure error) bool {
	poll, ok := errors.AsType[*PollError](failure)
	return ok && (poll.Count > 1 || errors.Is(failure, proxmox.ErrUnauthorized) || errors.Is(failure, proxmox.ErrNoQuorum))
}

// addReservation counts a Reservation.
func (x *index) addReservation(r Reservation, v View) {
	x.vmids[vmidKey{r.Region, r.VMID}] = struct{}{}
	for _, addr := range r.Addresses {
		x.reservedAddresses[addr] = r.ClaimUID
	}
	guest, visible := v.Guest(r.Region, r.VMID)
	key := hostKey{r.Region, r.Host}
	if r.Fulfilled && visible {
		key.host = guest.Host // it may have been migrated
	}
	if x.nodePoolVMs[r.NodePool] == nil {
		x.nodePoolVMs[r.NodePool] = map[hostKey]int{}
	}
	x.nodePoolVMs[r.NodePool][key]++
	if r.Fulfilled {
		return
	}

	extra := r.Amount
	if visible && guest.Host == r.Host {
		extra = r.Amount.Minus(guest.Allocated).atLeast(Amount{})
	}
	if account, ok := x.hosts[r.Region][r.Host]; ok {
		account.state.Reserved = account.state.Reserved.Plus(extra)
		account.state.Free = account.state.Free.Minus(extra)
	}
	// A VM that is listed on a Host that is offline has its disks, and they count as used.
	if !visible || v.Snapshots[r.Region].host(guest.Host).Online {
		x.addReservedDisks(r, v.Snapshots[r.Region])
	}
}

func (x *index) addReservedDisks(r Reservation, snapshot *Snapshot) {
	if snapshot == nil || r.Storage == "" {
		return
	}
	key := snapshot.diskKey(r.Region, r.Host, r.Storage)
	x.reservedBytes[key] += r.DiskBytes
	if r.CPUs > 0 { // not parked
		x.queuedClones[key]++
	}
	for _, disk := range r.Disks {
		x.reservedBytes[snapshot.diskKey(r.Region, r.Host, disk.Storage)] += disk.Bytes
	}
}

// diskKey returns the key of a storage of a Host, which the Snapshot may not list.
func (s *Snapshot) diskKey(region, host, storage string) diskKey {
	row, ok := s.Storages[StorageKey{Host: host, Storage: storage}]
	if !ok {
		row = proxmox.StorageRow{Name: storage, Host: host}
	}
	return diskKeyOf(region, row)
}
