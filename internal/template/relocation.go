// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package template

import (
	"slices"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
)

// Relocation is a Template on a shared storage whose Host is offline. It is built again on
// another Host with this storage, because Proxmox clones a Template only through its own Host.
type Relocation struct {
	Offline Existing
	// To is where it is built.
	To Location
}

// Relocations returns the Templates on offline Hosts that are built again on other Hosts.
func Relocations(view inventory.View, desired Desired, existing []Existing) []Relocation {
	var out []Relocation
	for _, location := range Locations(view, desired, existing) {
		exists := location.hasTemplate(desired, existing)
		if exists || !location.Shared || location.Blocker() != "" || desired.isUnread() {
			continue
		}
		n := slices.IndexFunc(existing, func(e Existing) bool {
			return e.Region == location.Region && desired.matches(e.Mark) && storageOf(e) == location.Storage && !view.Snapshots[e.Region].IsOnline(e.Host)
		})
		if n >= 0 {
			out = append(out, Relocation{Offline: existing[n], To: location})
		}
	}
	return out
}
