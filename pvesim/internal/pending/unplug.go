// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package pending

import (
	"slices"
	"time"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/kernel"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/qm"
)

// UnplugTimeout is how long Proxmox waits for a guest to release a device.
const UnplugTimeout = 6400 * time.Millisecond

// StuckNICs returns the NICs of a running VM whose pending changes need an unplug, which the guest ignores. The caller
// holds the mutex.
func StuckNICs(g *kernel.Guest) (keys []string) {
	for _, key := range qm.NetKeys(g.Config.Options) {
		_, changed := g.Config.Pending[key]
		remove := g.Config.Deleted[key]
		if (changed || remove) && hasNetworkHotPlug(g) && isStuck(g, key, remove) {
			keys = append(keys, key)
		}
	}
	return keys
}

// isStuck reports whether a change needs to unplug a NIC from a guest that ignores ACPI. Bridge, VLAN and firewall
// change without an unplug.
func isStuck(g *kernel.Guest, key string, remove bool) bool {
	before, exists := g.Config.Options[key]
	if !exists || !g.IsRunning() || g.Instance == nil || g.Instance.HandlesACPI() {
		return false
	}
	old, changed := qm.ParseNet(before), qm.ParseNet(g.Config.Pending[key])
	return remove || !slices.Equal([]string{old.Model, old.MAC, old.Opts["queues"]}, []string{changed.Model, changed.MAC, changed.Opts["queues"]})
}
