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
	turnRelease  = ReadKind{"release", time.Hour}
	turnMappings = ReadKind{"mappings", 5 * time.Minute}
	// turnMaintenance asks the HA manager which Hosts it drains, where the rows do
	// not tell.
	turnMaintenance = ReadKind{"maintenance", time.Minute}
	turnFact        = ReadKind{"fact", 3 * time.Minute}
	// turnConfig reads one configuration without a sign of change, to find what rows
	// do not show (disks, notes, networks, devices).
	turnConfig = ReadKind{"config", 150 * time.Second}
	turnSDN    = ReadKind{"SDN", time.Minute}
	turnAgent  = ReadKind{"agent", 2 * time.Minute}
	// ReadBootDrives lists one storage for what was left there.
	ReadBootDrives = ReadKind{"boot drives", 2 * time.Minute}
	// ReadImages lists the images of one Host.
	ReadImages = ReadKind{"images", 2 * time.Minute}
)

// spareInterval lies between two turns. With six polls that makes eight calls a minute
// for a Cluster that is left alone, whatever its size.
const spareInterval = 30 * time.Second

// ration hands out turns. Where more is wished for than there is, everything waits
// longer by the same factor.
type ration struct {
	// rivals are those who asked so recently that they still wish for a turn.
	rivals time.Duration

	mu    sync.Mutex
	given time.Time
	asked map[ReadKind]time.Time
	had   map[ReadKind]time.Time
}

func newRation(interval time.Duration) *ration {
	return &ration{rivals: 3 * interval, asked: map[ReadKind]time.Time{}, had: map[ReadKind]time.Time{}}
}

// take tells whether the turn may be taken now. Whoever asks for the first time has
// just read it anyway.
func (r *ration) take(turn ReadKind, now time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.asked[turn] = now
	if r.had[turn].IsZero() {
		r.had[turn] = now
		return false
	}
	waited := r.waited(turn, now)
	if waited < 1 || now.Sub(r.given) < spareInterval {
		return false
	}
	for other, asked := range r.asked {
		if now.Sub(asked) <= r.rivals && r.waited(other, now) > waited {
			return false
		}
	}
	r.given, r.had[turn] = now, now
	return true
}

// waited is how long a turn is waited for, by what it would like.
func (r *ration) waited(turn ReadKind, now time.Time) float64 {
	return now.Sub(r.had[turn]).Seconds() / turn.every.Seconds()
}

// Spare tells whether somebody may make such a read of a Cluster now, which nobody
// waits for. Whoever may, does it.
func (i *Inventory) TryAcquire(region string, turn ReadKind) bool {
	c, ok := i.clusters[region]
	return ok && c.ration.take(turn, i.options.Clock.Now())
}
