// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"fmt"

	"k8s.io/utils/cpuset"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/hosttopology"
)

// PublishedTopology is the layout that pve-hook published in the notes of a Host.
type PublishedTopology struct {
	// Topology is nil if the line in the notes is invalid.
	Topology *hosttopology.Topology
	// Problem describes why the line is invalid; empty if it is valid.
	Problem string
}

// topologyOf returns the published topology of a Host. Nil Facts have none.
func (f *Facts) topologyOf(host string) PublishedTopology {
	if f == nil {
		return PublishedTopology{}
	}
	return f.Topologies[host]
}

// cells returns the published cells; none and the problem if they do not match the number of
// CPUs of the Host.
func (p PublishedTopology) cells(cpus int) ([]hosttopology.Cell, string) {
	if p.Topology == nil {
		return nil, p.Problem
	}
	found := 0
	for _, cell := range p.Topology.Cells {
		found += cell.CPUs().Size()
	}
	if found != cpus {
		return nil, fmt.Sprintf(`the topology in the notes of the host has %d CPUs, the host has %d: run "pve-hook topology --publish" on the host`, found, cpus)
	}
	return p.Topology.Cells, ""
}

// fromPublished uses the published cells.
func (h hardware) fromPublished(published []hosttopology.Cell, configured Topology) (hardware, error) {
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
