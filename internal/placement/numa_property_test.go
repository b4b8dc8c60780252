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

// fewest is the oracle: it tries every set of cells, and every choice of those that
// get the page that is left over, and answers the smallest number of cells that
// works; 0 where none does. Slots are looked at beside.
func (w *numaWorld) fewest(need placement.Need) (cells int, bySlot bool) {
	l := need.Layout
	page := int64(max(1, l.PageMiB))
	memory := need.MemoryBytes >> 20
	if memory%page != 0 && l.PageMiB > 0 {
		return 0, false
	}
	if l.Exclusive && need.PinningSupport.SlotTag != "" && l.PageMiB == 0 {
		if n := w.fewestBySlot(need); n > 0 {
			return n, true
		}
	}
	pages := l.PageMiB == 0 || need.PinningSupport.Root || need.PinningSupport.Hugepages != ""
	if !pages || (l.Exclusive && !need.PinningSupport.Root && !need.PinningSupport.Hook) {
		return 0, false
	}
	best := 0
	for set := uint(1); set < 1<<len(w.cells); set++ {
		if m := bits.OnesCount(set); (best == 0 || m < best) && w.works(set, need, w.cellRuns) {
			best = m
		}
	}
	return best, false
}

// works tells whether a VM can be split evenly over a set of cells.
func (w *numaWorld) works(set uint, need placement.Need, runs func(id, vcpus int, l placement.Layout) bool) bool {
	m := bits.OnesCount(set)
	page := int64(max(1, need.Layout.PageMiB))
	pages := need.MemoryBytes >> 20 / page
	if need.CPUs%m != 0 || pages < int64(m) {
		return false
	}
	for larger := uint(0); larger < 1<<len(w.cells); larger++ {
		if larger&^set != 0 || bits.OnesCount(larger) != int(pages%int64(m)) {
			continue
		}
		ok := true
		for id := range w.cells {
			if set&(1<<id) == 0 {
				continue
			}
			share := pages / int64(m) * page
			if larger&(1<<id) != 0 {
				share += page
			}
			_, _, memory := w.room(id)
			ok = ok && share <= memory && runs(id, need.CPUs/m, need.Layout)
		}
		if ok {
			return true
		}
	}
	return false
}

func (w *numaWorld) cellRuns(id, vcpus int, l placement.Layout) bool {
	shared, pool, _ := w.room(id)
	if !l.Exclusive {
		return vcpus <= w.cells[id].cpus.Size() && shared+vcpus <= int(float64(pool)*w.ratio+1e-9)
	}
	cores := (vcpus + w.threads - 1) / w.threads
	return cores <= w.freeCores(id) && shared <= int(float64(pool-cores*w.threads)*w.ratio+1e-9)
}

