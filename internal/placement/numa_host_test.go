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

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/hosttopology"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/declared"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/observed"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/placement"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// numaHost is a Host with NUMA cells. Its oracle computes from this description, not
// from the inventory.
type numaHost struct {
	threads      int
	cells        []numaCell
	reserved     cpuset.CPUSet
	ratio        float64
	guests       []numaGuest
	slots        []cpuset.CPUSet
	slotPages    map[int]string  // hugepages of slots
	caches       []cpuset.CPUSet // of the first cell, published by pve-hook
	reservations map[string]inventory.Reservation
}

type numaCell struct {
	cpus   cpuset.CPUSet
	memory int64 // MiB
}

// numaGuest is a foreign guest: bound to a cell, with an affinity, or neither.
type numaGuest struct {
	vcpus    int
	memory   int64 // MiB
	cell     int   // -1 = not bound
	affinity cpuset.CPUSet
	stopped  bool
}

const slotTag = observed.SlotTagPrefix + "ubuntu"

// newNUMAHost returns a Host with equal cells of whole cores. The second threads are
// numbered after all first ones, as in Linux.
func newNUMAHost(cells, coresPerCell, threads int, memoryMiB int64) *numaHost {
	host := &numaHost{threads: threads, ratio: 1, reservations: map[string]inventory.Reservation{}}
	all := cells * coresPerCell
	for c := range cells {
		var ids []int
		for core := range coresPerCell {
			for thread := range threads {
				ids = append(ids, thread*all+c*coresPerCell+core)
			}
		}
		host.cells = append(host.cells, numaCell{cpuset.New(ids...), memoryMiB})
	}
	return host
}

func (host *numaHost) cpus() (n int) {
	for _, cell := range host.cells {
		n += cell.cpus.Size()
	}
	return n
}

func (host *numaHost) memory() (n int64) {
	for _, cell := range host.cells {
		n += cell.memory
	}
	return n
}

