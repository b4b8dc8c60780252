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
	seen map[durationKey]bracket
}

// bracket is what is known about a duration: such tasks still ran at low and had
// ended by high. Proxmox does not tell when a task ended, so that each look only
// narrows it.
type bracket struct{ low, high time.Duration }

// next is when to look: in the middle of what is not known, and once that is little,
// at its end, where one look suffices.
func (b bracket) next() time.Duration {
	if b.high-b.low <= max(b.high/fine, finest) {
		return max(b.high, minExpected)
	}
	return max(b.low+(b.high-b.low)/2, minExpected)
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
	// A template is no node: nobody waits for it by the second.
	"download": 5 * time.Second,
	"qmcreate": 5 * time.Second,
}

const otherGuess = 500 * time.Millisecond

const (
	// fine and finest are how well a duration has to be known: to a 40th, or that long.
	fine   = 40
	finest = 10 * time.Millisecond
	// ageing lets the lower end go down a little with every task that had ended when
	// it was first looked at: it may have become quicker.
	ageing = 0.998
	// trust is how far a task that took longer than any before moves the estimate: it
	// may have waited for a lock for once.
	trust       = 0.5
	minExpected = 20 * time.Millisecond
)

// NewDurations knows nothing yet.
func NewDurations() *Durations {
	return &Durations{seen: map[durationKey]bracket{}}
}

// Expected is how long such a task probably takes. A nil *Durations guesses.
func (d *Durations) Expected(kind, key string) time.Duration {
	if known, ok := d.known(kind, key); ok {
		return known.next()
	}
	if guess, ok := firstGuess[kind]; ok {
		return guess
	}
	return otherGuess
}

func (d *Durations) known(kind, key string) (bracket, bool) {
	if d == nil {
		return bracket{}, false
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	b, ok := d.seen[durationKey{kind, key}]
	return b, ok
}

// Learned is what was seen of such tasks; zero when none was.
func (d *Durations) Learned(kind, key string) time.Duration {
	known, _ := d.known(kind, key)
	return known.low + (known.high-known.low)/2
}

// Forget what was seen of such tasks.
func (d *Durations) Reset(kind, key string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.seen, durationKey{kind, key})
}

// Observe learns from a task that looks sent at these times since its start found
// still running, and ended. after is zero when nobody looked earlier.
func (d *Durations) Observe(kind, key string, after, by time.Duration) {
	if d == nil {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	k := durationKey{kind, key}
	old, ok := d.seen[k]
	if !ok {
		d.seen[k] = bracket{after, by}
		return
	}
	d.seen[k] = old.narrowed(after, by)
}

// narrowed is the bracket after one more task.
func (b bracket) narrowed(after, by time.Duration) bracket {
	switch {
	case after > b.high:
		// Slower than any before.
		return bracket{b.high, b.high + time.Duration(trust*float64(by-b.high))}
	case after == 0:
		b.low = time.Duration(ageing * float64(b.low))
	default:
		b.low = max(b.low, after)
	}
	b.high = min(b.high, by)
	if b.low >= b.high {
		// Quicker than any before.
		b.low = after
	}
	return b
}
