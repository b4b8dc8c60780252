// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package placement_test

import (
	"math/bits"
	"reflect"
	"slices"
	"testing"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/placement"
)

// fewest is the oracle: it tries every set of cells, and every choice of those that get
// the remaining page, and returns the smallest number of cells that works; 0 if none
// does. Slots are tried first.
func (host *numaHost) fewest(need placement.Need) (cells int, bySlot bool) {
	l := need.Layout
	page := int64(max(1, l.PageMiB))
	memory := need.MemoryBytes >> 20
	if memory%page != 0 && l.PageMiB > 0 {
		return 0, false
	}
	if l.Exclusive && need.PinningSupport.SlotTag != "" && l.PageMiB == 0 {
		if n := host.fewestBySlot(need); n > 0 {
			return n, true
		}
	}
	pages := l.PageMiB == 0 || need.PinningSupport.Root || need.PinningSupport.Hugepages != ""
	if !pages || (l.Exclusive && !need.PinningSupport.Root && !need.PinningSupport.Hook) {
		return 0, false
	}
	best := 0
	for set := uint(1); set < 1<<len(host.cells); set++ {
		if m := bits.OnesCount(set); (best == 0 || m < best) && host.canSplit(set, need, host.cellHasCPUs) {
			best = m
		}
	}
	return best, false
}

// canSplit reports whether a VM can be split evenly over a set of cells.
func (host *numaHost) canSplit(set uint, need placement.Need, hasCPUs func(id, vcpus int, l placement.Layout) bool) bool {
	m := bits.OnesCount(set)
	page := int64(max(1, need.Layout.PageMiB))
	pages := need.MemoryBytes >> 20 / page
	if need.CPUs%m != 0 || pages < int64(m) {
		return false
	}
	for larger := uint(0); larger < 1<<len(host.cells); larger++ {
		if larger&^set != 0 || bits.OnesCount(larger) != int(pages%int64(m)) {
			continue
		}
		ok := true
		for id := range host.cells {
			if set&(1<<id) == 0 {
				continue
			}
			share := pages / int64(m) * page
			if larger&(1<<id) != 0 {
				share += page
			}
			_, _, memory := host.usage(id)
			ok = ok && share <= memory && hasCPUs(id, need.CPUs/m, need.Layout)
		}
		if ok {
			return true
		}
	}
	return false
}

func (host *numaHost) cellHasCPUs(id, vcpus int, l placement.Layout) bool {
	shared, pool, _ := host.usage(id)
	if !l.Exclusive {
		return vcpus <= host.cells[id].cpus.Size() && shared+vcpus <= int(float64(pool)*host.ratio+1e-9)
	}
	cores := (vcpus + host.threads - 1) / host.threads
	return cores <= host.freeCores(id) && shared <= int(float64(pool-cores*host.threads)*host.ratio+1e-9)
}

func (host *numaHost) fewestBySlot(need placement.Need) (best int) {
	for _, slot := range host.slots {
		if !slot.Intersection(host.exclusive().Union(host.pinned())).IsEmpty() {
			continue
		}
		set := uint(0)
		for id, cell := range host.cells {
			if !cell.cpus.Intersection(slot).IsEmpty() {
				set |= 1 << id
			}
		}
		m := bits.OnesCount(set)
		fits := host.canSplit(set, need, func(id, vcpus int, _ placement.Layout) bool {
			shared, pool, _ := host.usage(id)
			here := host.cells[id].cpus.Intersection(slot)
			given := here.Difference(host.reserved).Size()
			return vcpus <= here.Size() && shared <= int(float64(pool-given)*host.ratio+1e-9)
		})
		if fits && (best == 0 || m < best) {
			best = m
		}
	}
	return best
}

func numaRequest(need placement.Need) placement.Request {
	return placement.Request{
		ClaimUID: "claim", NodePool: need.NodePool, Affinity: need.Affinity,
		Options:        []placement.Option{{InstanceType: "type", Need: need, Zones: []placement.Zone{zone("pve1")}}},
		PinningSupport: map[placement.Zone]placement.PinningSupport{zone("pve1"): need.PinningSupport},
	}
}

