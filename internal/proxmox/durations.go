// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox

import (
	"sync"
	"time"
)

// Durations learns how long tasks take, by their type and by whatever else the
// caller knows to matter (Host and storage). It is safe for concurrent use.
type Durations struct {
	mu   sync.Mutex
	seen map[durationKey]time.Duration
}

type durationKey struct{ kind, key string }

// firstGuess is what tasks took on an idle Host with small disks: a guess that
// is too short costs a call, one that is too long costs a node's time.
var firstGuess = map[string]time.Duration{
	"qmclone":   300 * time.Millisecond,
	"qmstart":   1200 * time.Millisecond,
	"qmstop":    1200 * time.Millisecond,
	"qmdestroy": 500 * time.Millisecond,
	"resize":    300 * time.Millisecond,
	"imgcopy":   200 * time.Millisecond,
	"imgdel":    200 * time.Millisecond,
}

const otherGuess = 500 * time.Millisecond

const (
	// learningRate is the weight of the newest task.
	learningRate = 0.3
	// shrink is how far an estimate comes down when the first look found the
	// task ended: Proxmox does not tell when it did.
	shrink      = 0.85
	minExpected = 50 * time.Millisecond
)

// NewDurations knows nothing yet.
func NewDurations() *Durations {
	return &Durations{seen: map[durationKey]time.Duration{}}
}

// Expected is how long such a task probably takes. A nil *Durations guesses.
func (d *Durations) Expected(kind, key string) time.Duration {
	if d != nil {
		d.mu.Lock()
		defer d.mu.Unlock()
		if expected, ok := d.seen[durationKey{kind, key}]; ok {
			return expected
		}
	}
	if guess, ok := firstGuess[kind]; ok {
		return guess
	}
	return otherGuess
}

// Learned is what was seen of such tasks; zero when none was.
func (d *Durations) Learned(kind, key string) time.Duration {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.seen[durationKey{kind, key}]
}

// Observe learns from a task that was still running after, and had ended by,
// these times since its start. after is zero when nobody looked earlier.
func (d *Durations) Observe(kind, key string, after, by time.Duration) {
	if d == nil {
		return
	}
	old := d.Expected(kind, key)
	next := time.Duration(float64(min(old, by)) * shrink)
	if after > 0 {
		middle := after + (by-after)/2
		next = time.Duration((1-learningRate)*float64(old) + learningRate*float64(middle))
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.seen[durationKey{kind, key}] = max(next, minExpected)
}
