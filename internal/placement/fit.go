// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"fmt"
	"slices"
	"strings"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
)

// imagesContent is the content type that a storage needs for VM disks.
const imagesContent = "images"

// Zone is a Host of a Cluster. The Host's name alone is not unique.
type Zone struct{ Region, Host string }

func (z Zone) String() string { return z.Region + "/" + z.Host }

// Need is what a VM takes, and what it wants of its Host beside that.
type Need struct {
	CPUs        int
	MemoryBytes int64
	// DiskBytes on Storage; an empty Storage is not checked.
	DiskBytes int64
	Storage   string
	// Devices of the Host that the VM gets to itself, among them the Inherited:
	// mappings that its template passes on.
	Devices   []DeviceNeed
	Inherited []string
	// NodePool that the VM belongs to, and the rule about all of its VMs.
	NodePool string
	Affinity v1alpha1.PoolAffinity
	// Layout on the Host, and what there is there to get it.
	Layout         Layout
	PinningSupport PinningSupport
	// single keeps the VM in one cell, only names those that it may be in.
	single bool
	only   []int
}

func (n Need) amount() inventory.Amount {
	return inventory.Amount{CPUs: n.CPUs, MemoryBytes: n.MemoryBytes}
}

// Fit tells whether a Host can take a VM now, and if not, why, in words that
// begin with the Host's name: "pve2: 4 CPUs free, 8 wanted".
func Fit(view inventory.View, zone Zone, need Need) (ok bool, reason string) {
	s := siteFor(view, zone, &need)
	if reason = s.explain(&need); reason != "" {
		return false, zone.Host + ": " + reason
	}
	return true, ""
}

// Fits is Fit without the words. It allocates nothing.
func Fits(view inventory.View, zone Zone, need Need) bool {
	s := siteFor(view, zone, &need)
	return s.check(&need, nil)
}

// site is a zone with what the view knows about it, looked up once for any number
// of checks.
type site struct {
	zone    Zone
	view    inventory.View
	host    inventory.HostState
	known   bool
	storage string
	disk    inventory.StorageState
	hasDisk bool
	// inherited devices of VMs there.
	inherited []string
	means     PinningSupport
}

// siteFor is the site of a Need that is complete by itself.
func siteFor(view inventory.View, zone Zone, need *Need) site {
	s := siteOf(view, zone, need.Storage, need.Inherited)
	s.means = need.PinningSupport
	return s
}

func siteOf(view inventory.View, zone Zone, storage string, inherited []string) site {
	s := site{zone: zone, view: view, storage: storage, inherited: inherited}
	s.host, s.known = view.Host(zone.Region, zone.Host)
	if storage != "" {
		s.disk, s.hasDisk = view.Storage(zone.Region, zone.Host, storage)
	}
	return s
}

// explain gives the reasons against a Host; empty when it fits.
func (s site) explain(need *Need) string {
	var reasons []string
	s.check(need, func(format string, args ...any) {
		reasons = append(reasons, fmt.Sprintf(format, args...))
	})
	return strings.Join(reasons, "; ")
}

// report takes a reason; nil when only the verdict is wanted.
type report func(format string, args ...any)

// check is the one fit check.
func (s *site) check(need *Need, why report) bool {
	if !s.known || s.host.Unusable != "" {
		if why != nil {
			_, reason := s.view.Usable(s.zone.Region, s.zone.Host)
			why("%s", reason)
		}
		return false
	}
	// Those that cost least, and fail most, come first. A list of functions would
	// be shorter, and let every check allocate.
	fits := checkCPUs(s, need, why)
	fits = checkMemory(s, need, why) && fits
	if !fits && why == nil {
		return false
	}
	fits = checkDevices(s, need, why) && fits
	fits = checkAffinity(s, need, why) && fits
	fits = checkCells(s, need, why) && fits
	return checkStorage(s, need, why) && fits
}

func checkCPUs(s *site, need *Need, why report) bool {
	switch {
	case need.CPUs > s.host.Size.CPUs:
		// Whatever the ratio: Proxmox starts no VM with more vCPUs than its Host has.
		if why != nil {
			why("%d CPUs in all, %d wanted", s.host.Size.CPUs, need.CPUs)
		}
		return false
	case need.CPUs > s.host.Free.CPUs:
		if why != nil {
			why("%d CPUs free, %d wanted", max(0, s.host.Free.CPUs), need.CPUs)
		}
		return false
	}
	return true
}

func checkMemory(s *site, need *Need, why report) bool {
	switch {
	case need.MemoryBytes > s.host.Size.MemoryBytes:
		if why != nil {
			why("%s memory in all, %s wanted", gib(s.host.Size.MemoryBytes), gib(need.MemoryBytes))
		}
		return false
	case need.MemoryBytes > s.host.Free.MemoryBytes:
		if why != nil {
			why("%s memory free, %s wanted", gib(s.host.Free.MemoryBytes), gib(need.MemoryBytes))
		}
		return false
	}
	return true
}

// checkAffinity holds the VM against the others of its NodePool.
func checkAffinity(s *site, need *Need, why report) bool {
	switch need.Affinity {
	case v1alpha1.PoolAffinitySeparateHosts:
		if s.view.NodePoolVMs(s.zone.Region, s.zone.Host, need.NodePool) == 0 {
			return true
		}
		if why != nil {
			why("has a VM of NodePool %s, whose VMs are kept on separate Hosts", need.NodePool)
		}
	case v1alpha1.PoolAffinitySameHost, v1alpha1.PoolAffinitySameCell:
		other := s.view.OtherNodePoolHost(s.zone.Region, s.zone.Host, need.NodePool)
		if other == "" {
			return true
		}
		if why != nil {
			why("the VMs of NodePool %s are kept on %s", need.NodePool, other)
		}
	default:
		return true
	}
	return false
}

func checkStorage(s *site, need *Need, why report) bool {
	switch {
	case s.storage == "":
		return true
	case !s.hasDisk:
		if why != nil {
			why("no storage %s, or the token lacks Datastore.Audit on /storage/%s", s.storage, s.storage)
		}
	case !s.disk.Available:
		if why != nil {
			why("storage %s is not active", s.storage)
		}
	case !slices.Contains(s.disk.Content, imagesContent):
		if why != nil {
			why("storage %s does not take VM disks (content type images)", s.storage)
		}
	case need.DiskBytes > s.disk.FreeBytes:
		if why != nil {
			why("%s free on storage %s, %s wanted", gib(s.disk.FreeBytes), s.storage, gib(need.DiskBytes))
		}
	default:
		return true
	}
	return false
}

// gib writes bytes for people; what is below zero is nothing free.
func gib(bytes int64) string {
	return fmt.Sprintf("%.1f GiB", float64(max(0, bytes))/(1<<30))
}