// TestBindProperties fills many small Hosts until nothing fits and compares with the
// oracle: every VM that fits is placed, on the fewest cells, within all limits, no core
// is assigned twice, memory adds up to the MiB, and the result is deterministic.
func TestBindProperties(t *testing.T) {
	t.Parallel()
	placed, split, pinned, slots := 0, 0, 0, 0
	for seed := range uint64(seeds) {
		host, need := randomNUMAHost(seed)
		for {
			view := host.view(t)
			got, err := placement.Choose(view, numaRequest(need))
			cells, bySlot := host.fewest(need)
			fits := cells > 0 && hostFits(view, need)
			if ok, _ := placement.Fit(view, zone("pve1"), need); ok != fits || (err == nil) != fits {
				t.Fatalf("seed %d: Fit returns %v, Choose %v, the oracle %v for %+v in %+v", seed, ok, err, fits, need, host)
			}
			if err != nil {
				break
			}
			again, err := placement.Choose(host.view(t), numaRequest(need))
			if err != nil || !reflect.DeepEqual(again.Binding, got.Binding) {
				t.Fatalf("seed %d: first %+v, then %+v", seed, got.Binding, again.Binding)
			}
			if len(got.Binding.Cells) != cells || (got.Binding.Method == placement.PinBySlot) != bySlot {
				t.Fatalf("seed %d: %+v, but %d cells suffice (slot: %v)", seed, got.Binding, cells, bySlot)
			}
			host.check(t, seed, got)
			host.reserve(got)
			host.checkLimits(t, seed)
			placed++
			if cells > 1 {
				split++
			}
			if got.Binding.Method == placement.PinBySlot {
				slots++
			}
			if len(got.Binding.Pin) > 0 {
				pinned++
			}
		}
	}
	t.Logf("%d placed, %d over several cells, %d pinned, %d in slots", placed, split, pinned, slots)
	if placed < seeds/2 || split < seeds/50 || pinned < seeds/10 || slots < seeds/50 {
		t.Errorf("%d placed, %d over several cells, %d pinned, %d in slots: the generator is unbalanced", placed, split, pinned, slots)
	}
}

// hostFits is the oracle for the Host as a whole, without cells.
func hostFits(view inventory.View, need placement.Need) bool {
	host, _ := view.Host("r", "pve1")
	return need.CPUs <= host.Free.CPUs && need.MemoryBytes <= host.Free.MemoryBytes
}

// check checks one placement.
func (host *numaHost) check(t *testing.T, seed uint64, p placement.Placement) {
	t.Helper()
	b := p.Binding
	var memory int64
	vcpus := 0
	for _, cell := range b.Cells {
		memory, vcpus = memory+cell.MemoryMiB, vcpus+cell.VCPUs
		if page := int64(p.Need.Layout.PageMiB); page > 0 && cell.MemoryMiB%page != 0 {
			t.Fatalf("seed %d: %d MiB in cell %d is not a multiple of the page size", seed, cell.MemoryMiB, cell.ID)
		}
	}
	if memory != p.Need.MemoryBytes>>20 || vcpus != p.Need.CPUs {
		t.Fatalf("seed %d: the cells have %d MiB and %d vCPUs, the VM %d and %d", seed, memory, vcpus, p.Need.MemoryBytes>>20, p.Need.CPUs)
	}
	if !p.Need.Layout.Exclusive {
		if len(b.Pin) > 0 || !b.CPUs.IsEmpty() || b.Method != "" {
			t.Fatalf("seed %d: pinned without exclusive cores: %+v", seed, b)
		}
		return
	}
	if both := b.CPUs.Intersection(host.exclusive().Union(host.pinned())); !both.IsEmpty() {
		t.Fatalf("seed %d: CPUs %s are assigned twice", seed, both)
	}
	if len(b.Pin) != p.Need.CPUs || len(slices.Compact(slices.Sorted(slices.Values(b.Pin)))) != len(b.Pin) {
		t.Fatalf("seed %d: %d vCPUs are pinned to %v", seed, p.Need.CPUs, b.Pin)
	}
	for n, cpu := range b.Pin {
		cell := b.Cells[n/b.Cells[0].VCPUs]
		if !b.CPUs.Contains(cpu) || !host.cells[cell.ID].cpus.Contains(cpu) {
			t.Fatalf("seed %d: vCPU %d of cell %d is pinned to CPU %d", seed, n, cell.ID, cpu)
		}
	}
	if b.Method != placement.PinBySlot {
		for _, cell := range host.cells {
			list := cell.cpus.List()
			cores := len(list) / host.threads
			for n, cpu := range list {
				if b.CPUs.Contains(cpu) != b.CPUs.Contains(list[n%cores]) {
					t.Fatalf("seed %d: %s contains half a core", seed, b.CPUs)
				}
			}
		}
	}
}

// checkLimits checks the limits of the cells after a placement. Other guests may
// overcommit a cell, but no VM may be added to it then.
func (host *numaHost) checkLimits(t *testing.T, seed uint64) {
	t.Helper()
	used := map[int]string{}
	for uid, r := range host.reservations {
		for _, cpu := range r.Binding.CPUs.List() {
			if used[cpu] != "" {
				t.Fatalf("seed %d: %s and %s both have CPU %d", seed, used[cpu], uid, cpu)
			}
			used[cpu] = uid
		}
		for _, bound := range r.Binding.Cells {
			shared, pool, memory := host.usage(bound.ID)
			if memory < 0 || shared > int(float64(pool)*host.ratio+1e-9) {
				t.Fatalf("seed %d: cell %d has %d MiB left, %d vCPUs on %d CPUs", seed, bound.ID, memory, shared, pool)
			}
		}
	}
}
