// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"slices"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
)

// checkCells checks the VM's layout against the NUMA cells and cores of a Host.
func checkCells(s *zoneState, need *Need, addReason reasonFunc) bool {
	if !need.Layout.Bound {
		return true
	}
	cells, completed := s.cells(), s.withNodePoolCells(need)
	if cells.Problem == "" {
		if _, ok := countBindCells(cells, completed, s.pinning); ok {
			return true
		}
	}
	if addReason != nil {
		explainUnfitCells(cells, completed, s.pinning, addReason)
	}
	return false
}

func (s *zoneState) cells() *inventory.CellAccounts { return s.view.Cells(s.zone.Region, s.zone.Host) }

// withNodePoolCells completes a Need with the cells that its NodePool is restricted to.
func (s *zoneState) withNodePoolCells(need *Need) *Need {
	if need.Affinity != v1alpha1.PoolAffinitySameCell {
		return need
	}
	completed := *need
	completed.singleCell, completed.allowedCells = true, s.view.NodePoolCells(s.zone.Region, s.zone.Host, need.NodePool)
	return &completed
}

// countCells returns how many cells a VM that fits is split over; 0 when it is not
// bound.
func (s *zoneState) countCells(need *Need) int {
	if !need.Layout.Bound {
		return 0
	}
	parts, _ := countBindCells(s.cells(), s.withNodePoolCells(need), s.pinning)
	return parts
}

// bind returns the Binding of a VM; nil when it needs none or does not fit.
func (s *zoneState) bind(need *Need) *Binding {
	if !need.Layout.Bound {
		return nil
	}
	binding, ok := bind(s.cells(), s.withNodePoolCells(need), s.pinning)
	if !ok {
		return nil
	}
	return &binding
}

// explainUnfitCells adds the reasons why a VM does not fit the cells of a Host: missing
// configuration, else for each cell why it cannot hold the whole VM.
func explainUnfitCells(cells *inventory.CellAccounts, need *Need, pinning PinningSupport, addReason reasonFunc) {
	if unsupported := UnsupportedReason(cells, need.Layout, pinning); unsupported != "" {
		addReason("%s", unsupported)
		return
	}
	if !need.hasWholePages() || need.MemoryBytes>>20 == 0 {
		addReason("%d MiB is not a multiple of the hugepage size of %d MiB", need.MemoryBytes>>20, need.Layout.PageMiB)
		return
	}
	if need.Layout.Exclusive {
		explainUnfitSlots(cells, need, pinning, addReason)
	}
	whole, ok := newSplit(need, 1)
	if !ok || !canAssignCores(cells, need, pinning) {
		return
	}
	for n := range cells.Cells {
		cell := &cells.Cells[n]
		switch {
		case !need.allowsCell(cell.ID):
			addReason("cell %d: the VMs of NodePool %s are kept in another cell", cell.ID, need.NodePool)
		case !whole.hasCPUs(cells, cell, need.Layout) && need.Layout.Exclusive:
			addReason("cell %d: %d cores free, %d requested", cell.ID, countAssignableCores(cells, cell), coresFor(whole.vcpus, cells.Threads))
		case !whole.hasCPUs(cells, cell, need.Layout):
			addReason("cell %d: %d CPUs free, %d requested", cell.ID, min(cell.Size(), max(0, cell.FreeCPUs(0))), whole.vcpus)
		default:
			addReason("cell %d: %s memory free, %s requested", cell.ID, gib(cell.FreeMemoryBytes), gib(need.MemoryBytes))
		}
	}
}

// allowsCell reports whether the NodePool's affinity allows the cell.
func (n *Need) allowsCell(cell int) bool {
	return len(n.allowedCells) == 0 || slices.Contains(n.allowedCells, cell)
}

// countAssignableCores returns how many cores of a cell can be assigned exclusively.
// Some free cores may be needed by the VMs that share the cell.
func countAssignableCores(cells *inventory.CellAccounts, cell *inventory.CellAccount) int {
	for cores := len(cell.FreeCores); cores > 0; cores-- {
		if cell.FreeCPUs(cores*cells.Threads) >= 0 {
			return cores
		}
	}
	return 0
}
