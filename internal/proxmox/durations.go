// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox

import (
	"sync"
	"time"
)

// Durations estimates how long tasks take, by their type and by a key of the caller
// (Host and storage). It is safe for concurrent use.
type Durations struct {
	mu   sync.Mutex
	seen map[durationKey]bracket
}

// bracket is a range of durations: tasks were running at low and had ended at high.
// Proxmox does not report when a task ended, so each poll only narrows the range.
type bracket struct{ low, high time.Duration }

// next returns when to poll: in the middle of the range, or at its end if the range
// is so small that one poll is enough.
func (b bracket) next() time.Duration {
	if b.high-b.low <= max(b.high/precision, minPrecision) {
		return max(b.high, minExpected)
	}
	return max(b.low+(b.high-b.low)/2, minExpected)
}

type durationKey struct{ kind, key string }

// defaultDurations are the durations of tasks on an idle Host with small disks. A
// value that is too low costs one call, one that is too high delays the node.
var defaultDurations = map[string]time.Duration{
	"qmclone":   300 * time.Millisecond,
	"qmstart":   1200 * time.Millisecond,
	"qmstop":    1200 * time.Millisecond,
	"qmdestroy": 500 * time.Millisecond,
	"resize":    300 * time.Millisecond,
	"imgcopy":   200 * time.Millisecond,
	"imgdel":    200 * time.Millisecond,
	// Tasks of templates delay no node.
	"download": 5 * time.Second,
	"qmcreate": 5 * time.Second,
}

// defaultDuration applies to all other types.
const defaultDuration = 500 * time.Millisecond

const (
	// A duration is known precisely enough at a 40th of it, or at minPrecision.
	precision    = 40
	minPrecision = 10 * time.Millisecond
	// decay lowers the lower end with every task that had ended at the first poll,
	// since tasks may have become faster.
	decay = 0.998
	// outlierWeight is how far a task that took longer than all before moves the
	// estimate. It may have waited for a lock, an exception.
	outlierWeight = 0.5
	minExpected   = 20 * time.Millisecond
)

// NewDurations returns empty Durations.
func NewDurations() *Durations {
	return &Durations{seen: map[durationKey]bracket{}}
}

// Expected returns how long such a task probably takes. A nil *Durations returns
// defaults.
func (d *Durations) Expected(kind, key string) time.Duration {
	if known, ok := d.known(kind, key); ok {
		return known.next()
	}
	if duration, ok := defaultDurations[kind]; ok {
		return duration
	}
	return defaultDuration
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

// Learned returns the observed duration of such tasks, or 0 if there was none.
func (d *Durations) Learned(kind, key string) time.Duration {
	known, _ := d.known(kind, key)
	return known.low + (known.high-known.low)/2
}

// Reset drops the observations of such tasks.
func (d *Durations) Reset(kind, key string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.seen, durationKey{kind, key})
}

// Observe records a task that polls found running at after and ended at by, both
// since its start. after is zero if there was no poll before by.
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

// narrowed returns the bracket after one more task.
func (b bracket) narrowed(after, by time.Duration) bracket {
	switch {
	case after > b.high:
		// Slower than all before.
		return bracket{b.high, b.high + time.Duration(outlierWeight*float64(by-b.high))}
	case after == 0:
		b.low = time.Duration(decay * float64(b.low))
	default:
		b.low = max(b.low, after)
	}
	b.high = min(b.high, by)
	if b.low >= b.high {
		// Faster than all before.
		b.low = after
	}
	return b
}
