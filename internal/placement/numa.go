// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"cmp"
	"slices"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// A VM lies in one cell where it fits into one, else evenly in as few as possible:
// as many vCPUs in each, since sockets of a VM are equal, and the memory to the
// page. Guests (and the kubelet's topology manager) take cells for equals.

// split is a VM in so many equal parts.
type split struct {
	parts int
	vcpus int // of each part
	// Memory of the larger and of the other parts, and how many are larger: by one
	// page, where the memory does not divide.
	large, small int64 // MiB
	larger       int
}

// splitOf takes a VM apart; false where it has no such equal parts.
func splitOf(need *Need, parts int) (split, bool) {
	page := int64(max(1, need.Layout.PageMiB))
	pages := need.MemoryBytes >> 20 / page
	if need.CPUs%parts != 0 || pages < int64(parts) {
		return split{}, false
	}
	s := split{parts: parts, vcpus: need.CPUs / parts, larger: int(pages % int64(parts)), small: pages / int64(parts) * page}
	s.large = s.small
	if s.larger > 0 {
		s.large += page
	}
	return s, true
}

// fills tells whether the memory is whole pages.
func (n *Need) fills() bool {
	return n.Layout.PageMiB == 0 || n.MemoryBytes>>20%int64(n.Layout.PageMiB) == 0
}

// maxParts bounds the cells of a VM.
func (n *Need) maxParts(cells *inventory.CellAccounts) int {
	if n.single {
		return 1
	}
	return min(len(cells.Cells), proxmox.MaxNUMACells)
}

// takes tells whether a cell has room for a part with that much memory.
func (s split) takes(cells *inventory.CellAccounts, cell *inventory.CellAccount, l Layout, memoryMiB int64) bool {
	return memoryMiB<<20 <= cell.FreeMemoryBytes && s.runs(cells, cell, l)
}

// runs tells whether a cell has the CPUs for a part.
func (s split) runs(cells *inventory.CellAccounts, cell *inventory.CellAccount, l Layout) bool {
	if !l.Exclusive {
		// Whatever the ratio: more vCPUs than CPUs of a cell only wait for each other.
		return s.vcpus <= cell.Size() && s.vcpus <= cell.FreeCPUs(0)
	}
	cores := coresFor(s.vcpus, cells.Threads)
	return cores <= len(cell.FreeCores) && cell.FreeCPUs(cores*cells.Threads) >= 0
}

// coresFor is how many whole cores so many vCPUs take.
func coresFor(vcpus, threads int) int { return (vcpus + threads - 1) / threads }

// fits tells whether there are cells for all parts.
func (s split) fits(cells *inventory.CellAccounts, need *Need) bool {
	large, all := 0, 0
	for n := range cells.Cells {
		cell := &cells.Cells[n]
		if !need.keeps(cell.ID) || !s.takes(cells, cell, need.Layout, s.small) {
			continue
		}
		all++
		if s.larger > 0 && s.takes(cells, cell, need.Layout, s.large) {
			large++
		}
	}
	return all >= s.parts && large >= s.larger
}

// fewestCells finds the smallest number of cells that the VM can be split over.
func fewestCells(cells *inventory.CellAccounts, need *Need) (split, bool) {
	for parts := 1; parts <= need.maxParts(cells); parts++ {
		if s, ok := splitOf(need, parts); ok && s.fits(cells, need) {
			return s, true
		}
	}
	return split{}, false
}

// choose picks the cells: those that have the least left, so that the others stay
// whole for larger VMs. fits must have said that there are enough.
func (s split) choose(cells *inventory.CellAccounts, need *Need) []inventory.BoundCell {
	order := make([]*inventory.CellAccount, 0, len(cells.Cells))
	for n := range cells.Cells {
		if need.keeps(cells.Cells[n].ID) {
			order = append(order, &cells.Cells[n])
		}
	}
	slices.SortFunc(order, func(a, b *inventory.CellAccount) int {
		tighter := cmp.Compare(a.FreeCPUs(0), b.FreeCPUs(0))
		if need.Layout.Exclusive {
			tighter = cmp.Compare(len(a.FreeCores), len(b.FreeCores))
		}
		return cmp.Or(tighter, cmp.Compare(a.FreeMemoryBytes, b.FreeMemoryBytes), cmp.Compare(a.ID, b.ID))
	})
	var chosen []inventory.BoundCell
	take := func(count int, memoryMiB int64) {
		for _, cell := range order {
			taken := slices.ContainsFunc(chosen, func(c inventory.BoundCell) bool { return c.ID == cell.ID })
			if count == 0 || taken || !s.takes(cells, cell, need.Layout, memoryMiB) {
				continue
			}
			chosen = append(chosen, inventory.BoundCell{ID: cell.ID, VCPUs: s.vcpus, MemoryMiB: memoryMiB})
			count--
		}
	}
	take(s.larger, s.large)
	take(s.parts-s.larger, s.small)
	slices.SortFunc(chosen, func(a, b inventory.BoundCell) int { return cmp.Compare(a.ID, b.ID) })
	return chosen
}
