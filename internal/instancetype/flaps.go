// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package instancetype

import (
	"fmt"
	"maps"
	"math"
	"time"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/placement"
)

// An offering that is lost counts at once: a launch there would fail. One that
// comes back counts at once as well, unless it comes and goes: each change makes
// Karpenter plan anew, and what it plans is gone before it is launched.
const (
	// flapWindow is how long a loss is remembered.
	flapWindow = 5 * time.Minute
	// flapLimit is how often an offering may be lost in that time and still come
	// back at once.
	flapLimit = 2
	// flapHold is how long it stays away after one loss more, doubled with each
	// further one up to flapMaxHold.
	flapHold    = 30 * time.Second
	flapMaxHold = 5 * time.Minute
)

// flapKey is an offering of one list.
type flapKey struct {
	zone         placement.Zone
	instanceType string
}

// flap is what is remembered of an offering that was lost.
type flap struct {
	losses int
	last   time.Time
}

// until is when an offering that fits again is offered again.
func (f flap) until() time.Time {
	if f.losses <= flapLimit {
		return f.last
	}
	return f.last.Add(min(flapHold<<min(f.losses-flapLimit-1, 10), flapMaxHold))
}

// reason tells why an offering that fits is held back; empty when it is not.
func (f flap) reason(now time.Time) string {
	if !f.until().After(now) {
		return ""
	}
	return fmt.Sprintf("was lost %d times within %s, offered again at %s", f.losses, flapWindow, f.until().UTC().Format(time.RFC3339))
}

// flaps are those of a list. They pass on from one list to the next.
type flaps struct {
	known map[flapKey]flap
	// next is when the first offering that is held back comes back, Unix nanoseconds.
	next int64
}

// passOn copies what is young enough to matter.
func (f flaps) passOn(now time.Time) flaps {
	known := maps.Clone(f.known)
	maps.DeleteFunc(known, func(_ flapKey, one flap) bool {
		return now.Sub(one.last) > flapWindow && !one.until().After(now)
	})
	return flaps{known: known, next: math.MaxInt64}
}

// judge turns whether an offering fits into whether it is offered.
func (f *flaps) judge(key flapKey, was, fits bool, now time.Time) bool {
	switch {
	case was && !fits:
		one := f.known[key]
		if now.Sub(one.last) > flapWindow {
			one.losses = 0
		}
		if f.known == nil {
			f.known = map[flapKey]flap{}
		}
		f.known[key] = flap{losses: one.losses + 1, last: now}
	case fits && !was:
		if until := f.known[key].until(); until.After(now) {
			f.next = min(f.next, until.UnixNano())
			return false
		}
	}
	return fits
}
