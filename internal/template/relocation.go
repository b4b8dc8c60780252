// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package template

import (
	"slices"
)

// Relocation is a Template on a shared storage whose Host is offline. It is built again on
// another Host with this storage, because Proxmox clones a Template only through its own Host.
type Relocation struct {
	Offline Existing
	// To is where it is built.
	To Location
}

// Relocations returns the Templates on offline Hosts that are built again on other Hosts.
func (r Rollout) Relocations() []Relocation {
	var out []Relocation
	for _, location := range r.Locations {
		if r.isReady(location) || !location.Shared || location.Blocker() != "" || r.Desired.isUnread() {
			continue
		}
		n := slices.IndexFunc(r.Existing, func(e Existing) bool {
			return e.Region == location.Region && r.Desired.matches(e.Mark) && storageOf(e) == location.Storage && !r.View.Snapshots[e.Region].IsOnline(e.Host)
		})
		if n >= 0 {
			out = append(out, Relocation{Offline: r.Existing[n], To: location})
		}
	}
	return out
}
