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

	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/backoff"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/since"
)

// HostKey identifies one ProxmoxTemplate on one Host.
type HostKey struct{ UID, Region, Host string }

// hostState is the progress of one ProxmoxTemplate on one Host. It is reported in
// conditions and decides only when to retry, so it may be lost at any time.
type hostState struct {
	generation
	// step is the step in progress, or what the next run waits for, for example "downloading 43 %".
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

	// attempts counts the failed preparations.
	attempts int
	// builder is the VMID of the builder VM that this process started, or whose failure it reported.
	builder int
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
	// unneeded is since when a Template (TemplateZone) or a volume (volumeAt) is unneeded.
	unneeded since.Times[any]
	// builders are the VMIDs of the builder VMs that this process starts, until the inventory shows
	// that they were started; 0 while the VM is created.
	builders    map[HostKey]int
	subscribers []chan Event
}

// Event signals that the progress of a Host changed.
type Event = event.TypedGenericEvent[uint64]

func newTracker(c clock.PassiveClock) *tracker {
	return &tracker{
		hosts: map[HostKey]*hostState{}, unneeded: since.New[any](c),
		builders: map[HostKey]int{},
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
	t.update(key, func(s *hostState) { s.step = step })
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
			s.failure, s.failures, s.attempts, s.retryAt, s.step, s.checksumMismatch = "", 0, 0, time.Time{}, "", false
		}
		s.generation, s.cancel = desired.generation(), cancel
	})
	return ctx, func() {
		cancel(nil)
		t.update(key, func(s *hostState) { s.cancel = nil })
		t.mu.Lock()
		defer t.mu.Unlock()
		if t.builders[key] == 0 {
			delete(t.builders, key)
		}
	}
}

// failureBackoff is the backoff after a failure.
var failureBackoff = backoff.Exponential{Initial: 2 * time.Second, Max: 5 * time.Minute}

// recordFailure records why a run failed and returns the backoff before the next one.
func (t *tracker) recordFailure(key HostKey, now time.Time, text string) time.Duration {
	var delay time.Duration
	t.update(key, func(s *hostState) {
		delay = failureBackoff.Delay(s.failures)
		s.failures++
		s.failure, s.retryAt, s.step = text, now.Add(delay), ""
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
		s.failure, s.failures, s.attempts, s.warning, s.step, s.missing, s.checksumMismatch = "", 0, 0, "", "", 0, false
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

// graceLeft returns what is left of the grace period of an object that is unneeded, and false if it is needed
// or does not exist.
func (p *Provider) graceLeft(object any, needed bool) (left time.Duration, unneeded bool) {
	p.tracker.mu.Lock()
	defer p.tracker.mu.Unlock()
	if needed {
		p.tracker.unneeded.End(func(other any) bool { return other == object })
		return 0, false
	}
	return max(0, p.settings.GracePeriod-p.clock.Since(p.tracker.unneeded.Observe(object))), true
}

// message describes the state in the condition.
func (s hostState) message() string {
	text := cmp.Or(s.step, s.failure, "waiting for a build slot")
	if s.step != "" && s.failure != "" {
		text = fmt.Sprintf("%s, after: %s", s.step, s.failure)
	}
	if s.missing != 0 {
		text = fmt.Sprintf("template %d no longer exists and is recreated: %s", s.missing, text)
	}
	return text
}
