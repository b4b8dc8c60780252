// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"maps"
	"slices"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/observed"
)

func regions(view inventory.View) []Region {
	names := slices.Concat(slices.Collect(maps.Keys(view.Snapshots)), slices.Collect(maps.Keys(view.Failures)))
	slices.Sort(names)
	out := []Region{}
	for _, name := range slices.Compact(names) {
		region := Region{Name: name}
		if snapshot := view.Snapshots[name]; snapshot != nil {
			region.Version = snapshot.Version.Full
		}
		if err := view.Failures[name]; err != nil {
			region.Problem = err.Error()
		}
		out = append(out, region)
	}
	return out
}

func newHosts(in Input, vms []VM) []Host {
	hosts := []Host{}
	for _, state := range in.View.Hosts() {
		host := Host{
			Region: state.Region, Name: state.Name, OutOfService: string(state.Obstacle(inventory.Keep).Reason), Sleep: string(state.Sleep), Unusable: state.Obstacle(inventory.Launch).Message,
			CPUs:   Usage{Total: int64(state.Allocatable.CPUs), Reserved: int64(state.Reserved.CPUs)},
			Memory: Usage{Total: state.Allocatable.MemoryBytes, Reserved: state.Reserved.MemoryBytes},
			Energy: in.View.HostEnergy(state), Saved: state.SavedEnergy(),
		}
		ours := map[int]bool{}
		for _, vm := range vms {
			if vm.Region == host.Region && vm.Host == host.Name {
				ours[vm.VMID] = true
			}
		}
		host.addGuests(in.View.Snapshots[state.Region], state.Allocated, ours)
		host.Storages = storages(in, host, vms)
		host.Cells = cells(in.View, host)
		hosts = append(hosts, host)
	}
	return hosts
}

// addGuests splits what guests use of a Host into our VMs and the others.
func (h *Host) addGuests(snapshot *observed.Snapshot, allocated observed.Amount, ours map[int]bool) {
	for _, guest := range snapshot.Guests {
		switch {
		case guest.Host != h.Name || guest.Template:
		case ours[guest.VMID]:
			h.CPUs.VMs += int64(guest.Allocated.CPUs)
			h.Memory.VMs += guest.Allocated.MemoryBytes
		case guest.Status == "running":
			h.Guests++
		}
	}
	h.CPUs.Guests = int64(allocated.CPUs) - h.CPUs.VMs
	h.Memory.Guests = allocated.MemoryBytes - h.Memory.VMs
}

// storages returns the storages of a Host that can store disks of VMs.
func storages(in Input, host Host, vms []VM) []Storage {
	var out []Storage
	for _, name := range in.View.Snapshots[host.Region].StoragesOf(host.Name) {
		state, ok := in.View.Storage(host.Region, host.Name, name)
		if !ok || !slices.Contains(state.Content, "images") {
			continue
		}
		storage := Storage{
			Name: name, Shared: state.Shared, TotalBytes: state.TotalBytes, UsedBytes: state.UsedBytes,
			ReservedBytes: state.ReservedBytes, FreeBytes: state.FreeBytes,
		}
		for _, vm := range vms {
			if vm.Region == host.Region && (state.Shared || vm.Host == host.Name) {
				storage.VMBytes += vm.diskBytes[name]
			}
		}
		out = append(out, storage)
	}
	return out
}

// cells returns the NUMA cells of a Host that has more than one.
func cells(view inventory.View, host Host) []Cell {
	accounts := view.Cells(host.Region, host.Name).Cells
	if len(accounts) < 2 {
		return nil
	}
	var out []Cell
	for _, account := range accounts {
		cpus, memory := int64(0), int64(0)
		for _, bound := range boundTo(view, host, account.ID) {
			cpus, memory = cpus+int64(bound.VCPUs), memory+bound.MemoryMiB<<20
		}
		cell := Cell{ID: account.ID, CPUs: Usage{Total: int64(account.AllocatableCPUs)}, Memory: Usage{Total: account.AllocatableMemoryBytes}}
		cell.CPUs.split(int64(account.FreeCPUs(0)), cpus)
		cell.Memory.split(account.FreeMemoryBytes, memory)
		out = append(out, cell)
	}
	return out
}

// boundTo returns the parts of our VMs that are bound to a cell of a Host.
func boundTo(view inventory.View, host Host, cell int) []inventory.BoundCell {
	var out []inventory.BoundCell
	for _, r := range view.Reservations {
		guest, visible := view.Guest(r.Region, r.VMID)
		if r.Region != host.Region || r.Host != host.Name || r.Binding == nil || visible && guest.Host != host.Name {
			continue
		}
		for _, bound := range r.Binding.Cells {
			if bound.ID == cell {
				out = append(out, bound)
			}
		}
	}
	return out
}

// split sets the uses of a resource from what is free of it and what our VMs use.
func (u *Usage) split(free, vms int64) {
	used := max(u.Total-free, 0)
	u.VMs = min(vms, used)
	u.Guests = used - u.VMs
}
