// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"cmp"
	"math"
	"path"
	"slices"
	"strings"

	"k8s.io/utils/cpuset"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// Defaults of HostSettings. Both ratios of one mean that nothing is promised
// twice; a Host without any reserve for itself swaps or kills guests.
const (
	DefaultReservedMemoryBytes int64 = 1 << 30
	DefaultCPURatio                  = 1.0
	DefaultMemoryRatio               = 1.0
	// A thin pool that runs full pauses every VM on it, so a tenth stays free.
	DefaultStorageHighWater = 0.9
	// Promised disks count in full until Proxmox reports what they really use.
	DefaultStorageThinFactor = 1.0
	DefaultPriceFactor       = 1.0
)

// HostSettings say how much of a Host the provider may use.
type HostSettings struct {
	// Excluded Hosts take no new VMs.
	Excluded bool
	// ReservedCPUs are CPUs of the Host that are kept from VMs; their number is
	// what counts today.
	ReservedCPUs cpuset.CPUSet
	// ReservedMemoryBytes is kept from VMs, for the Host itself (ZFS cache, Ceph).
	ReservedMemoryBytes int64
	// CPURatio and MemoryRatio multiply what is left: 2.0 promises each CPU twice.
	CPURatio    float64
	MemoryRatio float64
	// StorageHighWater is the share of a storage that may be filled.
	StorageHighWater float64
	// StorageThinFactor is the share of a promised disk that counts on storages
	// that allocate on write, until Proxmox reports its use.
	StorageThinFactor float64
	// PriceFactor multiplies the price of VMs on the Host: above one for a Host
	// that costs more to run, below for one to fill first.
	PriceFactor float64
	// Topology as the operator describes it; Proxmox's API does not tell.
	Topology Topology
}

// Topology is how a Host's CPUs and memory hang together. Zero = not given.
type Topology struct {
	Sockets      int
	Cores        int
	Threads      int
	UncoreCaches int
	// Siblings is how threads are numbered; SiblingsSpread where it is empty.
	Siblings string
	// Cells by NUMA id.
	Cells map[int]Cell
}

// Cell is a NUMA cell of a Host.
type Cell struct {
	CPUs        cpuset.CPUSet
	MemoryBytes int64
}

// allocatable is what VMs may take on a Host altogether.
func (s HostSettings) allocatable(row proxmox.HostRow) Amount {
	cpus := float64(max(0, row.CPUs-s.ReservedCPUs.Size())) * s.CPURatio
	memory := float64(max(0, row.MemoryBytes-s.ReservedMemoryBytes)) * s.MemoryRatio
	// A ratio such as 1.1 has no exact binary form: 1.1 x 10 must stay 11.
	return Amount{CPUs: int(math.Floor(cpus + 1e-9)), MemoryBytes: int64(memory)}
}

// promised weighs the bytes that Reservations ask of a storage.
func (s HostSettings) reservedBytes(row proxmox.StorageRow, bytes int64) int64 {
	switch row.Type {
	case "lvm", "iscsi", "iscsidirect": // the whole volume is allocated at once
		return bytes
	}
	return int64(float64(bytes) * s.StorageThinFactor)
}

// Settings hold HostSettings by region and Host pattern. The zero value gives
// every Host the defaults.
type Settings struct {
	rules []rule // least specific first
}

// rule is one entry of the file: what it sets for the Hosts that it matches.
type rule struct {
	region, host string
	apply        []func(*HostSettings)
}

// For gives the settings of a Host: the defaults, then every entry that matches,
// the more specific ones last, each setting only the fields that it names.
func (s Settings) For(region, host string) HostSettings {
	settings := HostSettings{
		ReservedMemoryBytes: DefaultReservedMemoryBytes,
		CPURatio:            DefaultCPURatio,
		MemoryRatio:         DefaultMemoryRatio,
		StorageHighWater:    DefaultStorageHighWater,
		StorageThinFactor:   DefaultStorageThinFactor,
		PriceFactor:         DefaultPriceFactor,
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

// matches takes shell patterns; they were checked when the file was read.
func matches(pattern, name string) bool {
	ok, err := path.Match(pattern, name)
	return err == nil && ok
}

// bySpecificity puts exact names last and, among patterns, those with more fixed
// characters later; the region decides first.
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
