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

// assignCores assigns the first free whole cores of each cell.
func (b *Binding) assignCores(cells *inventory.CellAccounts) {
	for _, bound := range b.Cells {
		n := slices.IndexFunc(cells.Cells, func(c inventory.CellAccount) bool { return c.ID == bound.ID })
		var threads []int
		for _, core := range cells.Cells[n].FreeCores[:coresFor(bound.VCPUs, cells.Threads)] {
			threads = append(threads, core.List()...)
		}
		b.CPUs = b.CPUs.Union(cpuset.New(threads...))
		b.Pin = append(b.Pin, threads[:bound.VCPUs]...)
	}
}
