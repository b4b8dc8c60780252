// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package vmhealth

import (
	"sync"
	"time"

	"k8s.io/utils/clock"
)

// RestartPolicy says how often a VM that was found stopped is started again.
type RestartPolicy struct {
	// Pause follows the first restart; it doubles with each further one.
	Backoff time.Duration
	// Limit is how many restarts without a quiet spell mean that the VM stops by
	// itself.
	Limit int
}

// quiet is how long a VM must have run for its restarts to be forgotten: twice as
// long as all pauses together.
func (p RestartPolicy) quiet() time.Duration { return 2 * (p.Backoff<<p.Limit - p.Backoff) }

// verdict about a VM that was found stopped.
type verdict int

const (
	wait verdict = iota
	restart
	replace
)

// restarts remembers how often VMs were started again. A restarted controller
// begins to count anew, which costs a few more tries and nothing else.
type restarts struct {
	RestartPolicy
	clock   clock.Clock
	mu      sync.Mutex
	byClaim map[string]tally
}

type tally struct {
	count int
	last  time.Time
}

func newRestarts(c clock.Clock, p RestartPolicy) *restarts {
	return &restarts{RestartPolicy: p, clock: c, byClaim: map[string]tally{}}
}

// judge says what to do with a VM that was found stopped.
func (r *restarts) judge(uid string) verdict {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.clock.Now()
	for other, t := range r.byClaim {
		if now.Sub(t.last) > r.quiet() {
			delete(r.byClaim, other)
		}
	}
	t := r.byClaim[uid]
	switch {
	case t.count > 0 && now.Sub(t.last) < r.Backoff<<(t.count-1):
		return wait
	case t.count >= r.Limit:
		delete(r.byClaim, uid)
		return replace
	}
	r.byClaim[uid] = tally{count: t.count + 1, last: now}
	return restart
}

// unneeded takes a restart back that turned out to be none.
func (r *restarts) unneeded(uid string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	t := r.byClaim[uid]
	if t.count <= 1 {
		delete(r.byClaim, uid)
		return
	}
	r.byClaim[uid] = tally{count: t.count - 1, last: t.last}
}
