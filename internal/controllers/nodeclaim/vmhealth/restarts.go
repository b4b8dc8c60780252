// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package vmhealth

import (
	"sync"
	"time"

	"k8s.io/utils/clock"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/backoff"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
)

// RestartPolicy limits how often a stopped VM is started, and how many VMs are replaced.
type RestartPolicy struct {
	// Backoff follows the first restart; it doubles with each further one. It also
	// follows each start that failed.
	Backoff time.Duration
	// Limit is the number of restarts after which the VM is replaced.
	Limit int
	// ReplacementMaxFraction is the fraction of a region's VMs above which none is replaced.
	ReplacementMaxFraction instance.SafetyThreshold
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

// restarts counts how often VMs were started. A start that failed does not count: its
// cause, such as a storage that is late after a power cut, is not in the VM. After a
// restart of the controller the count starts at zero, which costs only a few more starts.
type restarts struct {
	RestartPolicy
	clock   clock.Clock
	mu      sync.Mutex
	byClaim map[string]restartCount
	// stopping is when Hosts were last seen to stop all of their guests.
	stopping map[hostKey]time.Time
}

type hostKey struct{ region, host string }

type restartCount struct {
	region string
	count  int
	// last is the time of the last attempt, delay the backoff after it.
	last  time.Time
	delay time.Duration
	// pending: the last attempt counts if the VM is seen running.
	pending bool
	// blocked: the Host could not be reached, or the VM was locked or paused, since the VM last
	// ran.
	blocked bool
}

func newRestarts(c clock.Clock, p RestartPolicy) *restarts {
	return &restarts{RestartPolicy: p, clock: c, byClaim: map[string]restartCount{}, stopping: map[hostKey]time.Time{}}
}

// next returns the action for a stopped VM.
func (r *restarts) next(vm instance.VM) action {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.clock.Now()
	for other, t := range r.byClaim {
		if now.Sub(t.last) > r.resetAfter() {
			delete(r.byClaim, other)
		}
	}
	t := r.byClaim[vm.ClaimUID]
	switch {
	case now.Sub(t.last) < t.delay || now.Sub(r.stopping[hostKey{vm.Region, vm.Host}]) < r.Backoff:
		return wait
	case t.count >= r.Limit:
		return replace
	}
	return restart
}

// recordStarted counts a restart.
func (r *restarts) recordStarted(vm instance.VM) {
	r.update(vm, func(t *restartCount) {
		t.count = min(t.count+1, r.Limit)
		t.delay, t.pending, t.blocked = backoff.Exponential{Initial: r.Backoff}.Delay(t.count-1), false, false
	})
}

// recordFailed records a start that failed, or that is pending: still in progress.
func (r *restarts) recordFailed(vm instance.VM, pending bool) {
	r.update(vm, func(t *restartCount) { t.delay, t.pending = r.Backoff, pending })
}

// recordBlocked records that the Host of a VM could not be reached, or that the VM was locked or
// paused, and returns whether that was so before.
func (r *restarts) recordBlocked(vm instance.VM) (again bool) {
	r.update(vm, func(t *restartCount) {
		again = t.blocked
		t.delay, t.pending, t.blocked = r.Backoff, false, true
	})
	return again
}

func (r *restarts) update(vm instance.VM, change func(*restartCount)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.clock.Now()
	t := r.byClaim[vm.ClaimUID]
	if now.Sub(t.last) > r.resetAfter() {
		t = restartCount{}
	}
	t.region, t.last = vm.Region, now
	change(&t)
	r.byClaim[vm.ClaimUID] = t
}

// observeRunning counts a pending start.
func (r *restarts) observeRunning(uid string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	t, ok := r.byClaim[uid]
	if !ok {
		return
	}
	if t.pending {
		t.count = min(t.count+1, r.Limit)
	}
	t.pending, t.blocked = false, false
	r.byClaim[uid] = t
}

// observeStopping records that a VM's Host stops all of its guests.
func (r *restarts) observeStopping(vm instance.VM) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.stopping[hostKey{vm.Region, vm.Host}] = r.clock.Now()
}

// exhausted returns how many VMs of a region used up their restarts, including those that
// were replaced recently.
func (r *restarts) exhausted(region string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := 0
	for _, t := range r.byClaim {
		if t.region == region && t.count >= r.Limit {
			n++
		}
	}
	return n
}
