// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// NoFitError reports for each Host why no option fits.
type NoFitError struct {
	// InstanceType is the cheapest option. The other options need at least as much.
	InstanceType string
	// Hosts are sorted by region and name.
	Hosts []HostReason
	// NoOptionsReason is why the request had no options.
	NoOptionsReason string
}

// HostReason is the reason why a Host was not chosen.
type HostReason struct {
	Zone   Zone
	Reason string
}

// Error implements error. It groups Hosts with the same reason.
func (e *NoFitError) Error() string {
	if len(e.Hosts) == 0 {
		if e.NoOptionsReason == "" {
			return "no host is allowed for this NodeClaim"
		}
		return "no host is allowed for this NodeClaim: " + e.NoOptionsReason
	}
	regions := map[string]bool{}
	for _, h := range e.Hosts {
		regions[h.Zone.Region] = true
	}
	var order []string
	names := map[string][]string{}
	for _, h := range e.Hosts {
		name := h.Zone.Host
		if len(regions) > 1 {
			name = h.Zone.String()
		}
		if names[h.Reason] == nil {
			order = append(order, h.Reason)
		}
		names[h.Reason] = append(names[h.Reason], name)
	}
	var text strings.Builder
	text.WriteString("no host fits")
	if e.InstanceType != "" {
		text.WriteString(" " + e.InstanceType + ", the cheapest allowed instance type")
	}
	for n, reason := range order {
		separator := " | "
		if n == 0 {
			separator = ": "
		}
		fmt.Fprintf(&text, "%s%s: %s", separator, strings.Join(names[reason], ", "), reason)
	}
	return text.String()
}

// newNoFitError explains each zone by the cheapest option that may use it.
func newNoFitError(zones *zoneCache) *NoFitError {
	request := zones.request
	e := &NoFitError{NoOptionsReason: request.NoOptionsReason}
	if len(request.Options) > 0 {
		e.InstanceType = request.Options[0].InstanceType
	}
	seen := map[Zone]bool{}
	var last []Zone
	for n := range request.Options {
		option := &request.Options[n]
		if n > 0 && sameZones(option.Zones, last) {
			continue
		}
		last = option.Zones
		need := request.completeNeed(option)
		for _, s := range zones.statesFor(option) {
			if seen[s.zone] {
				continue
			}
			seen[s.zone] = true
			e.Hosts = append(e.Hosts, HostReason{Zone: s.zone, Reason: s.unfitReasons(&need)})
		}
	}
	for zone, reason := range request.Excluded {
		if !seen[zone] {
			e.Hosts = append(e.Hosts, HostReason{Zone: zone, Reason: reason})
		}
	}
	slices.SortFunc(e.Hosts, func(a, b HostReason) int {
		return cmp.Or(cmp.Compare(a.Zone.Region, b.Zone.Region), cmp.Compare(a.Zone.Host, b.Zone.Host))
	})
	return e
}
