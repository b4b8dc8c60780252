// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"fmt"
	"slices"
	"strings"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
)

// imagesContent is the content type that a storage needs for VM disks.
const imagesContent = "images"

// Zone is a Host of a Cluster. The Host's name alone is not unique.
type Zone struct{ Region, Host string }

func (z Zone) String() string { return z.Region + "/" + z.Host }

// Need is what a VM takes.
type Need struct {
	CPUs        int
	MemoryBytes int64
	// DiskBytes on Storage; an empty Storage is not checked.
	DiskBytes int64
	Storage   string
}

func (n Need) amount() inventory.Amount {
	return inventory.Amount{CPUs: n.CPUs, MemoryBytes: n.MemoryBytes}
}

// Fit tells whether a Host can take a VM now, and if not, why, in words that
// begin with the Host's name: "pve2: 4 CPUs free, 8 wanted".
func Fit(view inventory.View, zone Zone, need Need) (ok bool, reason string) {
	if reason = explain(view, zone, need); reason != "" {
		return false, zone.Host + ": " + reason
	}
	return true, ""
}

// Fits is Fit without the words. It allocates nothing.
func Fits(view inventory.View, zone Zone, need Need) bool {
	return check(view, zone, need, nil)
}

// explain gives the reasons against a Host; empty when it fits.
func explain(view inventory.View, zone Zone, need Need) string {
	var reasons []string
	check(view, zone, need, func(format string, args ...any) {
		reasons = append(reasons, fmt.Sprintf(format, args...))
	})
	return strings.Join(reasons, "; ")
}

// report takes a reason; nil when only the verdict is wanted.
type report func(format string, args ...any)

// check is the one fit check.
func check(view inventory.View, zone Zone, need Need, why report) bool {
	host, known := view.Host(zone.Region, zone.Host)
	if !known || host.Unusable != "" {
		if why != nil {
			_, reason := view.Usable(zone.Region, zone.Host)
			why("%s", reason)
		}
		return false
	}
	cpus := checkCPUs(host, need, why)
	if !cpus && why == nil {
		return false
	}
	memory := checkMemory(host, need, why)
	if !memory && why == nil {
		return false
	}
	return checkStorage(view, zone, need, why) && cpus && memory
}

func checkCPUs(host inventory.HostState, need Need, why report) bool {
	switch {
	case need.CPUs > host.Size.CPUs:
		// Whatever the ratio: Proxmox starts no VM with more vCPUs than its Host has.
		if why != nil {
			why("%d CPUs in all, %d wanted", host.Size.CPUs, need.CPUs)
		}
		return false
	case need.CPUs > host.Free.CPUs:
		if why != nil {
			why("%d CPUs free, %d wanted", max(0, host.Free.CPUs), need.CPUs)
		}
		return false
	}
	return true
}

func checkMemory(host inventory.HostState, need Need, why report) bool {
	switch {
	case need.MemoryBytes > host.Size.MemoryBytes:
		if why != nil {
			why("%s memory in all, %s wanted", gib(host.Size.MemoryBytes), gib(need.MemoryBytes))
		}
		return false
	case need.MemoryBytes > host.Free.MemoryBytes:
		if why != nil {
			why("%s memory free, %s wanted", gib(host.Free.MemoryBytes), gib(need.MemoryBytes))
		}
		return false
	}
	return true
}

func checkStorage(view inventory.View, zone Zone, need Need, why report) bool {
	if need.Storage == "" {
		return true
	}
	storage, ok := view.Storage(zone.Region, zone.Host, need.Storage)
	switch {
	case !ok:
		if why != nil {
			why("no storage %s, or the token lacks Datastore.Audit on /storage/%s", need.Storage, need.Storage)
		}
	case !storage.Available:
		if why != nil {
			why("storage %s is not active", need.Storage)
		}
	case !slices.Contains(storage.Content, imagesContent):
		if why != nil {
			why("storage %s does not take VM disks (content type images)", need.Storage)
		}
	case need.DiskBytes > storage.FreeBytes:
		if why != nil {
			why("%s free on storage %s, %s wanted", gib(storage.FreeBytes), need.Storage, gib(need.DiskBytes))
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
