// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"maps"
	"reflect"
	"sync"
	"time"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// LaunchTracker has what this process did and saw. It saves requests: without an entry, the state is
// read from Proxmox.
type LaunchTracker struct {
	mu      sync.Mutex
	byClaim map[string]LaunchState
}

// LaunchState is what this process knows about the launch of a Claim.
type LaunchState struct {
	// plan of the launch; nil if this process did not plan it yet.
	plan *Intent
	// resumed: another process may have sent requests before.
	resumed bool
	// Started: requests for the launch may have been sent to Proxmox.
	Started bool
	// cloneRequested: the clone was requested. clonePending: it may still run.
	cloneRequested, clonePending bool
	cloneTask                    proxmox.UPID
	// failingSince is the time of the first error since the last progress.
	failingSince time.Time
	// CompletedAt is when this process saw the VM run; zero before.
	CompletedAt time.Time
	// progress of the launch; nil before its first step.
	progress Progress
	// host is the Host that the VM was last seen on.
	host string
	// reported is what was last reported about the Claim, by subject.
	reported map[string]string
	// PowerOffTask is the stop or shutdown of the guest that a delete started.
	PowerOffTask proxmox.UPID
}

// IsFresh reports whether this process planned the launch and sent no request to
// Proxmox, so no VM exists.
func (s LaunchState) IsFresh() bool { return s.plan != nil && !s.resumed && !s.cloneRequested }

// HasNoClone reports whether it is certain that no clone of the Claim is in progress.
func (s LaunchState) HasNoClone() bool { return s.plan != nil && !s.resumed && !s.clonePending }

// NewLaunchTracker returns an empty LaunchTracker.
func NewLaunchTracker() *LaunchTracker {
	return &LaunchTracker{byClaim: map[string]LaunchState{}}
}

// Get returns the state of a launch; the zero value if this process knows nothing.
func (t *LaunchTracker) Get(uid string) LaunchState {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.byClaim[uid]
}

func (t *LaunchTracker) update(uid string, change func(*LaunchState)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.byClaim[uid]
	change(&s)
	t.byClaim[uid] = s
}

// RecordPlanned records the plan of a launch.
func (t *LaunchTracker) RecordPlanned(uid string, plan Intent) {
	t.update(uid, func(s *LaunchState) { s.plan = &plan }) // a resumed launch stays one
}

// RecordResumed records the plan of a launch that another process planned, and may have begun.
func (t *LaunchTracker) RecordResumed(uid string, plan Intent) {
	t.update(uid, func(s *LaunchState) { s.plan, s.resumed = &plan, true })
}

// Plan returns the plan of a launch; false if this process did not plan it.
func (t *LaunchTracker) Plan(uid string) (Intent, bool) {
	s := t.Get(uid)
	if s.plan == nil {
		return Intent{}, false
	}
	return *s.plan, true
}

// RecordStarted records that requests are about to be sent.
func (t *LaunchTracker) RecordStarted(uid string) {
	t.update(uid, func(s *LaunchState) { s.Started = true })
}

// RecordCompleted records the end of the launch on a Host.
func (t *LaunchTracker) RecordCompleted(uid, host string, now time.Time) {
	t.RecordHost(uid, host)
	t.update(uid, func(s *LaunchState) {
		s.CompletedAt, s.Started, s.cloneRequested, s.clonePending, s.cloneTask, s.failingSince = now, false, true, false, "", time.Time{}
	})
}

// RecordCleanedUp records that the boot drive was deleted.
func (t *LaunchTracker) RecordCleanedUp(uid string) {
	t.update(uid, func(s *LaunchState) {
		if s.plan != nil {
			plan := *s.plan
			plan.ISOStorage, s.plan = "", &plan
		}
	})
}

// RecordHost records the Host that a VM is on, and reports whether it was on another one before.
func (t *LaunchTracker) RecordHost(uid, host string) (moved bool) {
	t.update(uid, func(s *LaunchState) {
		moved = s.host != "" && s.host != host
		s.host = host
	})
	return moved
}

