// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"slices"
	"strconv"

	"k8s.io/utils/cpuset"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
)

// bind returns the Binding of a VM on a Host. It returns false if the VM does not fit.
func bind(cells *inventory.CellAccounts, need *Need, pinning PinningSupport) (Binding, bool) {
	if slot, s, ok := findFreeSlot(cells, need, pinning); ok {
		return bindSlot(cells, slot, s), true
	}
	method := pinning.pinningMethod(need.Layout)
	if !canAssignCores(cells, need, pinning) {
		return Binding{}, false
	}
	s, ok := fewestCells(cells, need)
	if !ok {
		return Binding{}, false
	}
	b := Binding{Binding: inventory.Binding{Cells: s.chooseCells(cells, need)}}
	if need.Layout.PageMiB > 0 && !optionProvidesPages(pinning.Hugepages, need.Layout.PageMiB) {
		b.Hugepages = strconv.Itoa(need.Layout.PageMiB)
	}
	if need.Layout.Exclusive {
		b.Method = method
		b.assignCores(cells)
	}
	return b, true
}

// countBindCells returns the number of cells that bind would use, without building it.
func countBindCells(cells *inventory.CellAccounts, need *Need, pinning PinningSupport) (parts int, ok bool) {
	if _, s, ok := findFreeSlot(cells, need, pinning); ok {
		return s.parts, true
	}
	if !canAssignCores(cells, need, pinning) {
		return 0, false
	}
	s, ok := fewestCells(cells, need)
	return s.parts, ok
}

// canAssignCores reports whether cells and cores can be assigned without a slot.
func canAssignCores(cells *inventory.CellAccounts, need *Need, pinning PinningSupport) bool {
	if !need.hasWholePages() || !pinning.supportsPages(need.Layout) {
		return false
	}
	return !need.Layout.Exclusive || (pinning.pinningMethod(need.Layout) != "" && cells.Unnumbered == "")
}

// assignCores assigns free whole cores of each cell.
func (b *Binding) assignCores(cells *inventory.CellAccounts) {
	for _, bound := range b.Cells {
		n := slices.IndexFunc(cells.Cells, func(c inventory.CellAccount) bool { return c.ID == bound.ID })
		var threads []int
		for _, core := range chooseCores(cells.Cells[n], coresFor(bound.VCPUs, cells.Threads)) {
			threads = append(threads, core.List()...)
		}
		b.CPUs = b.CPUs.Union(cpuset.New(threads...))
		b.Pin = append(b.Pin, threads[:bound.VCPUs]...)
	}
}

// chooseCores returns free cores that share as few last-level caches as possible. If one
// cache is sufficient, it is the one with the fewest free cores, so the others stay available
// for large VMs. If the caches are unknown, it returns the first cores.
func chooseCores(cell inventory.CellAccount, count int) []cpuset.CPUSet {
	if len(cell.Caches) < 2 {
		return cell.FreeCores[:count]
	}
	free := make([][]cpuset.CPUSet, len(cell.Caches)+1) // by cache; the last are in none
	for _, core := range cell.FreeCores {
		n := slices.IndexFunc(cell.Caches, core.IsSubsetOf)
		if n < 0 {
			n = len(cell.Caches)
		}
		free[n] = append(free[n], core)
	}
	slices.SortStableFunc(free, func(a, b []cpuset.CPUSet) int {
		aFits, bFits := len(a) >= count, len(b) >= count
		switch {
		case aFits && bFits:
			return len(a) - len(b)
		case aFits:
			return -1
		case bFits:
			return 1
		}
		return len(b) - len(a)
	})
	return slices.Concat(free...)[:count]
}
