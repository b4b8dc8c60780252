// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package vmhealth

import (
	"sync"
	"time"

	"k8s.io/utils/clock"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/backoff"
)

// RestartPolicy limits how often a stopped VM is started.
type RestartPolicy struct {
	// Backoff follows the first restart; it doubles with each further one.
	Backoff time.Duration
	// Limit is the number of restarts after which the VM is replaced.
	Limit int
}

// resetAfter is how long a VM must run until its restarts are reset: twice the sum of all
// backoffs.
func (p RestartPolicy) resetAfter() time.Duration { return 2 * (p.Backoff<<p.Limit - p.Backoff) }

// action for a stopped VM.
type action int

const (
	wait action = iota
	restart
	replace
)

// restarts counts how often VMs were started. After a restart of the controller the count
// starts at zero, which costs only a few more starts.
type restarts struct {
	RestartPolicy
	clock   clock.Clock
	mu      sync.Mutex
	byClaim map[string]restartCount
}

type restartCount struct {
	count int
	last  time.Time
}

func newRestarts(c clock.Clock, p RestartPolicy) *restarts {
	return &restarts{RestartPolicy: p, clock: c, byClaim: map[string]restartCount{}}
}

// next returns the action for a stopped VM, and counts a restart.
func (r *restarts) next(uid string) action {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.clock.Now()
	for other, t := range r.byClaim {
		if now.Sub(t.last) > r.resetAfter() {
			delete(r.byClaim, other)
		}
	}
	t := r.byClaim[uid]
	switch {
	case t.count > 0 && now.Sub(t.last) < backoff.Exponential{Initial: r.Backoff}.Delay(t.count-1):
		return wait
	case t.count >= r.Limit:
		delete(r.byClaim, uid)
		return replace
	}
	r.byClaim[uid] = restartCount{count: t.count + 1, last: now}
	return restart
}

// undo reverts the count of a restart that did not happen.
func (r *restarts) undo(uid string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	t := r.byClaim[uid]
	if t.count <= 1 {
		delete(r.byClaim, uid)
		return
	}
	r.byClaim[uid] = restartCount{count: t.count - 1, last: t.last}
}
