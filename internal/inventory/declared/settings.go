// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package declared

import (
	"cmp"
	"math"
	"path"
	"slices"
	"strings"

	"k8s.io/utils/cpuset"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/observed"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// Defaults of HostSettings. Ratios of one mean no overcommitment. A Host without reserved
// memory swaps or kills guests.
const (
	DefaultReservedMemoryBytes int64 = 1 << 30
	DefaultCPURatio                  = 1.0
	DefaultMemoryRatio               = 1.0
	// A full thin pool pauses every VM on it, so a tenth remains free.
	DefaultStorageHighWater = 0.9
	// Reserved disks count in full until Proxmox reports their usage.
	DefaultStorageThinFactor = 1.0
	DefaultPriceFactor       = 1.0
)

// HostSettings limit how much of a Host may be used.
type HostSettings struct {
	// Excluded Hosts accept no new VMs.
	Excluded bool
	// ReservedCPUs are not available to VMs.
	ReservedCPUs cpuset.CPUSet
	// ReservedMemoryBytes is memory for the Host itself (ZFS cache, Ceph).
	ReservedMemoryBytes int64
	// CPURatio and MemoryRatio multiply the rest: 2.0 allocates each CPU twice.
	CPURatio    float64
	MemoryRatio float64
	// StorageHighWater is the fraction of a storage that may be filled.
	StorageHighWater float64
	// StorageThinFactor is the fraction of a reserved disk that counts on thin-provisioned
	// storages until Proxmox reports its usage.
	StorageThinFactor float64
	// PriceFactor multiplies the price of VMs on the Host. Hosts with a lower factor are
	// filled first.
	PriceFactor float64
	// KeepsReserve makes VMs on the Host leave free what the largest Host of the region holds.
	KeepsReserve bool
	// Topology as configured; Proxmox's API does not report it.
	Topology Topology
	Power    PowerSettings
}

// Topology is the layout of a Host's CPUs and memory. Zero values are unset.
type Topology struct {
	Sockets      int
	Cores        int
	Threads      int
	UncoreCaches int
	// Siblings is how threads are numbered; empty means SiblingsSpread.
	Siblings string
	// Cells by NUMA ID.
	Cells map[int]Cell
}

// Cell is a NUMA cell of a Host.
type Cell struct {
	CPUs        cpuset.CPUSet
	MemoryBytes int64
}

// Allocatable returns the total for all guests of a Host.
func (s HostSettings) Allocatable(row proxmox.HostRow) observed.Amount {
	cpus := float64(max(0, row.CPUs-s.ReservedCPUs.Size())) * s.CPURatio
	memory := float64(max(0, row.MemoryBytes-s.ReservedMemoryBytes)) * s.MemoryRatio
	// A ratio such as 1.1 is inexact in binary: 1.1 x 10 must be 11.
	return observed.Amount{CPUs: int(math.Floor(cpus + 1e-9)), MemoryBytes: int64(memory)}
}

// ReservedBytes returns how much of the reserved bytes counts on a storage.
func (s HostSettings) ReservedBytes(row proxmox.StorageRow, bytes int64) int64 {
	switch row.Type {
	case "lvm", "iscsi", "iscsidirect": // thick-provisioned
		return bytes
	}
	return int64(float64(bytes) * s.StorageThinFactor)
}

// Settings contain HostSettings by region and Host pattern. The zero value contains the
// defaults.
type Settings struct {
	rules []rule // least specific first
}

// rule is one entry of the file: the fields to set for matching Hosts.
type rule struct {
	region, host string
	apply        []func(*HostSettings)
}

// For returns the settings of a Host: the defaults, then every matching entry from the
// least to the most specific. An entry changes only the fields that it contains.
func (s Settings) For(region, host string) HostSettings {
	settings := HostSettings{
		ReservedMemoryBytes: DefaultReservedMemoryBytes,
		CPURatio:            DefaultCPURatio,
		MemoryRatio:         DefaultMemoryRatio,
		StorageHighWater:    DefaultStorageHighWater,
		StorageThinFactor:   DefaultStorageThinFactor,
		PriceFactor:         DefaultPriceFactor,
		Power:               PowerSettings{Mode: PowerNone, IdleTime: DefaultIdleTime, MinAwake: DefaultMinAwake, WakeTimeout: DefaultWakeTimeout},
	}
	for _, r := range s.rules {
		if !matches(r.region, region) || !matches(r.host, host) {
			continue
		}
		for _, set := range r.apply {
			set(&settings)
		}
	}
	return settings
}

// matches reports whether a shell pattern matches. Patterns are validated when the file is
// parsed.
func matches(pattern, name string) bool {
	ok, err := path.Match(pattern, name)
	return err == nil && ok
}

// bySpecificity sorts exact names last and patterns by their number of fixed characters.
// The region is compared first.
func bySpecificity(a, b rule) int {
	return cmp.Or(
		cmp.Compare(specificity(a.region), specificity(b.region)),
		cmp.Compare(specificity(a.host), specificity(b.host)),
		cmp.Compare(a.region, b.region),
		cmp.Compare(a.host, b.host),
	)
}

func specificity(pattern string) int {
	if !strings.ContainsAny(pattern, `*?[\`) {
		return math.MaxInt
	}
	return len(pattern) - strings.Count(pattern, "*")
}

func newSettings(rules []rule) Settings {
	slices.SortFunc(rules, bySpecificity)
	return Settings{rules: rules}
}

// Numbering schemes of the threads of a core.
const (
	// SiblingsSpread is the usual numbering of Linux: first one thread of every core, then
	// the others in the same order.
	SiblingsSpread = "spread"
	// SiblingsAdjacent numbers the threads of a core consecutively.
	SiblingsAdjacent = "adjacent"
)
