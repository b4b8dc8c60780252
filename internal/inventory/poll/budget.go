// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package poll

import (
	"sync"
	"time"
)

// ReadKind is a kind of background read with its desired interval.
type ReadKind struct {
	name  string
	every time.Duration
}

// Kinds of background reads by other packages.
var (
	// ReadBootDrives lists the boot drives on one storage.
	ReadBootDrives = ReadKind{"boot drives", 2 * time.Minute}
	// ReadClones lists the tasks of all Hosts, to find those that cloned a VM.
	ReadClones = ReadKind{"clones", 2 * time.Minute}
	// ReadImages lists the images of one Host.
	ReadImages = ReadKind{"images", 2 * time.Minute}
)

// slotInterval is the minimum time between two background reads of a Cluster. Together
// with six polls that limits an idle Cluster of any size to eight calls per minute.
const slotInterval = 30 * time.Second

// callBudget grants slots for background reads. If the demand exceeds the budget, all
// intervals become longer by the same factor.
type callBudget struct {
	// activeFor is how long a request for a slot competes with others.
	activeFor time.Duration

	mu        sync.Mutex
	lastGrant time.Time
	requested map[ReadKind]time.Time
	acquired  map[ReadKind]time.Time
}

// newCallBudget returns the budget of a Cluster whose first poll, which reads everything, begins now.
func newCallBudget(interval time.Duration, now time.Time) *callBudget {
	b := &callBudget{activeFor: 3 * interval, requested: map[ReadKind]time.Time{}, acquired: map[ReadKind]time.Time{}}
	for _, kind := range kinds {
		b.acquired[kind.budget] = now
	}
	return b
}

// tryAcquire reports whether a read of this kind may be made now, and uses a slot if so.
// The first request is not granted: the caller has just read everything at startup.
func (b *callBudget) tryAcquire(kind ReadKind, now time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.requested[kind] = now
	if b.acquired[kind].IsZero() {
		b.acquired[kind] = now
		return false
	}
	overdue := b.overdueRatio(kind, now)
	if overdue < 1 || now.Sub(b.lastGrant) < slotInterval {
		return false
	}
	for other, requested := range b.requested {
		if now.Sub(requested) <= b.activeFor && b.overdueRatio(other, now) > overdue {
			return false
		}
	}
	b.lastGrant, b.acquired[kind] = now, now
	return true
}

// overdueRatio returns the time since the last read divided by the desired interval.
func (b *callBudget) overdueRatio(kind ReadKind, now time.Time) float64 {
	return now.Sub(b.acquired[kind]).Seconds() / kind.every.Seconds()
}

// TryAcquire reports whether the caller may make a background read of this kind now, and uses a
// slot of the call budget if so.
func (c *Cluster) TryAcquire(kind ReadKind) bool { return c.budget.tryAcquire(kind, c.Clock.Now()) }
