// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"cmp"
	"slices"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
)

// slotMatches reports whether a slot template can be used for such a VM. Its clones inherit its
// hugepages, and do not start if their memory is not a multiple of these.
func slotMatches(slot inventory.Slot, l Layout, m PinningSupport) bool {
	pages := slot.Hugepages == ""
	if l.PageMiB > 0 {
		pages = optionProvidesPages(slot.Hugepages, l.PageMiB)
	}
	return pages && isSlot(slot, m)
}

// isSlot reports whether a template is a slot, for VMs with its hugepages.
func isSlot(slot inventory.Slot, m PinningSupport) bool {
	return m.SlotTag != "" && slices.Contains(slot.Tags, m.SlotTag) && !slot.CPUs.IsEmpty()
}

// countSlots returns how many slots can be used for VMs with the layout, and how many have other
// hugepages.
func countSlots(cells *inventory.CellAccounts, l Layout, m PinningSupport) (matching, others int) {
	for _, slot := range cells.Slots {
		switch {
		case slotMatches(slot, l, m):
			matching++
		case isSlot(slot, m):
			others++
		}
	}
	return matching, others
}

// findFreeSlot returns the free slot for a VM that uses the fewest cells, then the
// smallest.
func findFreeSlot(cells *inventory.CellAccounts, need *Need, pinning PinningSupport) (best inventory.Slot, bestSplit split, ok bool) {
	if !need.Layout.Exclusive || !need.hasWholePages() {
		return best, bestSplit, false
	}
	for _, slot := range cells.Slots {
		if slot.Busy || !slotMatches(slot, need.Layout, pinning) {
			continue
		}
		s, fits := splitOverSlot(cells, slot, need)
		if fits && (!ok || cmp.Or(cmp.Compare(s.parts, bestSplit.parts), cmp.Compare(slot.CPUs.Size(), best.CPUs.Size())) < 0) {
			best, bestSplit, ok = slot, s, true
		}
	}
	return best, bestSplit, ok
}

// splitOverSlot splits a VM over the cells of a slot. It returns false if it does not
// fit.
func splitOverSlot(cells *inventory.CellAccounts, slot inventory.Slot, need *Need) (split, bool) {
	touched, known := 0, 0
	for n := range cells.Cells {
		if all, _ := cells.Cells[n].Has(slot.CPUs); all > 0 {
			touched, known = touched+1, known+all
		}
	}
	if known != slot.CPUs.Size() || touched > need.maxParts(cells) {
		return split{}, false // The slot has CPUs that the Host lacks, or spans too many cells.
	}
	s, ok := newSplit(need, touched)
	if !ok {
		return split{}, false
	}
	large := 0
	for n := range cells.Cells {
		cell := &cells.Cells[n]
		all, shared := cell.Has(slot.CPUs)
		if all == 0 {
			continue
		}
		if all < s.vcpus || !need.allowsCell(cell.ID) || cell.FreeCPUs(shared) < 0 || s.small<<20 > cell.FreeMemoryBytes {
			return split{}, false
		}
		if s.large<<20 <= cell.FreeMemoryBytes {
			large++
		}
	}
	return s, large >= s.largeParts
}

// bindSlot returns the Binding of a VM that is cloned from a slot template.
func bindSlot(cells *inventory.CellAccounts, slot inventory.Slot, s split) Binding {
	b := Binding{Method: PinBySlot, Slot: slot.VMID}
	b.CPUs = slot.CPUs
	largeParts := s.largeParts
	for n := range cells.Cells {
		cell := &cells.Cells[n]
		cpus := cell.CPUs().Intersection(slot.CPUs)
		if cpus.IsEmpty() {
			continue
		}
		memory := s.small
		if largeParts > 0 && s.large<<20 <= cell.FreeMemoryBytes {
			memory, largeParts = s.large, largeParts-1
		}
		b.Cells = append(b.Cells, inventory.BoundCell{ID: cell.ID, VCPUs: s.vcpus, MemoryMiB: memory})
		b.Pin = append(b.Pin, cpus.List()[:s.vcpus]...)
	}
	return b
}

// explainUnfitSlots adds the reason why no slot can be used.
func explainUnfitSlots(cells *inventory.CellAccounts, need *Need, pinning PinningSupport, addReason reasonFunc) {
	all, large, free := 0, 0, 0
	for _, slot := range cells.Slots {
		if !slotMatches(slot, need.Layout, pinning) {
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
		addReason("none of %d slots has %d CPUs", all, need.CPUs)
	case free == 0:
		addReason("%d slots with %d CPUs or more, all in use", large, need.CPUs)
	default:
		addReason("%d free slots with %d CPUs or more, none with enough CPUs and memory in each cell", free, need.CPUs)
	}
}
