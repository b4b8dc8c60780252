// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package instancetype

import (
	"fmt"
	"maps"
	"math"
	"time"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/backoff"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/placement"
)

// An offering that becomes unavailable is reported immediately: a launch there would
// fail. One that becomes available again is also reported immediately, unless it flaps:
// each change makes Karpenter plan again, and the planned offering is unavailable again
// before the launch.
const (
	// flapWindow is how long a loss counts.
	flapWindow = 5 * time.Minute
	// flapLimit is how many losses within the window are reported without backoff.
	flapLimit = 2
)

// flapBackoff is how long an offering stays unavailable after the next losses.
var flapBackoff = backoff.Exponential{Initial: 30 * time.Second, Max: 5 * time.Minute}

// offeringKey identifies an offering of a list.
type offeringKey struct {
	zone         placement.Zone
	instanceType string
}

// lossHistory records how often an offering became unavailable.
type lossHistory struct {
	count int
	last  time.Time
}

// availableAt returns when an offering that fits again is offered again.
func (f lossHistory) availableAt() time.Time {
	if f.count <= flapLimit {
		return f.last
	}
	return f.last.Add(flapBackoff.Delay(f.count - flapLimit - 1))
}

// reason returns why an offering that fits is unavailable; empty if it is available.
func (f lossHistory) reason(now time.Time) string {
	if !f.availableAt().After(now) {
		return ""
	}
	return fmt.Sprintf("became unavailable %d times within %s, offered again at %s", f.count, flapWindow, f.availableAt().UTC().Format(time.RFC3339))
}

// flapDamper delays the return of flapping offerings of a list. Its state is carried
// over from one list to the next.
type flapDamper struct {
	losses map[offeringKey]lossHistory
	// next is when the first delayed offering becomes available, in Unix nanoseconds.
	next int64
}

// carryOver returns a copy without expired losses.
func (f flapDamper) carryOver(now time.Time) flapDamper {
	known := maps.Clone(f.losses)
	maps.DeleteFunc(known, func(_ offeringKey, one lossHistory) bool {
		return now.Sub(one.last) > flapWindow && !one.availableAt().After(now)
	})
	return flapDamper{losses: known, next: math.MaxInt64}
}

// isOwnFill reports whether an offering became unavailable because the ledger reserved
// something in its region since the list before: a VM of ours took the capacity, and
// neither the Host nor a failed launch is the cause. That is not flapping.
func (p *Provider) isOwnFill(view inventory.View, before *list, params offeringParams, z zone, instanceType string) bool {
	if !view.LastReserved(z.Region).After(before.lastReserved[z.Region]) || z.blockedReason() != "" {
		return false
	}
	usable, _ := view.Usable(z.Region, z.Host)
	_, failed := p.unavailable.find(OfferingSelector{z.Zone, instanceType, params.nodeClass})
	return usable && !failed
}

// isAvailable records the change of an offering and reports whether it is available.
func (f *flapDamper) isAvailable(key offeringKey, was, fits bool, now time.Time) bool {
	switch {
	case was && !fits:
		one := f.losses[key]
		if now.Sub(one.last) > flapWindow {
			one.count = 0
		}
		if f.losses == nil {
			f.losses = map[offeringKey]lossHistory{}
		}
		f.losses[key] = lossHistory{count: one.count + 1, last: now}
	case fits && !was:
		if until := f.losses[key].availableAt(); until.After(now) {
			f.next = min(f.next, until.UnixNano())
			return false
		}
	}
	return fits
}
