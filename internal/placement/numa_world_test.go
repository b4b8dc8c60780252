// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package placement_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/utils/cpuset"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/placement"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// numaWorld is one Host with cells, as a test describes it. Its oracle counts for
// itself, from the description and not from the inventory.
type numaWorld struct {
	threads  int
	cells    []numaCell
	reserved cpuset.CPUSet
	ratio    float64
	guests   []numaGuest
	slots    []cpuset.CPUSet
	taken    map[string]inventory.Reservation
}

type numaCell struct {
	cpus   cpuset.CPUSet
	memory int64 // MiB
}

// numaGuest is somebody's: bound to a cell, with an affinity, or floating.
type numaGuest struct {
	vcpus    int
	memory   int64 // MiB
	cell     int   // -1 = not bound
	affinity cpuset.CPUSet
	stopped  bool
}

const slotTag = inventory.SlotTagPrefix + "ubuntu"

// newNUMAWorld has equal cells of whole cores; the second threads come after all
// first ones, as Linux numbers them.
func newNUMAWorld(cells, coresPerCell, threads int, memoryMiB int64) *numaWorld {
	w := &numaWorld{threads: threads, ratio: 1, taken: map[string]inventory.Reservation{}}
	all := cells * coresPerCell
	for c := range cells {
		var ids []int
		for core := range coresPerCell {
			for thread := range threads {
				ids = append(ids, thread*all+c*coresPerCell+core)
			}
		}
		w.cells = append(w.cells, numaCell{cpuset.New(ids...), memoryMiB})
	}
	return w
}

func (w *numaWorld) cpus() (n int) {
	for _, cell := range w.cells {
		n += cell.cpus.Size()
	}
	return n
}

func (w *numaWorld) memory() (n int64) {
	for _, cell := range w.cells {
		n += cell.memory
	}
	return n
}

func (w *numaWorld) view(t *testing.T) inventory.View {
	t.Helper()
	cells := make([]string, len(w.cells))
	for id, cell := range w.cells {
		cells[id] = fmt.Sprintf(`"%d": {"cpus": "%s", "memsize": %d}`, id, cell.cpus, cell.memory<<20)
	}
	reserved := strings.ReplaceAll(fmt.Sprint(w.reserved.List()), " ", ",")
	settings, err := inventory.ParseSettings(fmt.Appendf(nil, `{"r": {"pve1": {"reservedmemory": 0, "reservedcpus": %s, "cpuratio": %g, "threads": %d, "nodes": {%s}}}}`,
		reserved, w.ratio, w.threads, strings.Join(cells, ", ")))
	if err != nil {
		t.Fatal(err)
	}
	resources := proxmox.Resources{Hosts: []proxmox.HostRow{{Name: "pve1", Online: true, CPUs: w.cpus(), MemoryBytes: w.memory() << 20}}}
	configs := map[int]*proxmox.VMConfig{}
	for n, g := range w.guests {
		row := proxmox.GuestRow{VMID: 100 + n, Kind: proxmox.KindQEMU, Host: "pve1", Status: "running", CPUs: g.vcpus, MemoryBytes: g.memory << 20}
		if g.stopped {
			row.Status = "stopped"
		}
		options := map[string]string{}
		if g.cell >= 0 {
			options["numa"], options["numa0"] = "1", fmt.Sprintf("cpus=0-%d,hostnodes=%d,memory=%d,policy=bind", g.vcpus-1, g.cell, g.memory)
		}
		if !g.affinity.IsEmpty() {
			options["affinity"] = g.affinity.String()
		}
		resources.Guests, configs[row.VMID] = append(resources.Guests, row), &proxmox.VMConfig{Options: options}
	}
	for n, cpus := range w.slots {
		row := proxmox.GuestRow{VMID: 9000 + n, Kind: proxmox.KindQEMU, Host: "pve1", Status: "stopped", Template: true, Tags: []string{slotTag}, CPUs: 1, MemoryBytes: 1 << 30}
		resources.Guests = append(resources.Guests, row)
		configs[row.VMID] = &proxmox.VMConfig{Options: map[string]string{"template": "1", "affinity": cpus.String()}}
	}
	snapshot := inventory.NewSnapshot(inventory.PollResult{Region: "r", Taken: time.Unix(0, 0), Resources: resources, Configs: configs}, nil, own)
	return inventory.NewView(map[string]*inventory.Snapshot{"r": snapshot}, nil, w.taken, settings)
}

// take reserves what was placed.
func (w *numaWorld) take(p placement.Placement) {
	uid := fmt.Sprint("claim-", len(w.taken))
	w.taken[uid] = inventory.Reservation{
		ClaimUID: uid, NodePool: p.Need.NodePool, Region: "r", Host: "pve1", VMID: 20000 + len(w.taken),
		Amount:  inventory.Amount{CPUs: p.Need.CPUs, MemoryBytes: p.Need.MemoryBytes},
		Binding: &p.Binding.Binding,
	}
}

