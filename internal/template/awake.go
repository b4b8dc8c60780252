// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package template

import (
	"maps"
	"slices"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
)

// HostsToKeepAwake returns the Hosts that must not sleep: the Template of a ProxmoxTemplate can be
// built there, or Templates of a deleted one still exist. A Host that is asleep is returned until
// it was awake once for this generation: only then is it known what prevents the build.
func (p *Provider) HostsToKeepAwake(desired Desired) []inventory.HostName {
	view := p.inventory.View()
	owned := ListOwned(view, p.kubeCluster, desired.UID)
	hosts := map[inventory.HostName]bool{}
	for _, e := range owned {
		if desired.Deleted {
			hosts[inventory.HostName{Region: e.Region, Host: e.Host}] = true
		}
	}
	if desired.Deleted || desired.isUnread() {
		return slices.Collect(maps.Keys(hosts))
	}
	for _, location := range Locations(view, desired, owned) {
		if slices.ContainsFunc(owned, func(e Existing) bool { return location.matches(desired, e) }) {
			continue
		}
		key := HostKey{UID: desired.UID, Region: location.Region, Host: location.Host}
		asleep := isAsleep(view, location)
		if tried := p.tracker.recordAwake(key, desired.Hash, !asleep); asleep && !tried || !asleep && location.Blocker() == "" {
			hosts[inventory.HostName{Region: location.Region, Host: location.Host}] = true
		}
	}
	return slices.Collect(maps.Keys(hosts))
}

// isAsleep reports whether the Host of a Location was shut down to save energy.
func isAsleep(view inventory.View, location Location) bool {
	state, _ := view.Host(location.Region, location.Host)
	return state.Sleep != ""
}

// recordAwake records that a Host without the Template of a generation is awake, and returns
// whether it was so for this generation.
func (t *tracker) recordAwake(key HostKey, hash string, awake bool) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if awake {
		t.awake[key] = hash
	}
	return t.awake[key] == hash
}
