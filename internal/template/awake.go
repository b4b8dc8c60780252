// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package template

import (
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/observed"
)

// maxFailuresAwake is after how many failures a Host may sleep without its Template.
const maxFailuresAwake = 10

// HostsToKeepAwake returns the Hosts that must not sleep: the Template of a ProxmoxTemplate can be
// built there, or those of a deleted one can be deleted. A Host that is asleep is returned until
// it was awake once for this generation: only then is it known what prevents the build. inUse
// returns why a Template is still needed.
func (p *Provider) HostsToKeepAwake(desired Desired, inUse func(region string, vmid int) string) []observed.HostName {
	r := p.rollout(desired)
	var hosts []observed.HostName
	add := func(region, host string, possible func(asleep bool) bool) {
		key := HostKey{UID: desired.UID, Region: region, Host: host}
		state, _ := r.View.Host(region, host)
		asleep := state.Sleep != ""
		tried := p.wasAwake(key, desired.generation(), asleep)
		if possible(asleep) && !(asleep && tried) && p.tracker.failuresFor(key, desired.generation()) < maxFailuresAwake {
			hosts = append(hosts, observed.HostName{Region: region, Host: host})
		}
	}
	switch {
	case desired.Deleted:
		for _, e := range r.Existing {
			add(e.Region, e.Host, func(bool) bool { return !e.Config.Protected() && inUse(e.Region, e.VMID) == "" })
		}
	case !desired.isUnread():
		for _, l := range r.Locations {
			if r.isReady(l) {
				continue
			}
			add(l.Region, l.Host, func(asleep bool) bool {
				return !asleep && l.Blocker() == "" || asleep && l.Storage != "" && l.Images != ""
			})
		}
	}
	return hosts
}

// wasAwake records whether a Host without the Template of a generation is awake, and reports whether it was
// so for this generation.
func (p *Provider) wasAwake(key HostKey, g generation, asleep bool) bool {
	known := p.tracker.get(key).awake == g
	if !asleep && !known {
		p.tracker.update(key, func(s *hostState) { s.awake = g })
	}
	return known || !asleep
}
