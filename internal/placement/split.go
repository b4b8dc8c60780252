// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"cmp"
	"slices"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// split is the division of a VM into parts, one per NUMA cell of the Host. A VM is bound
// to one cell where possible, else evenly to as few cells as possible: each part has the
// same number of vCPUs, since the sockets of a VM are equal, and the same memory to the
// page. Guests and the kubelet's topology manager assume cells of equal size.
type split struct {
	parts int
	vcpus int // of each part
	// Memory of the largeParts and of the smaller parts, and the number of largeParts parts.
	// They differ by one page when the memory does not divide evenly.
	large, small int64 // MiB
	largeParts   int
}

// newSplit divides a VM. It returns false if the VM cannot be divided into that many
// equal parts.
func newSplit(need *Need, parts int) (split, bool) {
	page := int64(max(1, need.Layout.PageMiB))
	pages := need.MemoryBytes >> 20 / page
	if need.CPUs%parts != 0 || pages < int64(parts) {
		return split{}, false
	}
	s := split{parts: parts, vcpus: need.CPUs / parts, largeParts: int(pages % int64(parts)), small: pages / int64(parts) * page}
	s.large = s.small
	if s.largeParts > 0 {
		s.large += page
	}
	return s, true
}

// hasWholePages reports whether the memory is a multiple of the hugepage size.
func (n *Need) hasWholePages() bool {
	return n.Layout.PageMiB == 0 || n.MemoryBytes>>20%int64(n.Layout.PageMiB) == 0
}

// maxParts returns the largest number of cells that the VM may be split over.
func (n *Need) maxParts(cells *inventory.CellAccounts) int {
	if n.singleCell {
		return 1
	}
	return min(len(cells.Cells), proxmox.MaxNUMACells)
}

// hasCapacity reports whether a cell has the CPUs and memory for a part.
func (s split) hasCapacity(cells *inventory.CellAccounts, cell *inventory.CellAccount, l Layout, memoryMiB int64) bool {
	return memoryMiB<<20 <= cell.FreeMemoryBytes && s.hasCPUs(cells, cell, l)
}

// hasCPUs reports whether a cell has the CPUs for a part.
func (s split) hasCPUs(cells *inventory.CellAccounts, cell *inventory.CellAccount, l Layout) bool {
	if !l.Exclusive {
		// Regardless of the CPU ratio: more vCPUs than CPUs in the cell only wait for
		// each other.
		return s.vcpus <= cell.Size() && s.vcpus <= cell.FreeCPUs(0)
	}
	cores := coresFor(s.vcpus, cells.Threads)
	return cores <= len(cell.FreeCores) && cell.FreeCPUs(cores*cells.Threads) >= 0
}

// coresFor returns the number of whole cores that the vCPUs need.
func coresFor(vcpus, threads int) int { return (vcpus + threads - 1) / threads }

// fits reports whether the Host has cells for all parts.
func (s split) fits(cells *inventory.CellAccounts, need *Need) bool {
	large, all := 0, 0
	for n := range cells.Cells {
		cell := &cells.Cells[n]
		if !need.allowsCell(cell.ID) || !s.hasCapacity(cells, cell, need.Layout, s.small) {
			continue
		}
		all++
		if s.largeParts > 0 && s.hasCapacity(cells, cell, need.Layout, s.large) {
			large++
		}
	}
	return all >= s.parts && large >= s.largeParts
}

// fewestCells splits the VM over the smallest possible number of cells.
func fewestCells(cells *inventory.CellAccounts, need *Need) (split, bool) {
	for parts := 1; parts <= need.maxParts(cells); parts++ {
		if s, ok := newSplit(need, parts); ok && s.fits(cells, need) {
			return s, true
		}
	}
	return split{}, false
}

// chooseCells picks the cells with the least free capacity, so the others stay available
// for largeParts VMs. The split must fit.
func (s split) chooseCells(cells *inventory.CellAccounts, need *Need) []inventory.BoundCell {
	order := make([]*inventory.CellAccount, 0, len(cells.Cells))
	for n := range cells.Cells {
		if need.allowsCell(cells.Cells[n].ID) {
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
			if count == 0 || taken || !s.hasCapacity(cells, cell, need.Layout, memoryMiB) {
				continue
			}
			chosen = append(chosen, inventory.BoundCell{ID: cell.ID, VCPUs: s.vcpus, MemoryMiB: memoryMiB})
			count--
		}
	}
	take(s.largeParts, s.large)
	take(s.parts-s.largeParts, s.small)
	slices.SortFunc(chosen, func(a, b inventory.BoundCell) int { return cmp.Compare(a.ID, b.ID) })
	return chosen
}
