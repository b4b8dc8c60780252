// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"slices"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
)

// checkCells holds a VM against the cells and cores of a Host.
func checkCells(s *site, need *Need, why report) bool {
	if !need.Layout.Bound {
		return true
	}
	cells, beside := s.cells(), s.beside(need)
	if cells.Problem == "" {
		if _, ok := binds(cells, beside, s.means); ok {
			return true
		}
	}
	if why != nil {
		explainCells(cells, beside, s.means, why)
	}
	return false
}

func (s *site) cells() *inventory.CellAccounts { return s.view.Cells(s.zone.Region, s.zone.Host) }

// beside completes a Need with the cells that its NodePool is kept in.
func (s *site) beside(need *Need) *Need {
	if need.Affinity != v1alpha1.PoolAffinitySameCell {
		return need
	}
	completed := *need
	completed.single, completed.only = true, s.view.NodePoolCells(s.zone.Region, s.zone.Host, need.NodePool)
	return &completed
}

// cellsFor is how many cells of a Host that fits a VM is spread over.
func (s *site) cellsFor(need *Need) int {
	if !need.Layout.Bound {
		return 0
	}
	parts, _ := binds(s.cells(), s.beside(need), s.means)
	return parts
}

// bind lays a VM out; nil where it floats, or does not fit.
func (s *site) bind(need *Need) *Binding {
	if !need.Layout.Bound {
		return nil
	}
	binding, ok := bind(s.cells(), s.beside(need), s.means)
	if !ok {
		return nil
	}
	return &binding
}

// explainCells says what a Host lacks for a VM: an admin's work, else cell by cell
// what is left, of one cell for all of the VM.
func explainCells(cells *inventory.CellAccounts, need *Need, means PinningSupport, why report) {
	if lacking := UnsupportedReason(cells, need.Layout, means); lacking != "" {
		why("%s", lacking)
		return
	}
	if !need.fills() || need.MemoryBytes>>20 == 0 {
		why("%d MiB are no whole pages of %d MiB", need.MemoryBytes>>20, need.Layout.PageMiB)
		return
	}
	if need.Layout.Exclusive {
		explainSlots(cells, need, means, why)
	}
	whole, ok := splitOf(need, 1)
	if !ok || !canPick(cells, need, means) {
		return
	}
	for n := range cells.Cells {
		cell := &cells.Cells[n]
		switch {
		case !need.keeps(cell.ID):
			why("cell %d: the VMs of NodePool %s are kept in another", cell.ID, need.NodePool)
		case !whole.runs(cells, cell, need.Layout) && need.Layout.Exclusive:
			why("cell %d: %d cores free, %d wanted", cell.ID, spareCores(cells, cell), coresFor(whole.vcpus, cells.Threads))
		case !whole.runs(cells, cell, need.Layout):
			why("cell %d: %d CPUs free, %d wanted", cell.ID, min(cell.Size(), max(0, cell.FreeCPUs(0))), whole.vcpus)
		default:
			why("cell %d: %s memory free, %s wanted", cell.ID, gib(cell.FreeMemoryBytes), gib(need.MemoryBytes))
		}
	}
}

// keeps tells whether the VM may lie in a cell, for the sake of its NodePool.
func (n *Need) keeps(cell int) bool { return len(n.only) == 0 || slices.Contains(n.only, cell) }

// spareCores is how many cores can be given away: some may be free, but needed by
// the VMs that share the cell.
func spareCores(cells *inventory.CellAccounts, cell *inventory.CellAccount) int {
	for cores := len(cell.FreeCores); cores > 0; cores-- {
		if cell.FreeCPUs(cores*cells.Threads) >= 0 {
			return cores
		}
	}
	return 0
}

// explainSlots says what became of the slots.
func explainSlots(cells *inventory.CellAccounts, need *Need, means PinningSupport, why report) {
	all, large, free := 0, 0, 0
	for _, slot := range cells.Slots {
		if !serves(slot, need.Layout, means) {
			continue
		}
		all++
		if slot.CPUs.Size() >= need.CPUs {
			large++
			if !slot.Busy {
				free++
			}
		}
	}
	switch {
	case all == 0:
	case large == 0:
		why("none of %d slots has %d CPUs", all, need.CPUs)
	case free == 0:
		why("%d slots with %d CPUs or more, all in use", large, need.CPUs)
	default:
		why("%d free slots with %d CPUs or more, none with as many in each cell and the memory beside them", free, need.CPUs)
	}
}
