// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"fmt"
	"slices"
	"strings"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/observed"
)

// imagesContent is the content type that a storage needs to hold VM disks.
const imagesContent = "images"

// Zone is a Host of a Cluster. The Host's name alone is not unique across regions.
type Zone struct{ Region, Host string }

func (z Zone) String() string { return z.Region + "/" + z.Host }

// Need is the capacity that a VM takes, and its constraints on the Host.
type Need struct {
	CPUs        int
	MemoryBytes int64
	// DiskBytes is the size of the boot disk on Storage. An empty Storage is not
	// checked.
	DiskBytes int64
	Storage   string
	// Disks are the storages that the disks may use; nil if the boot disk is the only disk
	// and is on Storage.
	Disks *Disks
	// Devices are the PCI devices that the VM gets exclusively. Inherited are the
	// mappings among them that its template already configures.
	Devices   []DeviceNeed
	Inherited []string
	// NodePool is the pool of the VM, Affinity the rule for all VMs of that pool.
	NodePool string
	Affinity v1alpha1.PoolAffinity
	// Layout is the NUMA and pinning layout of the VM, PinningSupport what the zone
	// provides for it.
	Layout         Layout
	PinningSupport PinningSupport
	// CloneQueue limits the wait for the clone; nil does not.
	CloneQueue *CloneQueue
	// KeepReserve makes the VM leave free what the largest Host of its region holds.
	KeepReserve bool
	// singleCell restricts the VM to one NUMA cell, allowedCells to the listed ones.
	singleCell   bool
	allowedCells []int
}

func (n Need) amount() observed.Amount {
	return observed.Amount{CPUs: n.CPUs, MemoryBytes: n.MemoryBytes}
}

// Fit reports whether a Host has the capacity for a VM now. If not, reason starts with
// the Host's name: "pve2: 4 CPUs free, 8 requested".
func Fit(view inventory.View, zone Zone, need Need) (ok bool, reason string) {
	s := newZoneState(view, zone, zoneOptions{need.Storage, need.Disks, need.Inherited, need.PinningSupport})
	if reason = s.unfitReasons(&need); reason != "" {
		return false, zone.Host + ": " + reason
	}
	return true, ""
}

// Fits is Fit without the reason. Without a reserve, it does not allocate.
func Fits(view inventory.View, zone Zone, need Need) bool {
	s := newZoneState(view, zone, zoneOptions{need.Storage, need.Disks, need.Inherited, need.PinningSupport})
	return s.check(&need, nil)
}

// zoneState is what a View contains about a zone, read once for any number of checks.
type zoneState struct {
	zoneOptions
	zone    Zone
	view    inventory.View
	host    inventory.HostState
	disk    inventory.StorageState
	hasDisk bool
	// available: the Host accepts new VMs.
	available bool
}

// zoneOptions are what a VM can use in a zone.
type zoneOptions struct {
	// storage of the boot disk, or disks with the alternatives.
	storage string
	disks   *Disks
	// inherited are the PCI mappings that the template in this zone configures.
	inherited []string
	pinning   PinningSupport
}

func newZoneState(view inventory.View, zone Zone, options zoneOptions) zoneState {
	s := zoneState{zoneOptions: options, zone: zone, view: view}
	s.host, _ = view.Host(zone.Region, zone.Host)
	s.available = s.host.IsAvailable(inventory.Launch)
	return s.withStorage(options.storage)
}

// withStorage returns the state for a VM with its boot disk on a storage.
func (s zoneState) withStorage(storage string) zoneState {
	s.storage, s.disk, s.hasDisk = storage, inventory.StorageState{}, false
	if storage != "" {
		s.disk, s.hasDisk = s.view.Storage(s.zone.Region, s.zone.Host, storage)
	}
	return s
}

// unfitReasons returns why the VM does not fit; empty when it fits.
func (s zoneState) unfitReasons(need *Need) string {
	var reasons []string
	s.check(need, func(format string, args ...any) {
		reasons = append(reasons, fmt.Sprintf(format, args...))
	})
	return strings.Join(reasons, "; ")
}

// reasonFunc receives a reason why a VM does not fit. It is nil when only the result
// matters.
type reasonFunc func(format string, args ...any)

