// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"k8s.io/utils/cpuset"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/observed"
)

// Binding binds a VM to NUMA cells of its Host and optionally to cores.
type Binding struct {
	// Cells are the cells of the Host, in the order of the guest's cells.
	Cells []BoundCell
	// CPUs are exclusive to the VM and consist of whole cores. Empty if the vCPUs float.
	CPUs cpuset.CPUSet
}

// BoundCell is the part of a VM in one cell of its Host.
type BoundCell struct {
	ID        int
	VCPUs     int
	MemoryMiB int64
}

// cellShare is what a guest uses of one cell.
type cellShare struct {
	cell      int // index
	vcpus     int
	memoryMiB int64
}

// cellShares splits the allocation of a guest into what its configuration binds to cells
// and the rest, which floats. numaN binds memory. If only CPUs are pinned, their memory
// counts in the same cells, because Linux allocates memory in the cell of the CPU that
// first uses it.
func (h hardware) cellShares(guest observed.Guest) (bound []cellShare, floating observed.Amount) {
	floating = guest.Allocated
	if guest.Config == nil || guest.Allocated == (observed.Amount{}) {
		return nil, floating
	}
	take := func(cells []int, vcpus int, memoryMiB int64) {
		vcpus, memoryMiB = min(vcpus, floating.CPUs), min(memoryMiB, floating.MemoryBytes>>20)
		floating = floating.Minus(observed.Amount{CPUs: vcpus, MemoryBytes: memoryMiB << 20})
		for n, cell := range cells {
			bound = append(bound, cellShare{cell, part(vcpus, len(cells), n), part(memoryMiB, len(cells), n)})
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
		if cells := h.cellsOf(guest.PinnedCPUs()); len(cells) > 0 {
			take(cells, floating.CPUs, floating.MemoryBytes>>20)
		}
	}
	return bound, floating
}

// cellsOf returns the indexes of the cells that contain any of the CPUs.
func (h hardware) cellsOf(cpus cpuset.CPUSet) []int {
	var cells []int
	for n, cell := range h.cells {
		if !cell.cpus.Intersection(cpus).IsEmpty() {
			cells = append(cells, n)
		}
	}
	return cells
}

// part returns the n-th of equal integer parts of a whole. The first parts contain the
// remainder.
func part[N int | int64](whole N, parts, n int) N {
	p := whole / N(parts)
	if N(n) < whole%N(parts) {
		p++
	}
	return p
}