// RecordCloneRequested records that a clone is about to be requested.
func (t *LaunchTracker) RecordCloneRequested(uid string) {
	t.update(uid, func(s *LaunchState) { s.cloneRequested, s.clonePending = true, true })
}

// RecordCloneStarted records the task of the clone.
func (t *LaunchTracker) RecordCloneStarted(uid string, task proxmox.UPID) {
	t.update(uid, func(s *LaunchState) { s.cloneTask = task })
}

// RecordCloneEnded records that the requested clone has ended, or never started.
func (t *LaunchTracker) RecordCloneEnded(uid string) {
	t.update(uid, func(s *LaunchState) { s.clonePending, s.cloneTask = false, "" })
}

// CloneTask returns the task of a Claim's clone; empty if this process started none.
func (t *LaunchTracker) CloneTask(uid string) proxmox.UPID { return t.Get(uid).cloneTask }

// IsCloneOfOther reports whether this process started the task for another Claim.
func (t *LaunchTracker) IsCloneOfOther(claimUID string, task proxmox.UPID) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	for uid, s := range t.byClaim {
		if s.cloneTask == task {
			return uid != claimUID
		}
	}
	return false
}

// RecordFailed records an error and returns the time of the first one since the last
// progress: a launch that waited for a slot has not used up its retry timeout.
func (t *LaunchTracker) RecordFailed(uid string, now time.Time) (since time.Time) {
	t.update(uid, func(s *LaunchState) {
		if s.failingSince.IsZero() {
			s.failingSince = now
		}
		since = s.failingSince
	})
	return since
}

// Report records what is to be reported about a Claim under a subject. It returns what was recorded
// before, and whether that differs. The first record is no change: what a new leader finds was reported.
func (t *LaunchTracker) Report(uid, subject, state string) (before string, changed bool) {
	t.update(uid, func(s *LaunchState) {
		was, known := s.reported[subject]
		before, changed = was, known && was != state
		if s.reported == nil {
			s.reported = map[string]string{}
		}
		s.reported[subject] = state
	})
	return before, changed
}

// Reported returns what was last reported about a Claim under a subject.
func (t *LaunchTracker) Reported(uid, subject string) string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.byClaim[uid].reported[subject]
}

// Host returns the Host that a VM was last seen on; empty if this process did not see it.
func (t *LaunchTracker) Host(uid string) string { return t.Get(uid).host }

// Reach records that a launch reached a phase. The first time, the retry timeout starts again with
// the next error.
func (t *LaunchTracker) Reach(uid string, phase Phase, since time.Duration) {
	t.update(uid, func(s *LaunchState) {
		if s.progress == nil {
			s.progress = NewProgress()
		}
		if s.progress.Reach(phase, since) {
			s.failingSince = time.Time{}
		}
	})
}

// Progress returns the progress of a launch as far as this process made it.
func (t *LaunchTracker) Progress(uid string) Progress {
	t.mu.Lock()
	defer t.mu.Unlock()
	if p := t.byClaim[uid].progress; p != nil {
		return maps.Clone(p)
	}
	return NewProgress()
}

// EndProgress returns the progress of a completed launch once; false if another call did, or if
// another process made it.
func (t *LaunchTracker) EndProgress(uid string) (Progress, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.byClaim[uid]
	if s.progress == nil || s.CompletedAt.IsZero() {
		return nil, false
	}
	ended := s.progress
	s.progress = nil
	t.byClaim[uid] = s
	return ended, true
}

// RecordPowerOff records the stop or shutdown of a guest; an empty task ends it.
func (t *LaunchTracker) RecordPowerOff(uid string, task proxmox.UPID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.byClaim[uid]
	if s.PowerOffTask = task; reflect.ValueOf(s).IsZero() {
		delete(t.byClaim, uid) // of an orphan
		return
	}
	t.byClaim[uid] = s
}

// Evict removes the entry of a Claim.
func (t *LaunchTracker) Evict(uid string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.byClaim, uid)
}
