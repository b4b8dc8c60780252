// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"math"
	"slices"
	"strings"
	"sync"

	"k8s.io/utils/cpuset"
)

// SlotTagPrefix begins the tag of a slot template: a template with an affinity,
// made by root, whose clones have those cores one at a time. The rest of the tag
// is the name of the template object that it is a slot of.
const SlotTagPrefix = "karpenter-slot-"

// IsSlot tells whether a guest is a slot template.
func (g Guest) IsSlot() bool {
	return g.Template && slices.ContainsFunc(g.Tags, func(tag string) bool { return strings.HasPrefix(tag, SlotTagPrefix) })
}

// CellAccounts is what is left of a Host's NUMA cells and cores.
//
// A guest that is bound by numaN counts in its cells; one that has only an affinity
// counts, CPUs and memory, in the cells of those CPUs; any other guest, containers
// included, counts in every cell by the cell's share of the Host. What is promised
// counts the same way. An affinity keeps its CPUs from being picked for others even
// while its guest is stopped: whoever set it gave them away.
type CellAccounts struct {
	// Problem tells in words why nothing is known about the cells; then the rest is empty.
	Problem string
	// Unnumbered tells in words why no cores can be picked; empty when they can.
	Unnumbered string
	// Threads of a core.
	Threads int
	// Cells by their id.
	Cells []CellAccount
	// Slots by VMID.
	Slots []Slot
}

// CellAccount is one NUMA cell.
type CellAccount struct {
	ID int
	// FreeMemoryBytes is what VMs may still take; negative where the cell is
	// overfull.
	FreeMemoryBytes int64
	// FreeCores have no thread that is reserved, promised or pinned to.
	FreeCores []cpuset.CPUSet

	cpus cpuset.CPUSet
	// pool are the CPUs that VMs without cores of their own share, shared is how
	// many vCPUs those have.
	pool   cpuset.CPUSet
	size   int // of pool
	shared int
	ratio  float64
}

// FreeCPUs is how many vCPUs the cell can still take once so many of its CPUs are
// given away for good; negative where it could not spare them.
func (c CellAccount) FreeCPUs(given int) int {
	return int(math.Floor(float64(c.size-given)*c.ratio+1e-9)) - c.shared
}

// CPUs of the cell, whoever has them.
func (c CellAccount) CPUs() cpuset.CPUSet { return c.cpus }

// Size is how many CPUs the cell has.
func (c CellAccount) Size() int { return c.cpus.Size() }

// Has counts the CPUs of a set that are in the cell, and those of them that would
// be taken from its other VMs.
func (c CellAccount) Has(cpus cpuset.CPUSet) (all, shared int) {
	return c.cpus.Intersection(cpus).Size(), c.pool.Intersection(cpus).Size()
}

// Slot is a slot template.
type Slot struct {
	VMID int
	Tags []string
	// CPUs that its clone has to itself.
	CPUs      cpuset.CPUSet
	Hugepages string
	// Busy is true while a VM has one of these CPUs, or is to have it.
	Busy bool
}

// Cells is the account of a Host's cells. It is computed when it is first asked for.
func (v View) Cells(region, host string) *CellAccounts {
	if v.index == nil {
		return &CellAccounts{Problem: v.unknownHost(region)}
	}
	account, ok := v.index.hosts[region][host]
	if !ok {
		return &CellAccounts{Problem: v.unknownHost(region)}
	}
	return account.cells()
}

// NodePoolCells are the cells of a Host that VMs of a NodePool are bound to.
func (v View) NodePoolCells(region, host, nodePool string) []int {
	var cells []int
	for _, p := range promisedOn(v, region, host) {
		if p.NodePool != nodePool || p.Binding == nil {
			continue
		}
		for _, cell := range p.Binding.Cells {
			cells = append(cells, cell.ID)
		}
	}
	slices.Sort(cells)
	return slices.Compact(cells)
}

// lazyCells gives every Host its account of cells, computed once when asked for:
// most NodeClasses never do.
func (x *index) lazyCells(v View) {
	for region, snapshot := range v.Snapshots {
		byHost := sync.OnceValue(func() map[string][]Guest {
			guests := map[string][]Guest{}
			for _, guest := range snapshot.Guests {
				guests[guest.Host] = append(guests[guest.Host], guest)
			}
			return guests
		})
		for name, host := range snapshot.Hosts {
			account := x.hosts[region][name]
			account.cells = sync.OnceValue(func() *CellAccounts {
				return newCellAccounts(host, account.limits, byHost()[name], promisedOn(v, region, name))
			})
		}
	}
}

// promise is a Reservation beside the guest that it made, if that is to be seen.
type promise struct {
	Reservation
	guest   Guest
	visible bool
}

