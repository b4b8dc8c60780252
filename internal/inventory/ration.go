// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"sync"
	"time"
)

// Turn is a read that nobody waits for, and how often it would like to be made.
type Turn struct {
	name  string
	every time.Duration
}

var (
	turnRelease  = Turn{"release", time.Hour}
	turnMappings = Turn{"mappings", 5 * time.Minute}
	// turnMaintenance asks the HA manager which Hosts it drains, where the rows do
	// not tell.
	turnMaintenance = Turn{"maintenance", time.Minute}
	turnFact        = Turn{"fact", 3 * time.Minute}
	// turnConfig reads one configuration without a sign of change, to find what rows
	// do not show (disks, notes, networks, devices).
	turnConfig = Turn{"config", 150 * time.Second}
	turnSDN    = Turn{"SDN", time.Minute}
	turnAgent  = Turn{"agent", 2 * time.Minute}
	// TurnBootDrives lists one storage for what was left there.
	TurnBootDrives = Turn{"boot drives", 2 * time.Minute}
	// TurnImages lists the images of one Host.
	TurnImages = Turn{"images", 2 * time.Minute}
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
	asked map[Turn]time.Time
	had   map[Turn]time.Time
}

func newRation(interval time.Duration) *ration {
	return &ration{rivals: 3 * interval, asked: map[Turn]time.Time{}, had: map[Turn]time.Time{}}
}

// take tells whether the turn may be taken now. Whoever asks for the first time has
// just read it anyway.
func (r *ration) take(turn Turn, now time.Time) bool {
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
func (r *ration) waited(turn Turn, now time.Time) float64 {
	return now.Sub(r.had[turn]).Seconds() / turn.every.Seconds()
}

// Spare tells whether somebody may make such a read of a Cluster now, which nobody
// waits for. Whoever may, does it.
func (i *Inventory) Spare(region string, turn Turn) bool {
	c, ok := i.clusters[region]
	return ok && c.ration.take(turn, i.options.Clock.Now())
}
