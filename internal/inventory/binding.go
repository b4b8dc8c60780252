// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"k8s.io/utils/cpuset"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/ownership"
)

// Binding ties a VM to cells of its Host, and perhaps to cores.
type Binding struct {
	// Cells of the Host, in the order of the guest's cells.
	Cells []BoundCell
	// CPUs that the VM has to itself, whole cores of them; empty where its vCPUs
	// float.
	CPUs cpuset.CPUSet
}

// BoundCell is the share of a VM that lies in one cell of its Host.
type BoundCell struct {
	ID        int
	VCPUs     int
	MemoryMiB int64
}

// pinned are the CPUs that a guest is tied to: by its affinity, or by a hookscript,
// of which Proxmox knows nothing and only the mark in the notes tells.
func (g Guest) pinned() cpuset.CPUSet {
	if g.Config == nil {
		return cpuset.New()
	}
	set := g.Config.Compute().Affinity()
	mark, ok := ownership.Read(g.Config.Description())
	if !ok || mark.VMID != g.VMID {
		return set
	}
	hooked, err := cpuset.Parse(mark.CPUs)
	if err != nil {
		return set
	}
	return set.Union(hooked)
}

// share is what a guest takes of one cell.
type share struct {
	cell      int // index
	vcpus     int
	memoryMiB int64
}

// sharesOf tells what a guest takes of which cells, as far as its configuration
// says so: memory where numaN binds it; where only the CPUs are bound, memory lies
// beside them, since Linux takes it from the cell that asks first. The rest floats.
func (h hardware) sharesOf(guest Guest) (bound []share, floating Amount) {
	floating = guest.Allocated
	if guest.Config == nil || guest.Allocated == (Amount{}) {
		return nil, floating
	}
	take := func(cells []int, vcpus int, memoryMiB int64) {
		vcpus, memoryMiB = min(vcpus, floating.CPUs), min(memoryMiB, floating.MemoryBytes>>20)
		floating = floating.Minus(Amount{CPUs: vcpus, MemoryBytes: memoryMiB << 20})
		for n, cell := range cells {
			bound = append(bound, share{cell, part(vcpus, len(cells), n), part(memoryMiB, len(cells), n)})
		}
	}
	for _, cell := range guest.Config.Compute().NUMACells() {
		var cells []int
		for _, id := range cell.HostCells.List() {
			if n, ok := h.indexOf(id); ok {
				cells = append(cells, n)
			}
		}
		if len(cells) > 0 {
			take(cells, cell.CPUs.Size(), int64(cell.MemoryMiB))
		}
	}
	if len(bound) == 0 {
		if cells := h.cellsOf(guest.pinned()); len(cells) > 0 {
			take(cells, floating.CPUs, floating.MemoryBytes>>20)
		}
	}
	return bound, floating
}

// cellsOf are the cells that a set of CPUs touches, by index.
func (h hardware) cellsOf(cpus cpuset.CPUSet) []int {
	var cells []int
	for n, cell := range h.cells {
		if !cell.cpus.Intersection(cpus).IsEmpty() {
			cells = append(cells, n)
		}
	}
	return cells
}

// part is the n-th of so many parts of a whole; the first ones take what is left over.
func part[N int | int64](whole N, parts, n int) N {
	p := whole / N(parts)
	if N(n) < whole%N(parts) {
		p++
	}
	return p
}
