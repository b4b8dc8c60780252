// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"cmp"
	"slices"
	"strconv"

	"k8s.io/utils/cpuset"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
)

// bind finds where a VM can lie on a Host.
func bind(cells *inventory.CellAccounts, need *Need, means PinningSupport) (Binding, bool) {
	if slot, s, ok := freeSlot(cells, need, means); ok {
		return bindSlot(cells, slot, s), true
	}
	way := means.own(need.Layout)
	if !canPick(cells, need, means) {
		return Binding{}, false
	}
	s, ok := fewestCells(cells, need)
	if !ok {
		return Binding{}, false
	}
	b := Binding{Binding: inventory.Binding{Cells: s.choose(cells, need)}}
	if need.Layout.PageMiB > 0 && !brings(means.Hugepages, need.Layout.PageMiB) {
		b.Hugepages = strconv.Itoa(need.Layout.PageMiB)
	}
	if need.Layout.Exclusive {
		b.Method = way
		b.pick(cells)
	}
	return b, true
}

// binds is bind without the answer.
func binds(cells *inventory.CellAccounts, need *Need, means PinningSupport) (parts int, ok bool) {
	if _, s, ok := freeSlot(cells, need, means); ok {
		return s.parts, true
	}
	if !canPick(cells, need, means) {
		return 0, false
	}
	s, ok := fewestCells(cells, need)
	return s.parts, ok
}

// canPick tells whether cells (and cores) can be picked at all, slots apart.
func canPick(cells *inventory.CellAccounts, need *Need, means PinningSupport) bool {
	if !need.fills() || !means.pages(need.Layout) {
		return false
	}
	return !need.Layout.Exclusive || (means.own(need.Layout) != "" && cells.Unnumbered == "")
}

// pick takes whole cores of each cell, the first ones that are free.
func (b *Binding) pick(cells *inventory.CellAccounts) {
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

// serves tells whether a slot template is one for such VMs.
func serves(slot inventory.Slot, l Layout, m PinningSupport) bool {
	return m.SlotTag != "" && slices.Contains(slot.Tags, m.SlotTag) && !slot.CPUs.IsEmpty() &&
		(l.PageMiB == 0 || brings(slot.Hugepages, l.PageMiB))
}

// freeSlot finds the slot for a VM: over the fewest cells, then the smallest.
func freeSlot(cells *inventory.CellAccounts, need *Need, means PinningSupport) (best inventory.Slot, how split, ok bool) {
	if !need.Layout.Exclusive || !need.fills() {
		return best, how, false
	}
	for _, slot := range cells.Slots {
		if slot.Busy || !serves(slot, need.Layout, means) {
			continue
		}
		s, fits := slotSplit(cells, slot, need)
		if fits && (!ok || cmp.Or(cmp.Compare(s.parts, how.parts), cmp.Compare(slot.CPUs.Size(), best.CPUs.Size())) < 0) {
			best, how, ok = slot, s, true
		}
	}
	return best, how, ok
}

// slotSplit splits a VM over the cells of a slot, if it fits there.
func slotSplit(cells *inventory.CellAccounts, slot inventory.Slot, need *Need) (split, bool) {
	touched, known := 0, 0
	for n := range cells.Cells {
		if all, _ := cells.Cells[n].Has(slot.CPUs); all > 0 {
			touched, known = touched+1, known+all
		}
	}
	if known != slot.CPUs.Size() || touched > need.maxParts(cells) {
		return split{}, false // CPUs that the Host does not have, or too many cells
	}
	s, ok := splitOf(need, touched)
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
		if all < s.vcpus || !need.keeps(cell.ID) || cell.FreeCPUs(shared) < 0 || s.small<<20 > cell.FreeMemoryBytes {
			return split{}, false
		}
		if s.large<<20 <= cell.FreeMemoryBytes {
			large++
		}
	}
	return s, large >= s.larger
}

// bindSlot lays a VM out in a slot.
func bindSlot(cells *inventory.CellAccounts, slot inventory.Slot, s split) Binding {
	b := Binding{Method: PinBySlot, Slot: slot.VMID}
	b.CPUs = slot.CPUs
	larger := s.larger
	for n := range cells.Cells {
		cell := &cells.Cells[n]
		cpus := cell.CPUs().Intersection(slot.CPUs)
		if cpus.IsEmpty() {
			continue
		}
		memory := s.small
		if larger > 0 && s.large<<20 <= cell.FreeMemoryBytes {
			memory, larger = s.large, larger-1
		}
		b.Cells = append(b.Cells, inventory.BoundCell{ID: cell.ID, VCPUs: s.vcpus, MemoryMiB: memory})
		b.Pin = append(b.Pin, cpus.List()[:s.vcpus]...)
	}
	return b
}