// promisedOn are the Reservations that count on a Host: those whose VM was migrated
// away count where the VM is.
func promisedOn(v View, region, host string) []promise {
	var out []promise
	for _, r := range v.Reservations {
		if r.Region != region || r.Host != host {
			continue
		}
		guest, visible := v.Guest(region, r.VMID)
		if visible && guest.Host != host {
			continue
		}
		out = append(out, promise{r, guest, visible})
	}
	return out
}

func newCellAccounts(host Host, limits HostSettings, guests []Guest, promises []promise) *CellAccounts {
	h, err := hardwareOf(host.HostRow, host.Hardware, limits.Topology)
	if err != nil {
		return &CellAccounts{Problem: err.Error()}
	}
	b := newCellBook(h, limits)
	bound := map[int]bool{} // VMIDs that a Reservation accounts for
	for _, p := range promises {
		bound[p.VMID] = b.promise(p)
	}
	for _, guest := range guests {
		b.count(guest, bound[guest.VMID])
	}
	return b.close(guests)
}

// cellBook is a CellAccounts in the making.
type cellBook struct {
	hardware hardware
	limits   HostSettings
	cells    []CellAccount
	// exclusive CPUs are promised to VMs of ours, pinned ones have guests tied to
	// them, setAside ones belong to slots.
	exclusive, pinned, setAside cpuset.CPUSet
	floating                    Amount
}

func newCellBook(h hardware, limits HostSettings) *cellBook {
	b := &cellBook{hardware: h, limits: limits, cells: make([]CellAccount, len(h.cells))}
	var total int64
	for _, cell := range h.cells {
		total += cell.memoryMiB
	}
	for n, cell := range h.cells {
		// Nobody tells which cell the Host's own memory is in.
		reserved := proportion(limits.ReservedMemoryBytes>>20, cell.memoryMiB, total)
		b.cells[n] = CellAccount{
			ID: cell.id, cpus: cell.cpus, ratio: limits.CPURatio,
			FreeMemoryBytes: int64(float64(max(0, cell.memoryMiB-reserved))*limits.MemoryRatio) << 20,
		}
	}
	return b
}

// proportion is the share of an amount that falls on a part of the whole, rounded up.
func proportion(amount, part, whole int64) int64 {
	if whole == 0 {
		return 0
	}
	return (amount*part + whole - 1) / whole
}

// promise counts a Reservation, and tells whether that covers its guest too. One
// with a Binding does: what the guest's configuration says may be older than that.
func (b *cellBook) promise(p promise) bool {
	if p.Binding == nil {
		if !p.Fulfilled {
			b.floating = b.floating.Plus(p.Amount.Minus(p.guest.Allocated).atLeast(Amount{}))
		}
		return false
	}
	b.exclusive = b.exclusive.Union(p.Binding.CPUs)
	for _, cell := range p.Binding.Cells {
		n, ok := b.hardware.indexOf(cell.ID)
		if !ok {
			continue // the settings changed since
		}
		b.cells[n].FreeMemoryBytes -= cell.MemoryMiB << 20
		if p.Binding.CPUs.IsEmpty() {
			b.cells[n].shared += cell.VCPUs
		}
	}
	return true
}

// count counts a guest.
func (b *cellBook) count(guest Guest, covered bool) {
	pinned := guest.pinned()
	switch {
	case guest.Template || (guest.Config != nil && guest.Config.IsTemplate()):
		if guest.IsSlot() {
			b.setAside = b.setAside.Union(pinned)
		}
		return
	case covered:
		b.pinned = b.pinned.Union(pinned)
		return
	}
	b.pinned = b.pinned.Union(pinned)
	bound, floating := b.hardware.sharesOf(guest)
	b.floating = b.floating.Plus(floating)
	for _, s := range bound {
		b.cells[s.cell].shared += s.vcpus
		b.cells[s.cell].FreeMemoryBytes -= s.memoryMiB << 20
	}
}

// close spreads what floats, and finds the cores that are left.
func (b *cellBook) close(guests []Guest) *CellAccounts {
	var cpus, memory int64
	for _, cell := range b.hardware.cells {
		cpus, memory = cpus+int64(cell.cpus.Size()), memory+cell.memoryMiB
	}
	floatingMiB := (b.floating.MemoryBytes + 1<<20 - 1) >> 20
	taken := b.limits.ReservedCPUs.Union(b.exclusive).Union(b.pinned).Union(b.setAside)
	for n, cell := range b.hardware.cells {
		account := &b.cells[n]
		account.pool = cell.cpus.Difference(b.limits.ReservedCPUs.Union(b.exclusive))
		account.size = account.pool.Size()
		account.shared += int(proportion(int64(b.floating.CPUs), int64(cell.cpus.Size()), cpus))
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

// slotsOf lists the slot templates among the guests.
func slotsOf(guests []Guest, inUse cpuset.CPUSet) []Slot {
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
