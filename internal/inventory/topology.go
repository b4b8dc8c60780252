// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"fmt"
	"maps"
	"slices"

	"k8s.io/utils/cpuset"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/hosttopology"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/declared"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/observed"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// hardware is the cells and cores of a Host, from its settings, as published by pve-hook
// or, by sockets, from Proxmox.
type hardware struct {
	cells []hardwareCell // sorted by id
	// threads per core.
	threads int
	// unnumbered describes why the CPU numbers of a core or cell are unknown; empty if they
	// are known. Memory can be bound anyway, because that needs only the cell ID.
	unnumbered string
}

// hardwareCell is one NUMA cell.
type hardwareCell struct {
	id        int
	cpus      cpuset.CPUSet
	cores     []cpuset.CPUSet // threads by core
	caches    []cpuset.CPUSet // CPUs by last-level cache; nil if unknown
	memoryMiB int64
}

// newHardware combines the settings, the published topology and what Proxmox reports about
// a Host. The settings have precedence. The error describes what is missing or wrong.
func newHardware(host observed.Host, configured declared.Topology) (hardware, error) {
	published, problem := host.Topology.Cells(host.CPUs)
	h := hardware{threads: threadsOf(host.Hardware, configured, published)}
	switch {
	case len(configured.Cells) > 0:
		return h.fromSettings(host.HostRow, configured, published)
	case len(published) > 0:
		return h.fromPublished(published, configured)
	}
	h, err := h.bySockets(host.HostRow, host.Hardware, configured)
	if h.unnumbered != "" && problem != "" {
		h.unnumbered = problem
	}
	return h, err
}

// threadsOf returns the threads per core; 0 if unknown. Without a published topology it is
// also 0 if cores differ, as on hybrid CPUs.
func threadsOf(info proxmox.HostInfo, configured declared.Topology, published []hosttopology.Cell) int {
	switch {
	case len(published) > 0 && (configured.Siblings == "" || configured.Threads == 0):
		return maxThreads(published)
	case configured.Threads > 0:
		return configured.Threads
	case info.Cores > 0 && info.CPUs%info.Cores == 0:
		return info.CPUs / info.Cores
	}
	return 0
}

// fromSettings uses the cells in the settings. What these lack is as published.
func (h hardware) fromSettings(row proxmox.HostRow, configured declared.Topology, published []hosttopology.Cell) (hardware, error) {
	for _, id := range slices.Sorted(maps.Keys(configured.Cells)) {
		cell := configured.Cells[id]
		if cell.CPUs.IsEmpty() {
			continue // VMs need CPUs
		}
		if last := cell.CPUs.List()[cell.CPUs.Size()-1]; last >= row.CPUs {
			return hardware{}, fmt.Errorf("host settings: cell %d (nodes.%d.cpus) has CPU %d, but the host has only CPUs 0-%d", id, id, last, row.CPUs-1)
		}
		memory := cell.MemoryBytes
		if memory == 0 {
			memory = publishedMemory(published, id)
		}
		if memory == 0 {
			memory = row.MemoryBytes / int64(len(configured.Cells))
		}
		h.cells = append(h.cells, hardwareCell{id: id, cpus: cell.CPUs, memoryMiB: memory >> 20})
	}
	return h.withCores(configured, published)
}

// withCores sets the cores and caches of the cells. A number of threads does not identify the
// CPUs of a core, so only siblings in the settings replace the published cores.
func (h hardware) withCores(configured declared.Topology, published []hosttopology.Cell) (hardware, error) {
	if h.threads == 0 {
		h.unnumbered = "the number of threads per core is unknown: set threads in the host settings"
		return h, nil
	}
	for n := range h.cells {
		cell := &h.cells[n]
		cell.caches = publishedCaches(published, cell.cpus)
		if len(published) > 0 && configured.Siblings == "" {
			cell.cores = publishedCores(published, cell.cpus, h.threads)
			continue
		}
		if cell.cpus.Size()%h.threads != 0 {
			return hardware{}, fmt.Errorf("host settings: cell %d (nodes.%d.cpus) has %d CPUs, which is not a multiple of the %d threads of a core", cell.id, cell.id, cell.cpus.Size(), h.threads)
		}
		cell.cores = coresOf(cell.cpus, h.threads, configured.Siblings)
	}
	return h, nil
}