// exclusive are the CPUs that claims have to themselves, pinned those of others.
func (w *numaWorld) exclusive() cpuset.CPUSet {
	set := cpuset.New()
	for _, r := range w.taken {
		set = set.Union(r.Binding.CPUs)
	}
	return set
}

func (w *numaWorld) pinned() cpuset.CPUSet {
	set := cpuset.New()
	for _, g := range w.guests {
		set = set.Union(g.affinity)
	}
	return set
}

// room is the oracle's account of a cell: vCPUs that share it, CPUs that they
// share, and MiB that are left.
func (w *numaWorld) room(id int) (shared, pool int, memory int64) {
	cell := w.cells[id]
	pool, memory = cell.cpus.Difference(w.reserved).Difference(w.exclusive()).Size(), cell.memory
	floatingCPUs, floatingMemory := 0, int64(0)
	for _, g := range w.guests {
		touched := slices.DeleteFunc([]int{0, 1, 2, 3, 4, 5, 6, 7, 8}[:len(w.cells)], func(c int) bool { return w.cells[c].cpus.Intersection(g.affinity).IsEmpty() })
		switch {
		case g.stopped:
		case g.cell == id:
			shared, memory = shared+g.vcpus, memory-g.memory
		case g.cell >= 0:
		case len(touched) > 0:
			if n := slices.Index(touched, id); n >= 0 {
				shared += (g.vcpus + len(touched) - 1 - n) / len(touched)
				memory -= (g.memory + int64(len(touched)-1-n)) / int64(len(touched))
			}
		default:
			floatingCPUs, floatingMemory = floatingCPUs+g.vcpus, floatingMemory+g.memory
		}
	}
	shared += (floatingCPUs*cell.cpus.Size() + w.cpus() - 1) / w.cpus()
	memory -= (floatingMemory*cell.memory + w.memory() - 1) / w.memory()
	for _, r := range w.taken {
		for _, bound := range r.Binding.Cells {
			if bound.ID != id {
				continue
			}
			memory -= bound.MemoryMiB
			if r.Binding.CPUs.IsEmpty() {
				shared += bound.VCPUs
			}
		}
	}
	return shared, pool, memory
}

// freeCores counts the oracle's cores of a cell that nobody has.
func (w *numaWorld) freeCores(id int) (n int) {
	taken := w.reserved.Union(w.exclusive()).Union(w.pinned())
	for _, slot := range w.slots {
		taken = taken.Union(slot)
	}
	list := w.cells[id].cpus.List()
	cores := len(list) / w.threads
	for core := range cores {
		free := true
		for thread := range w.threads {
			free = free && !taken.Contains(list[core+thread*cores])
		}
		if free {
			n++
		}
	}
	return n
}

// randomNUMA makes a world and a need out of a seed.
func randomNUMA(seed uint64) (*numaWorld, placement.Need) {
	rng := rand.New(rand.NewPCG(seed, 7))
	w := newNUMAWorld(1+rng.IntN(4), 1+rng.IntN(4), 1+rng.IntN(2), 0)
	for n := range w.cells {
		w.cells[n].memory = int64(1+rng.IntN(16)) * 1024
		if rng.IntN(4) == 0 {
			w.cells[n].memory += int64(rng.IntN(1024))
		}
	}
	all := w.cpus()
	if rng.IntN(3) == 0 {
		w.reserved = cpuset.New(rng.IntN(all))
	}
	w.ratio = []float64{1, 1, 1.5, 2}[rng.IntN(4)]
	for range rng.IntN(4) {
		g := numaGuest{vcpus: 1 + rng.IntN(3), memory: int64(1+rng.IntN(4)) * 700, cell: -1, stopped: rng.IntN(4) == 0}
		switch rng.IntN(3) {
		case 0:
			g.cell = rng.IntN(len(w.cells))
		case 1:
			g.affinity = cpuset.New(rng.IntN(all), rng.IntN(all))
		}
		w.guests = append(w.guests, g)
	}
	for range rng.IntN(6) {
		w.slots = append(w.slots, cpuset.New(rng.IntN(all), rng.IntN(all), rng.IntN(all)))
	}
	need := placement.Need{CPUs: 1 + rng.IntN(6), MemoryBytes: int64(512+rng.IntN(6*1024)) << 20, Layout: placement.Layout{Bound: true}}
	switch rng.IntN(4) {
	case 0, 1:
		need.Layout.Exclusive = true
	}
	need.PinningSupport = placement.PinningSupport{Root: rng.IntN(3) > 0, Hook: rng.IntN(4) == 0}
	if rng.IntN(2) == 0 {
		need.PinningSupport.SlotTag = slotTag
	}
	if rng.IntN(3) == 0 {
		need.Layout.PageMiB = []int{2, 1024}[rng.IntN(2)]
		need.MemoryBytes = (1 + need.MemoryBytes>>30) << 30
		if rng.IntN(2) == 0 {
			need.PinningSupport.Hugepages = fmt.Sprint(need.Layout.PageMiB)
		}
	}
	return w, need
}
