// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"math"
	"slices"

	"k8s.io/utils/cpuset"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/declared"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/observed"
)

// CellAccounts is the free capacity of a Host's NUMA cells and cores.
//
// A guest bound by numaN counts in its cells. A guest with only an affinity counts, with
// its CPUs and memory, in the cells of those CPUs. Any other guest, including containers,
// counts in every cell in proportion to the cell's size. Reservations count in the same
// way. CPUs in an affinity are not free even while the guest is stopped.
type CellAccounts struct {
	// Problem describes why the cells are unknown. If it is set, the other fields are
	// empty.
	Problem string
	// Unnumbered describes why no cores can be chosen; empty if they can.
	Unnumbered string
	// Threads per core.
	Threads int
	// Cells sorted by ID.
	Cells []CellAccount
	// Slots sorted by VMID.
	Slots []Slot
}

// CellAccount is the free capacity of one NUMA cell.
type CellAccount struct {
	ID int
	// AllocatableCPUs and AllocatableMemoryBytes are the total for all guests, as configured
	// in the settings.
	AllocatableCPUs        int
	AllocatableMemoryBytes int64
	// FreeMemoryBytes is negative if the cell is overcommitted.
	FreeMemoryBytes int64
	// FreeCores have no thread that is reserved or pinned.
	FreeCores []cpuset.CPUSet
	// Caches are the CPUs that share a last-level cache; nil if unknown.
	Caches []cpuset.CPUSet

	cpus cpuset.CPUSet
	// sharedCPUs are the CPUs for VMs without exclusive cores, sharedSize is their number
	// and sharedVCPUs the number of vCPUs on them.
	sharedCPUs  cpuset.CPUSet
	sharedSize  int
	sharedVCPUs int
	cpuRatio    float64
}

// FreeCPUs returns how many more vCPUs fit into the cell after the given number of its CPUs
// becomes exclusive. It is negative if these CPUs are needed by other VMs.
func (c CellAccount) FreeCPUs(exclusive int) int {
	return int(math.Floor(float64(c.sharedSize-exclusive)*c.cpuRatio+1e-9)) - c.sharedVCPUs
}

// CPUs returns all CPUs of the cell, free or not.
func (c CellAccount) CPUs() cpuset.CPUSet { return c.cpus }

// Size returns the number of CPUs of the cell.
func (c CellAccount) Size() int { return c.cpus.Size() }

// Has returns how many CPUs of the set are in the cell, and how many of these are shared by
// VMs without exclusive cores.
func (c CellAccount) Has(cpus cpuset.CPUSet) (all, shared int) {
	return c.cpus.Intersection(cpus).Size(), c.sharedCPUs.Intersection(cpus).Size()
}

// Slot is a slot template.
type Slot struct {
	VMID int
	Tags []string
	// CPUs are exclusive to its clone.
	CPUs      cpuset.CPUSet
	Hugepages string
	// Busy is true while a VM uses or has reserved one of these CPUs.
	Busy bool
}

// placedReservation is a Reservation with its guest; the guest is zero if it is not
// visible.
type placedReservation struct {
	Reservation
	guest observed.Guest
}

func newCellAccounts(host observed.Host, limits declared.HostSettings, guests []observed.Guest, reservations []placedReservation) *CellAccounts {
	h, err := newHardware(host, limits.Topology)
	if err != nil {
		return &CellAccounts{Problem: err.Error()}
	}
	b := newCellBuilder(h, limits)
	bound := map[int]bool{} // VMIDs whose guest a Reservation covers
	for _, p := range reservations {
		bound[p.VMID] = b.addReservation(p)
	}
	for _, guest := range guests {
		b.addGuest(guest, bound[guest.VMID])
	}
	return b.build(guests)
}

// cellBuilder builds CellAccounts.
type cellBuilder struct {
	hardware hardware
	limits   declared.HostSettings
	cells    []CellAccount
	// exclusive CPUs are reserved for our VMs, guests are pinned to pinned CPUs, and
	// slotCPUs belong to slot templates.
	exclusive, pinned, slotCPUs cpuset.CPUSet
	floating                    observed.Amount
}