func (host *numaHost) view(t *testing.T) inventory.View {
	t.Helper()
	cells := make([]string, len(host.cells))
	for id, cell := range host.cells {
		cells[id] = fmt.Sprintf(`"%d": {"cpus": "%s", "memsize": %d}`, id, cell.cpus, cell.memory<<20)
	}
	reserved := strings.ReplaceAll(fmt.Sprint(host.reserved.List()), " ", ",")
	settings := parseSettings(t, fmt.Sprintf(`{"r": {"pve1": {"reservedmemory": 0, "reservedcpus": %s, "cpuratio": %g, "threads": %d, "nodes": {%s}}}}`,
		reserved, host.ratio, host.threads, strings.Join(cells, ", ")))
	resources := proxmox.Resources{Hosts: []proxmox.HostRow{{Name: "pve1", Online: true, CPUs: host.cpus(), MemoryBytes: host.memory() << 20}}}
	configs := map[int]*proxmox.VMConfig{}
	for n, g := range host.guests {
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
	for n, cpus := range host.slots {
		row := proxmox.GuestRow{VMID: 9000 + n, Kind: proxmox.KindQEMU, Host: "pve1", Status: "stopped", Template: true, Tags: []string{slotTag}, CPUs: 1, MemoryBytes: 1 << 30}
		resources.Guests = append(resources.Guests, row)
		configs[row.VMID] = &proxmox.VMConfig{Options: map[string]string{"template": "1", "affinity": cpus.String()}}
		if pages := host.slotPages[n]; pages != "" {
			configs[row.VMID].Options["hugepages"] = pages
		}
	}
	snapshot := observed.NewSnapshot(observed.Result{Region: "r", Taken: time.Unix(0, 0), Resources: resources, Configs: configs, Facts: host.facts()}, nil, own)
	return inventory.NewView(map[string]*observed.Snapshot{"r": snapshot}, nil, host.reservations, settings, declared.Records{})
}

// facts returns the published topology if the Host has caches.
func (host *numaHost) facts() *observed.Facts {
	if host.caches == nil {
		return nil
	}
	topology := &hosttopology.Topology{}
	for id, cell := range host.cells {
		published := hosttopology.Cell{ID: id, MemoryMiB: cell.memory, Cores: host.cores(id)}
		if id == 0 {
			published.Caches = host.caches
		}
		topology.Cells = append(topology.Cells, published)
	}
	return &observed.Facts{Topologies: map[string]observed.PublishedTopology{"pve1": {Topology: topology}}}
}

// reserve adds a Reservation for a placement.
func (host *numaHost) reserve(p placement.Placement) {
	uid := fmt.Sprint("claim-", len(host.reservations))
	host.reservations[uid] = inventory.Reservation{
		ClaimUID: uid, NodePool: p.Need.NodePool, Region: "r", Host: "pve1", VMID: 20000 + len(host.reservations),
		Amount:  observed.Amount{CPUs: p.Need.CPUs, MemoryBytes: p.Need.MemoryBytes},
		Binding: &p.Binding.Binding,
	}
}

// exclusive returns the CPUs that are assigned to Claims exclusively.
func (host *numaHost) exclusive() cpuset.CPUSet {
	set := cpuset.New()
	for _, r := range host.reservations {
		set = set.Union(r.Binding.CPUs)
	}
	return set
}

// pinned returns the CPUs that foreign guests are pinned to.
func (host *numaHost) pinned() cpuset.CPUSet {
	set := cpuset.New()
	for _, g := range host.guests {
		set = set.Union(g.affinity)
	}
	return set
}

// usage is the oracle's account of a cell: the vCPUs that share it, the CPUs that they
// share, and the free memory in MiB.
func (host *numaHost) usage(id int) (shared, pool int, memory int64) {
	cell := host.cells[id]
	pool, memory = cell.cpus.Difference(host.reserved).Difference(host.exclusive()).Size(), cell.memory
	floatingCPUs, floatingMemory := 0, int64(0)
	for _, g := range host.guests {
		touched := slices.DeleteFunc([]int{0, 1, 2, 3, 4, 5, 6, 7, 8}[:len(host.cells)], func(c int) bool { return host.cells[c].cpus.Intersection(g.affinity).IsEmpty() })
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
	shared += (floatingCPUs*cell.cpus.Size() + host.cpus() - 1) / host.cpus()
	memory -= (floatingMemory*cell.memory + host.memory() - 1) / host.memory()
	for _, r := range host.reservations {
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

// cores returns the threads of each core of a cell.
func (host *numaHost) cores(id int) []cpuset.CPUSet {
	list := host.cells[id].cpus.List()
	cores := make([]cpuset.CPUSet, len(list)/host.threads)
	for core := range cores {
		for thread := range host.threads {
			cores[core] = cores[core].Union(cpuset.New(list[core+thread*len(cores)]))
		}
	}
	return cores
}

// freeCores returns the oracle's number of unassigned cores of a cell.
func (host *numaHost) freeCores(id int) (n int) {
	taken := host.reserved.Union(host.exclusive()).Union(host.pinned())
	for _, slot := range host.slots {
		taken = taken.Union(slot)
	}
	for _, core := range host.cores(id) {
		if core.Intersection(taken).IsEmpty() {
			n++
		}
	}
	return n
}

// randomNUMAHost returns a Host and a Need derived from a seed.
func randomNUMAHost(seed uint64) (*numaHost, placement.Need) {
	rng := rand.New(rand.NewPCG(seed, 7))
	host := newNUMAHost(1+rng.IntN(4), 1+rng.IntN(4), 1+rng.IntN(2), 0)
	for n := range host.cells {
		host.cells[n].memory = int64(1+rng.IntN(16)) * 1024
		if rng.IntN(4) == 0 {
			host.cells[n].memory += int64(rng.IntN(1024))
		}
	}
	all := host.cpus()
	if rng.IntN(3) == 0 {
		host.reserved = cpuset.New(rng.IntN(all))
	}
	host.ratio = []float64{1, 1, 1.5, 2}[rng.IntN(4)]
	for range rng.IntN(4) {
		g := numaGuest{vcpus: 1 + rng.IntN(3), memory: int64(1+rng.IntN(4)) * 700, cell: -1, stopped: rng.IntN(4) == 0}
		switch rng.IntN(3) {
		case 0:
			g.cell = rng.IntN(len(host.cells))
		case 1:
			g.affinity = cpuset.New(rng.IntN(all), rng.IntN(all))
		}
		host.guests = append(host.guests, g)
	}
	for range rng.IntN(6) {
		host.slots = append(host.slots, cpuset.New(rng.IntN(all), rng.IntN(all), rng.IntN(all)))
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
	return host, need
}
