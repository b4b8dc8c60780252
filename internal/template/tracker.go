// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package template

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/backoff"
)

// HostKey identifies one ProxmoxTemplate on one Host.
type HostKey struct{ UID, Region, Host string }

// hostState is the progress of one ProxmoxTemplate on one Host. It is reported in
// conditions and decides only when to retry, so it may be lost at any time.
type hostState struct {
	generation
	// step is the step in progress, for example "downloading 43 %".
	step string
	// failure is the error of the last failed run. It is kept until a run succeeds.
	failure  string
	failures int
	retryAt  time.Time
	// warning describes a problem that does not block the build and needs attention.
	warning string
	// missing is the VMID of a Template that the status lists and that no longer exists.
	missing int
	// checksumMismatch is whether a download did not have the expected checksum.
	checksumMismatch bool

	// waiting is what the Host waits for between two runs, and attempts counts the failed
	// preparations.
	waiting  string
	attempts int
	// builder is the VMID of the builder VM that this process started, or whose failure it reported.
	builder int
	guest   guestState
	// awake is the generation for which the Host was awake without its Template.
	awake generation
	// cancel ends the run.
	cancel context.CancelCauseFunc
}

// generation is what a run was started for.
type generation struct {
	hash     string
	revision int64
	deleted  bool
}

func (d Desired) generation() generation { return generation{d.Hash, d.Revision, d.Deleted} }

// errSuperseded is the cause for canceling a run whose generation is no longer desired.
var errSuperseded = errors.New("the template was changed or deleted")

// tracker records the progress of all Hosts, and what was last done with each Template.
type tracker struct {
	mu    sync.Mutex
	hosts map[HostKey]*hostState
	// unneeded is since when a Template (TemplateZone) or an image (imageAt) is unneeded.
	unneeded map[any]time.Time
	// sweeps are the searches for unused images, by region and Host.
	sweeps map[string]sweep
	// builders are the VMIDs of the builder VMs that this process starts, until the inventory shows
	// that they were started; 0 while the VM is created.
	builders    map[HostKey]int
	subscribers []chan Event
}

// Event signals that the progress of a Host changed.
type Event = event.TypedGenericEvent[uint64]

func newTracker() *tracker {
	return &tracker{
		hosts: map[HostKey]*hostState{}, unneeded: map[any]time.Time{},
		sweeps: map[string]sweep{}, builders: map[HostKey]int{},
	}
}

// Subscribe returns a channel that receives an Event after each change of progress.
// Events that are not yet received are merged into one.
func (p *Provider) Subscribe() <-chan Event {
	p.tracker.mu.Lock()
	defer p.tracker.mu.Unlock()
	events := make(chan Event, 1)
	p.tracker.subscribers = append(p.tracker.subscribers, events)
	return events
}

// update changes the state of a Host and notifies the subscribers.
func (t *tracker) update(key HostKey, change func(*hostState)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	s, ok := t.hosts[key]
	if !ok {
		s = &hostState{}
		t.hosts[key] = s
	}
	change(s)
	for _, events := range t.subscribers {
		select {
		case events <- Event{}:
		default:
		}
	}
}

func (t *tracker) get(key HostKey) hostState {
	t.mu.Lock()
	defer t.mu.Unlock()
	if s, ok := t.hosts[key]; ok {
		return *s
	}
	return hostState{}
}

func (t *tracker) setStep(key HostKey, step string) {
	t.update(key, func(s *hostState) { s.step, s.waiting = step, "" })
}

// failuresFor returns how often the build, the preparation or the deletion of a generation failed.
func (t *tracker) failuresFor(key HostKey, g generation) int {
	s := t.get(key)
	if s.generation != g {
		return 0
	}
	return max(s.failures, s.attempts)
}

// begin records that a run for a generation starts. The run's context is canceled when
// the generation is superseded; the returned function ends the run.
func (t *tracker) begin(ctx context.Context, key HostKey, desired Desired) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	t.update(key, func(s *hostState) {
		if s.generation != desired.generation() {
			s.failure, s.failures, s.attempts, s.retryAt, s.waiting, s.checksumMismatch = "", 0, 0, time.Time{}, "", false
		}
		s.generation, s.cancel = desired.generation(), cancel
	})
	return ctx, func() {
		cancel(nil)
		t.update(key, func(s *hostState) { s.cancel, s.step = nil, "" })
		t.mu.Lock()
		defer t.mu.Unlock()
		if t.builders[key] == 0 {
			delete(t.builders, key)
		}
	}
}

// Backoff after a failure.
var (
	transientBackoff = backoff.Exponential{Initial: 2 * time.Second, Max: 30 * time.Second}
	failureBackoff   = backoff.Exponential{Initial: 10 * time.Second, Max: 5 * time.Minute}
)

// recordFailure records why a run failed and returns the backoff before the next one.
func (t *tracker) recordFailure(key HostKey, now time.Time, text string, transient bool) time.Duration {
	retry := failureBackoff
	if transient {
		retry = transientBackoff
	}
	var delay time.Duration
	t.update(key, func(s *hostState) {
		delay = retry.Delay(s.failures)
		s.failures++
		s.failure, s.retryAt, s.waiting = text, now.Add(delay), ""
	})
	return delay
}