func newCellBuilder(h hardware, limits declared.HostSettings) *cellBuilder {
	b := &cellBuilder{hardware: h, limits: limits, cells: make([]CellAccount, len(h.cells))}
	var total int64
	for _, cell := range h.cells {
		total += cell.memoryMiB
	}
	for n, cell := range h.cells {
		// The cell of the memory that the Host itself uses is unknown.
		reserved := proportion(limits.ReservedMemoryBytes>>20, cell.memoryMiB, total)
		memory := int64(float64(max(0, cell.memoryMiB-reserved))*limits.MemoryRatio) << 20
		b.cells[n] = CellAccount{
			ID: cell.id, cpus: cell.cpus, Caches: cell.caches, cpuRatio: limits.CPURatio, AllocatableMemoryBytes: memory, FreeMemoryBytes: memory,
			AllocatableCPUs: int(math.Floor(float64(cell.cpus.Difference(limits.ReservedCPUs).Size())*limits.CPURatio + 1e-9)),
		}
	}
	return b
}

// proportion returns amount*part/whole, rounded up.
func proportion(amount, part, whole int64) int64 {
	if whole == 0 {
		return 0
	}
	return (amount*part + whole - 1) / whole
}

// addReservation counts a Reservation and reports whether this covers its guest. A
// Reservation with a Binding does, because the guest's configuration may be older.
func (b *cellBuilder) addReservation(p placedReservation) bool {
	if p.Binding == nil {
		if !p.Fulfilled {
			b.floating = b.floating.Plus(p.Amount.Minus(p.guest.Allocated).AtLeast(observed.Amount{}))
		}
		return false
	}
	b.exclusive = b.exclusive.Union(p.Binding.CPUs)
	for _, cell := range p.Binding.Cells {
		n, ok := b.hardware.indexOf(cell.ID)
		if !ok {
			continue // the settings have changed
		}
		b.cells[n].FreeMemoryBytes -= cell.MemoryMiB << 20
		if p.Binding.CPUs.IsEmpty() {
			b.cells[n].sharedVCPUs += cell.VCPUs
		}
	}
	return true
}

// addGuest counts a guest. If a Reservation covers it, only its pinned CPUs count.
func (b *cellBuilder) addGuest(guest observed.Guest, covered bool) {
	pinned := guest.PinnedCPUs()
	switch {
	case guest.Template || (guest.Config != nil && guest.Config.IsTemplate()):
		if guest.IsSlot() {
			b.slotCPUs = b.slotCPUs.Union(pinned)
		}
		return
	case covered:
		b.pinned = b.pinned.Union(pinned)
		return
	}
	b.pinned = b.pinned.Union(pinned)
	bound, floating := b.hardware.cellShares(guest)
	b.floating = b.floating.Plus(floating)
	for _, s := range bound {
		b.cells[s.cell].sharedVCPUs += s.vcpus
		b.cells[s.cell].FreeMemoryBytes -= s.memoryMiB << 20
	}
}

// build distributes the floating amount over the cells and finds the free cores.
func (b *cellBuilder) build(guests []observed.Guest) *CellAccounts {
	var cpus, memory int64
	for _, cell := range b.hardware.cells {
		cpus, memory = cpus+int64(cell.cpus.Size()), memory+cell.memoryMiB
	}
	floatingMiB := (b.floating.MemoryBytes + 1<<20 - 1) >> 20
	taken := b.limits.ReservedCPUs.Union(b.exclusive).Union(b.pinned).Union(b.slotCPUs)
	for n, cell := range b.hardware.cells {
		account := &b.cells[n]
		account.sharedCPUs = cell.cpus.Difference(b.limits.ReservedCPUs.Union(b.exclusive))
		account.sharedSize = account.sharedCPUs.Size()
		account.sharedVCPUs += int(proportion(int64(b.floating.CPUs), int64(cell.cpus.Size()), cpus))
		account.FreeMemoryBytes -= proportion(floatingMiB, cell.memoryMiB, memory) << 20
		for _, core := range cell.cores {
			if core.Intersection(taken).IsEmpty() {
				account.FreeCores = append(account.FreeCores, core)
			}
		}
	}
	return &CellAccounts{
		Unnumbered: b.hardware.unnumbered, Threads: b.hardware.threads, Cells: b.cells,
		Slots: slotsOf(guests, b.exclusive.Union(b.pinned)),
	}
}

// slotsOf returns the slot templates among the guests.
func slotsOf(guests []observed.Guest, inUse cpuset.CPUSet) []Slot {
	var slots []Slot
	for _, guest := range guests {
		if !guest.IsSlot() || guest.Config == nil {
			continue
		}
		cpus := guest.Config.Compute().Affinity()
		slots = append(slots, Slot{
			VMID: guest.VMID, Tags: guest.Tags, CPUs: cpus, Hugepages: guest.Config.Compute().Hugepages(),
			Busy: !cpus.Intersection(inUse).IsEmpty(),
		})
	}
	slices.SortFunc(slots, func(a, b Slot) int { return a.VMID - b.VMID })
	return slots
}
