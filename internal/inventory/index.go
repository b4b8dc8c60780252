// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"net/netip"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/declared"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/observed"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// NewView returns a View of its arguments. The caller must not change the maps
// afterwards.
func NewView(snapshots map[string]*observed.Snapshot, failures map[string]error, reservations map[string]Reservation, settings declared.Settings, records declared.Records) View {
	v := View{Snapshots: snapshots, Failures: failures, Reservations: reservations, settings: settings, records: records}
	v.index = newIndex(v)
	return v
}

func newIndex(v View) *index {
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
			limits := v.settings.For(region, name)
			state := newHostState(region, host, limits)
			state.Sleep = v.records.Sleeping[observed.HostName{Region: region, Host: name}].SleepState(host.Online)
			state.Conditions = conditionsOf(host, limits, snapshot, v.records, v.Failures[region])
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

func newHostState(region string, host observed.Host, limits declared.HostSettings) HostState {
	state := HostState{
		Region:       region,
		Name:         host.Name,
		Size:         observed.Amount{CPUs: host.CPUs, MemoryBytes: host.MemoryBytes},
		Allocatable:  limits.Allocatable(host.HostRow),
		Allocated:    host.Allocated,
		Arch:         kubernetesArch(host.Arch),
		PriceFactor:  limits.PriceFactor,
		KeepsReserve: limits.KeepsReserve,
		Power:        limits.Power,
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
		extra = r.Amount.Minus(guest.Allocated).AtLeast(observed.Amount{})
	}
	if account, ok := x.hosts[r.Region][r.Host]; ok {
		account.state.Reserved = account.state.Reserved.Plus(extra)
		account.state.Free = account.state.Free.Minus(extra)
	}
	// A VM that is listed on a Host that is offline has its disks, and they count as used.
	if !visible || v.Snapshots[r.Region].Host(guest.Host).Online {
		x.addReservedDisks(r, v.Snapshots[r.Region])
	}
}

func (x *index) addReservedDisks(r Reservation, snapshot *observed.Snapshot) {
	if snapshot == nil || r.Storage == "" {
		return
	}
	key := diskKeyIn(snapshot, r.Region, r.Host, r.Storage)
	x.reservedBytes[key] += r.DiskBytes
	if r.CPUs > 0 { // not parked
		x.queuedClones[key]++
	}
	for _, disk := range r.Disks {
		x.reservedBytes[diskKeyIn(snapshot, r.Region, r.Host, disk.Storage)] += disk.Bytes
	}
}

// diskKeyIn returns the key of a storage of a Host, which the Snapshot may not list.
func diskKeyIn(s *observed.Snapshot, region, host, storage string) diskKey {
	row, ok := s.Storages[observed.StorageKey{Host: host, Storage: storage}]
	if !ok {
		row = proxmox.StorageRow{Name: storage, Host: host}
	}
	return diskKeyOf(region, row)
}
