// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"sync"
	"time"
)

// Turn is a read that nobody waits for, and how often it would like to be made.
type ReadKind struct {
	name  string
	every time.Duration
}

var (
	kindVersion  = ReadKind{"release", time.Hour}
	kindMappings = ReadKind{"mappings", 5 * time.Minute}
	// turnMaintenance asks the HA manager which Hosts it drains, where the rows do
	// not tell.
	kindMaintenance = ReadKind{"maintenance", time.Minute}
	kindFact        = ReadKind{"fact", 3 * time.Minute}
	// turnConfig reads one configuration without a sign of change, to find what rows
	// do not show (disks, notes, networks, devices).
	kindConfig = ReadKind{"config", 150 * time.Second}
	kindSDN    = ReadKind{"SDN", time.Minute}
	kindAgent  = ReadKind{"agent", 2 * time.Minute}
	// ReadBootDrives lists one storage for what was left there.
	ReadBootDrives = ReadKind{"boot drives", 2 * time.Minute}
	// ReadImages lists the images of one Host.
	ReadImages = ReadKind{"images", 2 * time.Minute}
)

// spareInterval lies between two turns. With six polls that makes eight calls a minute
// for a Cluster that is left alone, whatever its size.
const slotInterval = 30 * time.Second

// ration hands out turns. Where more is wished for than there is, everything waits
// longer by the same factor.
type callBudget struct {
	// rivals are those who asked so recently that they still wish for a turn.
	activeFor time.Duration

	mu        sync.Mutex
	lastGrant time.Time
	requested map[ReadKind]time.Time
	acquired  map[ReadKind]time.Time
}

func newCallBudget(interval time.Duration) *callBudget {
	return &callBudget{activeFor: 3 * interval, requested: map[ReadKind]time.Time{}, acquired: map[ReadKind]time.Time{}}
}

// take tells whether the turn may be taken now. Whoever asks for the first time has
// just read it anyway.
func (r *callBudget) tryAcquire(turn ReadKind, now time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.requested[turn] = now
	if r.acquired[turn].IsZero() {
		r.acquired[turn] = now
		return false
	}
	waited := r.overdueRatio(turn, now)
	if waited < 1 || now.Sub(r.lastGrant) < slotInterval {
		return false
	}
	for other, asked := range r.requested {
		if now.Sub(asked) <= r.activeFor && r.overdueRatio(other, now) > waited {
			return false
		}
	}
	r.lastGrant, r.acquired[turn] = now, now
	return true
}

// waited is how long a turn is waited for, by what it would like.
func (r *callBudget) overdueRatio(turn ReadKind, now time.Time) float64 {
	return now.Sub(r.acquired[turn]).Seconds() / turn.every.Seconds()
}

// Spare tells whether somebody may make such a read of a Cluster now, which nobody
// waits for. Whoever may, does it.
func (i *Inventory) TryAcquire(region string, turn ReadKind) bool {
	c, ok := i.clusters[region]
	return ok && c.budget.tryAcquire(turn, i.options.Clock.Now())
}