// recordDeletionFailure records that a Template of a deleted ProxmoxTemplate could not be deleted.
// Each change of the view starts a run, so a failure counts only after the backoff of the last one.
func (t *tracker) recordDeletionFailure(key HostKey, now time.Time) {
	t.update(key, func(s *hostState) {
		if !now.Before(s.retryAt) {
			s.retryAt = now.Add(failureBackoff.Delay(s.failures))
			s.failures++
		}
	})
}

func (t *tracker) recordSuccess(key HostKey) {
	t.update(key, func(s *hostState) {
		s.failure, s.failures, s.attempts, s.warning, s.waiting, s.missing, s.checksumMismatch = "", 0, 0, "", "", 0, false
	})
}

// CancelSuperseded cancels the runs for generations of a ProxmoxTemplate that are no
// longer desired, and if it is deleted, those that began before that.
func (p *Provider) CancelSuperseded(desired Desired) {
	p.tracker.mu.Lock()
	defer p.tracker.mu.Unlock()
	for key, s := range p.tracker.hosts {
		if key.UID == desired.UID && s.cancel != nil && (desired.Deleted != s.deleted || s.hash != desired.Hash) {
			s.cancel(errSuperseded)
		}
	}
}

// HasChecksumMismatch reports whether a download of the image of a ProxmoxTemplate did not
// have the expected checksum.
func (p *Provider) HasChecksumMismatch(uid string) bool {
	p.tracker.mu.Lock()
	defer p.tracker.mu.Unlock()
	for key, s := range p.tracker.hosts {
		if key.UID == uid && s.checksumMismatch {
			return true
		}
	}
	return false
}

// Evict removes the recorded progress of a ProxmoxTemplate that no longer exists.
func (p *Provider) Evict(uid string) {
	p.tracker.mu.Lock()
	defer p.tracker.mu.Unlock()
	for key := range p.tracker.hosts {
		if key.UID == uid {
			delete(p.tracker.hosts, key)
			delete(p.tracker.builders, key)
		}
	}
}

// RecordMissing records that a Template which VMs were cloned from no longer exists.
func (p *Provider) RecordMissing(uid string, zone v1alpha1.TemplateZone) {
	key := HostKey{UID: uid, Region: zone.Region, Host: zone.Host}
	if p.tracker.get(key).missing != zone.VMID {
		p.tracker.update(key, func(s *hostState) { s.missing = zone.VMID })
	}
}

// unneededSince returns since when an object is unneeded, and false if it is needed.
func (t *tracker) unneededSince(object any, needed bool, now time.Time) (time.Time, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if needed {
		delete(t.unneeded, object)
		return time.Time{}, false
	}
	if _, ok := t.unneeded[object]; !ok {
		t.unneeded[object] = now
	}
	return t.unneeded[object], true
}

// evictUnneeded removes an object that is needed again, or was deleted: its VMID or name may be
// used again.
func (t *tracker) evictUnneeded(object any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.unneeded, object)
}

// sweepInterval is how often unused images are searched for without a request.
const sweepInterval = 10 * time.Minute

// sweep is the state of the search for unused images on a Host.
type sweep struct {
	// due is when the next one may start; zero if one is requested or in progress.
	due time.Time
	// failure is the error of the last one, failures how many failed in a row.
	failure  error
	failures int
}

// tryStartSweep reports whether the images of a Host are to be checked: a sweep was
// requested, or the next one is due and tryAcquire grants a call. It then stays due until
// recordSweep.
func (t *tracker) tryStartSweep(region, host string, now time.Time, tryAcquire func() bool) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.sweeps[region+"/"+host]
	if !s.due.IsZero() && (now.Before(s.due) || !tryAcquire()) {
		return false
	}
	s.due = time.Time{}
	t.sweeps[region+"/"+host] = s
	return true
}

// recordSweep records the end of a sweep. The next one is due after the given time, at most
// sweepInterval, or after the backoff if this one failed.
func (t *tracker) recordSweep(region, host string, now time.Time, after time.Duration, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	next := sweep{due: now.Add(soonest(after, sweepInterval))}
	if err != nil {
		failures := t.sweeps[region+"/"+host].failures
		next = sweep{due: now.Add(failureBackoff.Delay(failures)), failures: failures + 1}
		if !errors.Is(err, errStillRunning) {
			next.failure = err
		}
	}
	t.sweeps[region+"/"+host] = next
}

// sweepFailure returns the error of the last sweep of a Host.
func (t *tracker) sweepFailure(region, host string) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.sweeps[region+"/"+host].failure
}

// requestSweep makes a sweep due on every Host.
func (t *tracker) requestSweep() {
	t.mu.Lock()
	defer t.mu.Unlock()
	clear(t.sweeps)
}

// message describes the state in the condition.
func (s hostState) message() string {
	text, step := "", cmp.Or(s.step, s.waiting)
	switch {
	case step != "" && s.failure != "":
		text = fmt.Sprintf("%s, after: %s", step, s.failure)
	case step != "":
		text = step
	case s.failure != "":
		text = s.failure
	default:
		text = "waiting for a build slot"
	}
	if s.missing != 0 {
		text = fmt.Sprintf("template %d no longer exists and is recreated: %s", s.missing, text)
	}
	return text
}
