// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"slices"
	"strings"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/observed"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// deviceUsage counts the mapped PCI devices of one Host.
type deviceUsage struct {
	// paths are the device paths by mapping.
	paths map[string][]string
	// mapped counts the guests by mapping. Proxmox chooses a guest's device when it starts
	// and does not report the choice.
	mapped map[string]int
	// assigned are the paths of devices that guests use without a mapping.
	assigned []string
}

// deviceUsageByHost returns an empty deviceUsage for each Host with mapped devices. It
// omits mediated devices, because Proxmox does not report how many of their instances are
// free.
func deviceUsageByHost(mappings []proxmox.PCIMapping) map[string]*deviceUsage {
	usages := map[string]*deviceUsage{}
	for _, mapping := range mappings {
		if mapping.Mediated {
			continue
		}
		for _, device := range mapping.Devices {
			usage := usages[device.Host]
			if usage == nil {
				usage = &deviceUsage{paths: map[string][]string{}, mapped: map[string]int{}}
				usages[device.Host] = usage
			}
			usage.paths[mapping.ID] = append(usage.paths[mapping.ID], device.Path)
		}
	}
	return usages
}

// addGuest counts the devices of a guest.
func (u *deviceUsage) addGuest(devices []proxmox.HostPCI) {
	for _, device := range devices {
		if device.Mapping != "" {
			u.mapped[device.Mapping]++
			continue
		}
		u.assigned = append(u.assigned, device.Paths...)
	}
}

// free returns the number of devices by mapping that are certainly free. If two mappings
// contain the same device, a guest on either mapping may use it and counts for both.
func (u *deviceUsage) free() map[string]int {
	free := make(map[string]int, len(u.paths))
	for mapping, paths := range u.paths {
		n := 0
		for _, path := range paths {
			if !slices.ContainsFunc(u.assigned, func(used string) bool { return namesSameDevice(path, used) }) {
				n++
			}
		}
		for other, guests := range u.mapped {
			if other == mapping || sharesDevice(paths, u.paths[other]) {
				n -= guests
			}
		}
		free[mapping] = max(0, n)
	}
	return free
}

func sharesDevice(a, b []string) bool {
	return slices.ContainsFunc(a, func(path string) bool {
		return slices.ContainsFunc(b, func(other string) bool { return namesSameDevice(path, other) })
	})
}

// namesSameDevice reports whether two addresses overlap. "0000:01:00" contains all
// functions of a device, and ";" joins several addresses.
func namesSameDevice(a, b string) bool {
	for x := range strings.SplitSeq(a, ";") {
		for y := range strings.SplitSeq(b, ";") {
			if x == y || strings.HasPrefix(x, y+".") || strings.HasPrefix(y, x+".") {
				return true
			}
		}
	}
	return false
}

// addDevices sets the free devices of every Host.
func (x *index) addDevices(v View) {
	for region, snapshot := range v.Snapshots {
		if len(snapshot.Mappings) == 0 {
			continue
		}
		usages := deviceUsageByHost(snapshot.Mappings)
		for _, guest := range snapshot.Guests {
			if usage := usages[guest.Host]; usage != nil {
				usage.addGuest(guest.HeldDevices())
			}
		}
		for _, r := range v.Reservations {
			if usage := usages[r.Host]; r.Region == region && usage != nil && len(r.Devices) > 0 {
				usage.addReservation(r, snapshot)
			}
		}
		for host, usage := range usages {
			if account, ok := x.hosts[region][host]; ok {
				account.state.FreeDevices = usage.free()
			}
		}
	}
}

// addReservation counts the devices of a Reservation until its VM has them.
func (u *deviceUsage) addReservation(r Reservation, snapshot *observed.Snapshot) {
	// A clone to another Host is listed on that of its template until it ends.
	if guest, ok := snapshot.Guest(r.VMID); ok && (r.Fulfilled || guest.Host == r.Host) && len(guest.HeldDevices()) >= len(r.Devices) {
		return
	}
	for _, mapping := range r.Devices {
		u.mapped[mapping]++
	}
}
