// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/utils/cpuset"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// How the threads of a core are numbered.
const (
	// SiblingsSpread is Linux's usual way: first one thread of every core, then the
	// others in the same order.
	SiblingsSpread = "spread"
	// SiblingsAdjacent numbers the threads of a core one after the other.
	SiblingsAdjacent = "adjacent"
)

// hardware is a Host's cells and cores, from its settings or, by sockets, from
// what Proxmox tells.
type hardware struct {
	cells []hardwareCell // by id
	// threads of a core.
	threads int
	// unnumbered tells why it is not certain which CPU is where; empty when it is.
	// Memory can be bound all the same: that takes the number of the cell alone.
	unnumbered string
}

// hardwareCell is one NUMA cell.
type hardwareCell struct {
	id        int
	cpus      cpuset.CPUSet
	cores     []cpuset.CPUSet // threads by core
	memoryMiB int64
}

// hardwareOf puts together what is known about a Host. The error says in words
// what is missing or wrong.
func newHardware(row proxmox.HostRow, info proxmox.HostInfo, given Topology) (hardware, error) {
	h := hardware{threads: threadsOf(info, given)}
	if len(given.Cells) > 0 {
		return h.fromCells(row, given)
	}
	return h.bySockets(row, info, given)
}

// threadsOf counts the threads of a core; 0 where cores differ, as on hybrid CPUs.
func threadsOf(info proxmox.HostInfo, given Topology) int {
	switch {
	case given.Threads > 0:
		return given.Threads
	case info.Cores > 0 && info.CPUs%info.Cores == 0:
		return info.CPUs / info.Cores
	}
	return 0
}

// fromCells takes the cells that the settings name.
func (h hardware) fromCells(row proxmox.HostRow, given Topology) (hardware, error) {
	for _, id := range slices.Sorted(maps.Keys(given.Cells)) {
		cell := given.Cells[id]
		if cell.CPUs.IsEmpty() {
			continue // memory alone: no VM can live there
		}
		if last := cell.CPUs.List()[cell.CPUs.Size()-1]; last >= row.CPUs {
			return hardware{}, fmt.Errorf("the node settings put CPU %d into cell %d (nodes.%d.cpus), but the Host has the CPUs 0-%d", last, id, id, row.CPUs-1)
		}
		memory := cell.MemoryBytes
		if memory == 0 {
			memory = row.MemoryBytes / int64(len(given.Cells))
		}
		h.cells = append(h.cells, hardwareCell{id: id, cpus: cell.CPUs, memoryMiB: memory >> 20})
	}
	if h.threads == 0 {
		h.unnumbered = "how many threads a core has is not known: set threads in the node settings"
		return h, nil
	}
	for n := range h.cells {
		cell := &h.cells[n]
		if cell.cpus.Size()%h.threads != 0 {
			return hardware{}, fmt.Errorf("the node settings give cell %d (nodes.%d.cpus) %d CPUs, which is no multiple of the %d threads of a core", cell.id, cell.id, cell.cpus.Size(), h.threads)
		}
		cell.cores = coresOf(cell.cpus, h.threads, given.Siblings)
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
			if siblings == SiblingsAdjacent {
				members[thread] = list[core*threads+thread]
			} else {
				members[thread] = list[core+thread*count]
			}
		}
		cores[core] = cpuset.New(members...)
	}
	return cores
}

// bySockets makes one cell of each socket, as most firmware does. How CPUs are
// numbered over sockets and threads differs between makers, so that cores are
// picked only where there is nothing to guess.
func (h hardware) bySockets(row proxmox.HostRow, info proxmox.HostInfo, given Topology) (hardware, error) {
	sockets := given.Sockets
	if sockets == 0 {
		sockets = info.Sockets
	}
	switch {
	case sockets == 0:
		return hardware{}, fmt.Errorf("its sockets are not known: the token needs Sys.Audit on /nodes/%s, or set nodes in the node settings", row.Name)
	case row.CPUs%sockets != 0:
		return hardware{}, fmt.Errorf("%d CPUs on %d sockets are no equal cells: set nodes in the node settings", row.CPUs, sockets)
	}
	if sockets > 1 || h.threads != 1 {
		h.unnumbered = `which CPU is on which core and cell is not known: set nodes and threads in the node settings, as "lscpu -e=CPU,CORE,NODE" shows them on the Host`
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

// indexOf finds a cell by its id.
func (h hardware) indexOf(id int) (n int, ok bool) {
	n = slices.IndexFunc(h.cells, func(c hardwareCell) bool { return c.id == id })
	return n, n >= 0
}

// hardwareRetry spaces the tries on a Host that does not tell.
const hardwareRetry = 10 * time.Minute

// hardwareBook is what Hosts told about their hardware, by name.
type hardwareCache map[string]hardwareEntry

type hardwareEntry struct {
	info proxmox.HostInfo
	// cpus that the Host's row showed then: other ones mean other hardware.
	cpus  int
	tried time.Time
}

func (b hardwareCache) known() map[string]proxmox.HostInfo {
	infos := make(map[string]proxmox.HostInfo, len(b))
	for host, note := range b {
		infos[host] = note.info
	}
	return infos
}

// readHardware asks the Hosts that were not asked yet, or have changed, and tells
// whether that brought news.
func (c *cluster) readHardware(ctx context.Context, rows []proxmox.HostRow) bool {
	now := c.inventory.options.Clock.Now()
	var due []proxmox.HostRow
	for _, row := range rows {
		note, asked := c.hardware[row.Name]
		known := note.info != (proxmox.HostInfo{}) && note.cpus == row.CPUs
		if row.Online && row.CPUs > 0 && !known && (!asked || now.Sub(note.tried) >= hardwareRetry) {
			due = append(due, row)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	infos := make([]proxmox.HostInfo, len(due))
	var group errgroup.Group
	group.SetLimit(maxParallelReads)
	for n, row := range due {
		group.Go(func() error {
			var err error
			if infos[n], err = c.client.HostInfo(ctx, row.Name); err != nil {
				c.inventory.options.Log.V(1).Info("reading the hardware failed", "region", c.region, "host", row.Name, "error", err.Error())
			}
			return nil // without it only bound VMs lack their cells
		})
	}
	_ = group.Wait()
	news := false
	for n, row := range due {
		news = news || infos[n] != c.hardware[row.Name].info
		c.hardware[row.Name] = hardwareEntry{info: infos[n], cpus: row.CPUs, tried: now}
	}
	return news
}
