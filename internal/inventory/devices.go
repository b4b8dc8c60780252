// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"slices"
	"strings"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// deviceBook counts the PCI devices of one Host that mappings name.
type deviceBook struct {
	// paths by mapping.
	paths map[string][]string
	// claims counts the guests on a mapping: which of its devices each has, Proxmox
	// decides at their start and does not tell.
	claims map[string]int
	// taken are devices that guests have by address.
	taken []string
}

// deviceBooks sorts the mappings of a Cluster by Host. Mediated devices are left
// out: how many shares are left, nobody tells.
func deviceBooks(mappings []proxmox.PCIMapping) map[string]*deviceBook {
	books := map[string]*deviceBook{}
	for _, mapping := range mappings {
		if mapping.Mediated {
			continue
		}
		for _, device := range mapping.Devices {
			book := books[device.Host]
			if book == nil {
				book = &deviceBook{paths: map[string][]string{}, claims: map[string]int{}}
				books[device.Host] = book
			}
			book.paths[mapping.ID] = append(book.paths[mapping.ID], device.Path)
		}
	}
	return books
}

// add counts what a guest has.
func (b *deviceBook) add(devices []proxmox.HostPCI) {
	for _, device := range devices {
		if device.Mapping != "" {
			b.claims[device.Mapping]++
			continue
		}
		b.taken = append(b.taken, device.Paths...)
	}
}

// free counts for each mapping the devices that are left for certain. A device
// that two mappings name may be behind a claim on either of them, so such a claim
// counts for both.
func (b *deviceBook) free() map[string]int {
	free := make(map[string]int, len(b.paths))
	for mapping, paths := range b.paths {
		n := 0
		for _, path := range paths {
			if !slices.ContainsFunc(b.taken, func(taken string) bool { return overlap(path, taken) }) {
				n++
			}
		}
		for other, claims := range b.claims {
			if other == mapping || shareDevice(paths, b.paths[other]) {
				n -= claims
			}
		}
		free[mapping] = max(0, n)
	}
	return free
}

func shareDevice(a, b []string) bool {
	return slices.ContainsFunc(a, func(path string) bool {
		return slices.ContainsFunc(b, func(other string) bool { return overlap(path, other) })
	})
}

// overlap tells whether two addresses name the same device: "0000:01:00" is all
// functions of it, and ";" joins several.
func overlap(a, b string) bool {
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
func (g Guest) holdsDevices() []proxmox.HostPCI {
	if g.Config == nil || g.Allocated == (Amount{}) {
		return nil
	}
	return g.Config.HostDevices().PCI()
}

// countDevices fills in what is left of every Host's devices.
func (x *index) countDevices(v View) {
	for region, snapshot := range v.Snapshots {
		if len(snapshot.Mappings) == 0 {
			continue
		}
		books := deviceBooks(snapshot.Mappings)
		for _, guest := range snapshot.Guests {
			if book := books[guest.Host]; book != nil {
				book.add(guest.holdsDevices())
			}
		}
		for _, r := range v.Reservations {
			if book := books[r.Host]; r.Region == region && book != nil && len(r.Devices) > 0 {
				book.promise(r, snapshot)
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
func (b *deviceBook) promise(r Reservation, snapshot *Snapshot) {
	if guest, ok := snapshot.guest(r.VMID); ok && len(guest.holdsDevices()) >= len(r.Devices) {
		return
	}
	for _, mapping := range r.Devices {
		b.claims[mapping]++
	}
}
