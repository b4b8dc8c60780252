// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"slices"
	"strings"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// deviceBook counts the PCI devices of one Host that mappings name.
type deviceUsage struct {
	// paths by mapping.
	paths map[string][]string
	// claims counts the guests on a mapping: which of its devices each has, Proxmox
	// decides at their start and does not tell.
	mapped map[string]int
	// taken are devices that guests have by address.
	assigned []string
}

// deviceBooks sorts the mappings of a Cluster by Host. Mediated devices are left
// out: how many shares are left, nobody tells.
func deviceUsageByHost(mappings []proxmox.PCIMapping) map[string]*deviceUsage {
	books := map[string]*deviceUsage{}
	for _, mapping := range mappings {
		if mapping.Mediated {
			continue
		}
		for _, device := range mapping.Devices {
			book := books[device.Host]
			if book == nil {
				book = &deviceUsage{paths: map[string][]string{}, mapped: map[string]int{}}
				books[device.Host] = book
			}
			book.paths[mapping.ID] = append(book.paths[mapping.ID], device.Path)
		}
	}
	return books
}

// add counts what a guest has.
func (b *deviceUsage) addGuest(devices []proxmox.HostPCI) {
	for _, device := range devices {
		if device.Mapping != "" {
			b.mapped[device.Mapping]++
			continue
		}
		b.assigned = append(b.assigned, device.Paths...)
	}
}

// free counts for each mapping the devices that are left for certain. A device
// that two mappings name may be behind a claim on either of them, so such a claim
// counts for both.
func (b *deviceUsage) free() map[string]int {
	free := make(map[string]int, len(b.paths))
	for mapping, paths := range b.paths {
		n := 0
		for _, path := range paths {
			if !slices.ContainsFunc(b.assigned, func(taken string) bool { return namesSameDevice(path, taken) }) {
				n++
			}
		}
		for other, claims := range b.mapped {
			if other == mapping || sharesDevice(paths, b.paths[other]) {
				n -= claims
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

// overlap tells whether two addresses name the same device: "0000:01:00" is all
// functions of it, and ";" joins several.
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

// holdsDevices lists what a guest keeps others from having. A guest that does not
// count has let go of its devices.
func (g Guest) heldDevices() []proxmox.HostPCI {
	if g.Config == nil || g.Allocated == (Amount{}) {
		return nil
	}
	return g.Config.HostPCIs()
}

// countDevices fills in what is left of every Host's devices.
func (x *index) addDevices(v View) {
	for region, snapshot := range v.Snapshots {
		if len(snapshot.Mappings) == 0 {
			continue
		}
		books := deviceUsageByHost(snapshot.Mappings)
		for _, guest := range snapshot.Guests {
			if book := books[guest.Host]; book != nil {
				book.addGuest(guest.heldDevices())
			}
		}
		for _, r := range v.Reservations {
			if book := books[r.Host]; r.Region == region && book != nil && len(r.Devices) > 0 {
				book.addReservation(r, snapshot)
			}
		}
		for host, book := range books {
			if account, ok := x.hosts[region][host]; ok {
				account.state.FreeDevices = book.free()
			}
		}
	}
}

// promise counts a Reservation's devices until its VM shows them.
func (b *deviceUsage) addReservation(r Reservation, snapshot *Snapshot) {
	if guest, ok := snapshot.guest(r.VMID); ok && len(guest.heldDevices()) >= len(r.Devices) {
		return
	}
	for _, mapping := range r.Devices {
		b.mapped[mapping]++
	}
}