// check is the fit check behind Fit, Fits and Choose.
func (s *zoneState) check(need *Need, addReason reasonFunc) bool {
	if !s.available {
		if addReason != nil {
			addReason("%s", s.host.Obstacle(inventory.Launch).Message)
		}
		return false
	}
	// The cheapest checks that fail most often come first. Iterating over a list of
	// functions would make every check allocate.
	fits := checkCPUs(s, need, addReason)
	fits = checkMemory(s, need, addReason) && fits
	if !fits && addReason == nil {
		return false
	}
	fits = checkDevices(s, need, addReason) && fits
	fits = checkAffinity(s, need, addReason) && fits
	fits = checkCells(s, need, addReason) && fits
	fits = checkDisks(s, need, addReason) && fits
	// The reserve is the most expensive check, and no reason if the VM does not fit anyway.
	return fits && checkReserve(s, need, addReason)
}

func checkCPUs(s *zoneState, need *Need, addReason reasonFunc) bool {
	switch {
	case need.CPUs > s.host.Size.CPUs:
		// Regardless of the CPU ratio: Proxmox does not start a VM with more vCPUs than
		// the Host has CPUs.
		if addReason != nil {
			addReason("%d CPUs in total, %d requested", s.host.Size.CPUs, need.CPUs)
		}
		return false
	case need.CPUs > s.host.Free.CPUs:
		if addReason != nil {
			addReason("%d CPUs free, %d requested", max(0, s.host.Free.CPUs), need.CPUs)
		}
		return false
	}
	return true
}

func checkMemory(s *zoneState, need *Need, addReason reasonFunc) bool {
	switch {
	case need.MemoryBytes > s.host.Size.MemoryBytes:
		if addReason != nil {
			addReason("%s memory in total, %s requested", gib(s.host.Size.MemoryBytes), gib(need.MemoryBytes))
		}
		return false
	case need.MemoryBytes > s.host.Free.MemoryBytes:
		if addReason != nil {
			addReason("%s memory free, %s requested", gib(s.host.Free.MemoryBytes), gib(need.MemoryBytes))
		}
		return false
	}
	return true
}

// AllowsAffinity reports whether a Host may have a VM of the NodePool next to the VMs that the
// NodePool has.
func AllowsAffinity(view inventory.View, zone Zone, affinity v1alpha1.PoolAffinity, nodePool string) bool {
	switch affinity {
	case v1alpha1.PoolAffinitySeparateHosts:
		return view.NodePoolVMs(zone.Region, zone.Host, nodePool) == 0
	case v1alpha1.PoolAffinitySameHost, v1alpha1.PoolAffinitySameCell:
		return view.OtherNodePoolHost(zone.Region, zone.Host, nodePool) == ""
	}
	return true
}

func checkAffinity(s *zoneState, need *Need, addReason reasonFunc) bool {
	switch {
	case AllowsAffinity(s.view, s.zone, need.Affinity, need.NodePool):
		return true
	case addReason == nil:
	case need.Affinity == v1alpha1.PoolAffinitySeparateHosts:
		addReason("has a VM of NodePool %s, whose VMs are kept on separate hosts", need.NodePool)
	default:
		addReason("the VMs of NodePool %s are kept on %s", need.NodePool, s.view.OtherNodePoolHost(s.zone.Region, s.zone.Host, need.NodePool))
	}
	return false
}

func checkStorage(s *zoneState, need *Need, addReason reasonFunc) bool {
	switch {
	case s.storage == "":
		return true
	case !s.hasDisk:
		if addReason != nil {
			addReason("no storage %s, or the token lacks Datastore.Audit on /storage/%s", s.storage, s.storage)
		}
	case !s.disk.Available:
		if addReason != nil {
			addReason("storage %s is not active", s.storage)
		}
	case !slices.Contains(s.disk.Content, imagesContent):
		if addReason != nil {
			addReason("storage %s does not accept VM disks (content type images)", s.storage)
		}
	case need.DiskBytes > s.disk.FreeBytes:
		if addReason != nil {
			addReason("%s free on storage %s, %s requested", gib(s.disk.FreeBytes), s.storage, gib(need.DiskBytes))
		}
	default:
		return true
	}
	return false
}

// gib formats bytes as GiB. A negative amount of free bytes counts as zero.
func gib(bytes int64) string {
	return fmt.Sprintf("%.1f GiB", float64(max(0, bytes))/(1<<30))
}
