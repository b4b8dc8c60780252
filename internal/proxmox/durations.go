// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox

import (
	"slices"
	"sync"
	"time"
)

// Durations estimates how long tasks take, by their type and by a key of the caller
// (Host and storage). It is safe for concurrent use.
type Durations struct {
	mu   sync.Mutex
	seen map[durationKey]estimate
}

type durationKey struct{ kind, key string }

// estimate are the durations of the last tasks, at most recentTasks of them. Proxmox
// does not report when a task ended, so each is the time of the poll that found it
// ended.
type estimate struct {
	all []time.Duration
	// alone are those of tasks with no other of their type and key beside them: tasks
	// of a burst take longer and would delay the polls of all later ones.
	alone []time.Duration
	// early counts the tasks in a row that had ended at their first poll, so the
	// duration may be shorter than known.
	early int
}

// recentTasks is how many tasks in a row must be slower than before to count.
const recentTasks = 3

// earlier is how much earlier the next task is polled the first time, by the number of
// tasks in a row that had ended at their first poll. A poll that is too early costs
// one call.
var earlier = []float64{0, 0, 0, 0.02, 0.1, 0.25, 0.4}

// firstEarly is the number that an unknown duration starts with.
const firstEarly = 4

// defaultDurations are the durations of tasks on an idle Host with small disks. A
// value that is too low costs one call, one that is too high delays the node.
var defaultDurations = map[string]time.Duration{
	"qmclone":   300 * time.Millisecond,
	"qmstart":   1200 * time.Millisecond,
	"qmdestroy": 500 * time.Millisecond,
	"resize":    300 * time.Millisecond,
	"imgcopy":   200 * time.Millisecond,
	"imgdel":    200 * time.Millisecond,
	// Tasks of templates delay no node.
	"download": 5 * time.Second,
	"qmcreate": 5 * time.Second,
}

const (
	// defaultDuration applies to all other types.
	defaultDuration = 500 * time.Millisecond
	minExpected     = 20 * time.Millisecond
)

// NewDurations returns empty Durations.
func NewDurations() *Durations {
	return &Durations{seen: map[durationKey]estimate{}}
}

// Expected returns how long such a task probably takes: a little less than the fastest
// of the last tasks that ran alone. A nil *Durations returns defaults.
func (d *Durations) Expected(kind, key string) time.Duration {
	if known, ok := d.get(kind, key); ok && len(known.alone) > 0 {
		factor := 1 - earlier[min(known.early, len(earlier)-1)]
		return max(time.Duration(factor*float64(slices.Min(known.alone))), minExpected)
	}
	if duration, ok := defaultDurations[kind]; ok {
		return duration
	}
	return defaultDuration
}

func (d *Durations) get(kind, key string) (estimate, bool) {
	if d == nil {
		return estimate{}, false
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	e, ok := d.seen[durationKey{kind, key}]
	return e, ok
}

// Learned returns the shortest duration of the last such tasks, or 0 if there was none.
func (d *Durations) Learned(kind, key string) time.Duration {
	known, ok := d.get(kind, key)
	if !ok {
		return 0
	}
	return slices.Min(known.all)
}

// Reset drops the observations of such tasks.
func (d *Durations) Reset(kind, key string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.seen, durationKey{kind, key})
}

// Observation is a task that has ended.
type Observation struct {
	// Took is the time until the poll that found it ended.
	Took time.Duration
	// Early: it had ended at its first poll.
	Early bool
	// UpperBound: a task alone takes less than Took: others of its type and key ran
	// beside it, or it was polled late.
	UpperBound bool
}

// Observe records a task.
func (d *Durations) Observe(kind, key string, o Observation) {
	if d == nil {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	k := durationKey{kind, key}
	e, known := d.seen[k]
	e.all = appendRecent(e.all, o.Took)
	switch {
	case o.UpperBound:
	case o.Early && !known:
		e.early = firstEarly
	case o.Early:
		e.early++
	default:
		e.early = 0
	}
	if !o.UpperBound {
		e.alone = appendRecent(e.alone, o.Took)
	}
	d.seen[k] = e
}

func appendRecent(durations []time.Duration, took time.Duration) []time.Duration {
	durations = append(slices.Clone(durations), took)
	return durations[max(0, len(durations)-recentTasks):]
}
