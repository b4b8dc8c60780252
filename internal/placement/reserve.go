// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"cmp"
	"slices"
	"strings"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
)

// checkReserve checks whether the guests of any one Host would still fit on the others. While
// a Host is unavailable, its VMs are launched elsewhere, which is what the reserve is for.
func checkReserve(s *zoneState, need *Need, addReason reasonFunc) bool {
	if !need.KeepReserve && !s.host.KeepsReserve {
		return true
	}
	failover := s.view.Failover(s.zone.Region, s.zone.Host)
	if len(failover.Unavailable) > 0 || failover.Tolerates(s.zone.Host, need.amount()) {
		return true
	}
	if addReason != nil {
		shortfall, _ := failover.ShortfallWith(s.zone.Host, need.amount())
		addReason("insufficient reserve: %s", shortfall)
	}
	return false
}

// CheckReserve reports whether any of the zones keeps a reserve, because keep is set or by the
// settings of its Host, and what violates it; empty if nothing does.
func CheckReserve(view inventory.View, zones []Zone, keep bool) (kept bool, violation string) {
	var violations []string
	checked := map[*inventory.Failover]bool{}
	zones = slices.SortedFunc(slices.Values(zones), func(a, b Zone) int { return cmp.Or(cmp.Compare(a.Region, b.Region), cmp.Compare(a.Host, b.Host)) })
	for _, zone := range zones {
		host, known := view.Host(zone.Region, zone.Host)
		failover := view.Failover(zone.Region, zone.Host)
		if !known || checked[failover] || (!keep && !host.KeepsReserve) {
			continue
		}
		checked[failover] = true
		shortfall, found := failover.Shortfall()
		if !found {
			continue
		}
		text := "region " + zone.Region + ": " + shortfall.String()
		if len(failover.Unavailable) > 0 {
			text += "; new VMs can use the reserve until these hosts are available: " + strings.Join(failover.Unavailable, ", ")
		}
		violations = append(violations, text)
	}
	return len(checked) > 0, strings.Join(violations, "; ")
}