func (w *numaWorld) fewestBySlot(need placement.Need) (best int) {
	for _, slot := range w.slots {
		if !slot.Intersection(w.exclusive().Union(w.pinned())).IsEmpty() {
			continue
		}
		set := uint(0)
		for id, cell := range w.cells {
			if !cell.cpus.Intersection(slot).IsEmpty() {
				set |= 1 << id
			}
		}
		m := bits.OnesCount(set)
		works := w.works(set, need, func(id, vcpus int, _ placement.Layout) bool {
			shared, pool, _ := w.room(id)
			here := w.cells[id].cpus.Intersection(slot)
			given := here.Difference(w.reserved).Size()
			return vcpus <= here.Size() && shared <= int(float64(pool-given)*w.ratio+1e-9)
		})
		if works && (best == 0 || m < best) {
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

// TestCellsAgainstTheOracle fills many small Hosts until nothing fits. No placement
// is lost, the fewest cells are taken, no limit is passed, no core is given twice,
// memory adds up to the MiB, and the same question has the same answer.
func TestCellsAgainstTheOracle(t *testing.T) {
	t.Parallel()
	placed, split, pinned, slots := 0, 0, 0, 0
	for seed := range uint64(seeds) {
		w, need := randomNUMA(seed)
		for {
			view := w.view(t)
			got, err := placement.Choose(view, numaRequest(need))
			cells, bySlot := w.fewest(need)
			fits := cells > 0 && hostFits(view, need)
			if ok, _ := placement.Fit(view, zone("pve1"), need); ok != fits || (err == nil) != fits {
				t.Fatalf("seed %d: Fit says %v, Choose %v, the oracle %v for %+v in %+v", seed, ok, err, fits, need, w)
			}
			if err != nil {
				break
			}
			again, err := placement.Choose(w.view(t), numaRequest(need))
			if err != nil || !reflect.DeepEqual(again.Binding, got.Binding) {
				t.Fatalf("seed %d: first %+v, then %+v", seed, got.Binding, again.Binding)
			}
			if len(got.Binding.Cells) != cells || (got.Binding.Method == placement.PinBySlot) != bySlot {
				t.Fatalf("seed %d: %+v, but %d cells suffice (slot: %v)", seed, got.Binding, cells, bySlot)
			}
			w.check(t, seed, got)
			w.take(got)
			w.checkLimits(t, seed)
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
		t.Errorf("%d placed, %d over several cells, %d pinned, %d in slots: the generator lost its balance", placed, split, pinned, slots)
	}
}

// hostFits is what the Host as a whole says, without cells.
func hostFits(view inventory.View, need placement.Need) bool {
	host, _ := view.Host("r", "pve1")
	return need.CPUs <= host.Free.CPUs && need.MemoryBytes <= host.Free.MemoryBytes
}

// check holds one placement against the rules.
func (w *numaWorld) check(t *testing.T, seed uint64, p placement.Placement) {
	t.Helper()
	b := p.Binding
	var memory int64
	vcpus := 0
	for _, cell := range b.Cells {
		memory, vcpus = memory+cell.MemoryMiB, vcpus+cell.VCPUs
		if page := int64(p.Need.Layout.PageMiB); page > 0 && cell.MemoryMiB%page != 0 {
			t.Fatalf("seed %d: %d MiB in cell %d are no whole pages", seed, cell.MemoryMiB, cell.ID)
		}
	}
	if memory != p.Need.MemoryBytes>>20 || vcpus != p.Need.CPUs {
		t.Fatalf("seed %d: the cells have %d MiB and %d vCPUs, the VM %d and %d", seed, memory, vcpus, p.Need.MemoryBytes>>20, p.Need.CPUs)
	}
	if !p.Need.Layout.Exclusive {
		if len(b.Pin) > 0 || !b.CPUs.IsEmpty() || b.Method != "" {
			t.Fatalf("seed %d: pinned without need: %+v", seed, b)
		}
		return
	}
	if both := b.CPUs.Intersection(w.exclusive().Union(w.pinned())); !both.IsEmpty() {
		t.Fatalf("seed %d: CPUs %s are given twice", seed, both)
	}
	if len(b.Pin) != p.Need.CPUs || len(slices.Compact(slices.Sorted(slices.Values(b.Pin)))) != len(b.Pin) {
		t.Fatalf("seed %d: %d vCPUs are pinned to %v", seed, p.Need.CPUs, b.Pin)
	}
	for n, cpu := range b.Pin {
		cell := b.Cells[n/b.Cells[0].VCPUs]
		if !b.CPUs.Contains(cpu) || !w.cells[cell.ID].cpus.Contains(cpu) {
			t.Fatalf("seed %d: vCPU %d of cell %d is pinned to CPU %d", seed, n, cell.ID, cpu)
		}
	}
	if b.Method != placement.PinBySlot {
		for _, cell := range w.cells {
			list := cell.cpus.List()
			cores := len(list) / w.threads
			for n, cpu := range list {
				if b.CPUs.Contains(cpu) != b.CPUs.Contains(list[n%cores]) {
					t.Fatalf("seed %d: %s takes half a core", seed, b.CPUs)
				}
			}
		}
	}
}

// checkLimits holds the world against its limits after a placement. A cell that
// others overfill is not ours to mend, but nothing may be added to it.
func (w *numaWorld) checkLimits(t *testing.T, seed uint64) {
	t.Helper()
	used := map[int]string{}
	for uid, r := range w.taken {
		for _, cpu := range r.Binding.CPUs.List() {
			if used[cpu] != "" {
				t.Fatalf("seed %d: %s and %s both have CPU %d", seed, used[cpu], uid, cpu)
			}
			used[cpu] = uid
		}
		for _, bound := range r.Binding.Cells {
			shared, pool, memory := w.room(bound.ID)
			if memory < 0 || shared > int(float64(pool)*w.ratio+1e-9) {
				t.Fatalf("seed %d: cell %d has %d MiB left, %d vCPUs on %d CPUs", seed, bound.ID, memory, shared, pool)
			}
		}
	}
}