// coresOf groups the CPUs of a cell by core.
func coresOf(cpus cpuset.CPUSet, threads int, siblings string) []cpuset.CPUSet {
	list := cpus.List()
	count := len(list) / threads
	cores := make([]cpuset.CPUSet, count)
	for core := range count {
		members := make([]int, threads)
		for thread := range threads {
			if siblings == declared.SiblingsAdjacent {
				members[thread] = list[core*threads+thread]
			} else {
				members[thread] = list[core+thread*count]
			}
		}
		cores[core] = cpuset.New(members...)
	}
	return cores
}

// bySockets creates one cell per socket, like most firmware. How CPUs are numbered across
// sockets and threads differs between vendors, so cores are known only for a single socket
// without SMT.
func (h hardware) bySockets(row proxmox.HostRow, info proxmox.HostInfo, configured declared.Topology) (hardware, error) {
	sockets := configured.Sockets
	if sockets == 0 {
		sockets = info.Sockets
	}
	switch {
	case sockets == 0:
		return hardware{}, fmt.Errorf("its sockets are unknown: the token needs Sys.Audit on /nodes/%s, or set nodes in the host settings", row.Name)
	case row.CPUs%sockets != 0:
		return hardware{}, fmt.Errorf("%d CPUs cannot be split equally over %d sockets: set nodes in the host settings", row.CPUs, sockets)
	}
	if sockets > 1 || h.threads != 1 {
		h.unnumbered = `the core and cell of each CPU are unknown: run "pve-hook topology --publish" on the host, or set nodes and threads in the host settings, as "lscpu -e=CPU,CORE,NODE" shows them on the host`
	}
	each := row.CPUs / sockets
	for id := range sockets {
		cpus := make([]int, each)
		for n := range cpus {
			cpus[n] = id*each + n
		}
		cell := hardwareCell{id: id, cpus: cpuset.New(cpus...), memoryMiB: row.MemoryBytes >> 20 / int64(sockets)}
		if h.unnumbered == "" {
			cell.cores = coresOf(cell.cpus, 1, "")
		}
		h.cells = append(h.cells, cell)
	}
	return h, nil
}

// indexOf returns the index of a cell by its ID.
func (h hardware) indexOf(id int) (n int, ok bool) {
	n = slices.IndexFunc(h.cells, func(c hardwareCell) bool { return c.id == id })
	return n, n >= 0
}

// fromPublished uses the published cells.
func (h hardware) fromPublished(published []hosttopology.Cell, configured declared.Topology) (hardware, error) {
	for _, cell := range published {
		h.cells = append(h.cells, hardwareCell{id: cell.ID, cpus: cell.CPUs(), memoryMiB: cell.MemoryMiB})
	}
	return h.withCores(configured, published)
}

// maxThreads returns the largest number of threads of a core.
func maxThreads(cells []hosttopology.Cell) int {
	threads := 0
	for _, cell := range cells {
		for _, core := range cell.Cores {
			threads = max(threads, core.Size())
		}
	}
	return threads
}

// publishedMemory returns the memory of a cell in bytes; 0 if it is not published.
func publishedMemory(cells []hosttopology.Cell, id int) int64 {
	for _, cell := range cells {
		if cell.ID == id {
			return cell.MemoryMiB << 20
		}
	}
	return 0
}

// publishedCores returns the cores whose threads are all among these CPUs. A core with fewer
// threads than others, as on hybrid CPUs or with a thread offline, is not assigned to VMs.
func publishedCores(cells []hosttopology.Cell, cpus cpuset.CPUSet, threads int) []cpuset.CPUSet {
	var whole []cpuset.CPUSet
	for _, cell := range cells {
		for _, core := range cell.Cores {
			if core.Size() == threads && core.IsSubsetOf(cpus) {
				whole = append(whole, core)
			}
		}
	}
	return whole
}

// publishedCaches returns the parts of the caches that are in a cell.
func publishedCaches(cells []hosttopology.Cell, cpus cpuset.CPUSet) []cpuset.CPUSet {
	var caches []cpuset.CPUSet
	for _, cell := range cells {
		for _, cache := range cell.Caches {
			if part := cache.Intersection(cpus); !part.IsEmpty() {
				caches = append(caches, part)
			}
		}
	}
	return caches
}
