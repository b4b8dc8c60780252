// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"errors"
	"fmt"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// index holds what a View's methods answer from, computed once per View so that
// thousands of fit checks cost a map lookup each.
type index struct {
	hosts    map[hostKey]HostState
	limits   map[hostKey]HostSettings
	vmids    map[vmidKey]struct{}
	pools    map[poolKey]int
	storages map[diskKey]int64 // promised bytes
}

type hostKey struct{ region, host string }

type vmidKey struct {
	region string
	vmid   int
}

type poolKey struct {
	hostKey
	nodePool string
}

// diskKey names one pool of bytes: a shared storage has no host.
type diskKey struct{ region, host, storage string }

func diskKeyOf(region string, row proxmox.StorageRow) diskKey {
	if row.Shared {
		return diskKey{region: region, storage: row.Name}
	}
	return diskKey{region: region, host: row.Host, storage: row.Name}
}

func newIndex(v View, settings Settings) *index {
	x := &index{
		hosts:    map[hostKey]HostState{},
		limits:   map[hostKey]HostSettings{},
		vmids:    make(map[vmidKey]struct{}, len(v.Reservations)),
		pools:    map[poolKey]int{},
		storages: map[diskKey]int64{},
	}
	for region, snapshot := range v.Snapshots {
		for name, host := range snapshot.Hosts {
			key := hostKey{region, name}
			x.limits[key] = settings.For(region, name)
			x.hosts[key] = newHostState(region, host, x.limits[key], v.Failures[region])
		}
	}
	for _, r := range v.Reservations {
		x.add(r, v)
	}
	return x
}

func newHostState(region string, host Host, limits HostSettings, failure error) HostState {
	state := HostState{
		Region:      region,
		Name:        host.Name,
		Size:        Amount{CPUs: host.CPUs, MemoryBytes: host.MemoryBytes},
		Allocatable: limits.allocatable(host.HostRow),
		Allocated:   host.Allocated,
		Unusable:    unusable(host.HostRow, limits, failure),
	}
	state.Free = state.Allocatable.Minus(state.Allocated)
	return state
}

// unusable tells why a Host takes no new VM; empty when it does.
func unusable(row proxmox.HostRow, limits HostSettings, failure error) string {
	switch {
	case limits.Excluded:
		return "excluded by settings"
	case isConclusive(failure):
		return fmt.Sprintf("the Cluster does not answer: %v", failure)
	case !row.Online:
		return "offline"
	case row.Maintenance:
		return "in maintenance"
	case row.CPUs == 0 || row.MemoryBytes == 0:
		return "Proxmox shows no figures for it: the token needs Sys.Audit on /nodes/" + row.Name
	}
	return ""
}

// isConclusive tells whether failed polls mean that a launch would fail too. One
// failure may be a hiccup, and offerings that flap cost more than one failed try.
func isConclusive(failure error) bool {
	var poll *PollError
	return errors.As(failure, &poll) && (poll.Count > 1 || errors.Is(failure, proxmox.ErrUnauthorized))
}

// add counts a Reservation.
func (x *index) add(r Reservation, v View) {
	x.vmids[vmidKey{r.Region, r.VMID}] = struct{}{}
	guest, visible := v.Guest(r.Region, r.VMID)
	key := hostKey{r.Region, r.Host}
	if r.Settled {
		if visible {
			key.host = guest.Host // it may have been migrated
		}
		x.pools[poolKey{key, r.NodePool}]++
		return
	}
	x.pools[poolKey{key, r.NodePool}]++

	extra := r.Amount
	if visible && guest.Host == r.Host {
		extra = r.Amount.Minus(guest.Charged).atLeast(Amount{})
	}
	if state, ok := x.hosts[key]; ok {
		state.Reserved = state.Reserved.Plus(extra)
		state.Free = state.Free.Minus(extra)
		x.hosts[key] = state
	}
	if snapshot := v.Snapshots[r.Region]; snapshot != nil && r.Storage != "" {
		row, ok := snapshot.Storages[StorageKey{Host: r.Host, Storage: r.Storage}]
		if !ok {
			row = proxmox.StorageRow{Name: r.Storage, Host: r.Host}
		}
		x.storages[diskKeyOf(r.Region, row)] += r.DiskBytes
	}
}
