// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package template

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
)

// Spot is one Host in the eyes of one ProxmoxTemplate.
type HostKey struct{ UID, Region, Host string }

// state is how far the work on a spot is. It is what conditions tell, and decides
// nothing but when to try again: it may be lost at any time.
type state struct {
	hash string
	// doing is the step under way: "downloading 43 %".
	doing string
	// failure is why the last try ended; it stands until one succeeds.
	failure  string
	failures int
	retry    time.Time
	revision int64
	// note tells of something that somebody should look at, beside the work.
	note string
	// lost is a Template that was served from and is not there any more.
	lost   int
	looked bool
	cancel context.CancelCauseFunc
}

// errSuperseded ends work on a generation that nobody asks for any more.
var errSuperseded = errors.New("the template was changed or deleted")

type memory struct {
	mu    sync.Mutex
	spots map[HostKey]*state
	// idle is since when a Template is unneeded, written what was last written to one.
	idle    map[v1alpha1.TemplateZone]time.Time
	written map[v1alpha1.TemplateZone]string
	// swept is when the images of a Host were last looked through.
	swept       map[string]time.Time
	subscribers []chan Event
}

// Event tells that there is news for the conditions.
type Event = event.TypedGenericEvent[uint64]

func newMemory() *memory {
	return &memory{
		spots: map[HostKey]*state{}, idle: map[v1alpha1.TemplateZone]time.Time{},
		written: map[v1alpha1.TemplateZone]string{}, swept: map[string]time.Time{},
	}
}

// Subscribe gives a channel that gets an Event after each step, until the process
// ends. Events that were not yet received merge into one.
func (p *Provider) Subscribe() <-chan Event {
	p.memory.mu.Lock()
	defer p.memory.mu.Unlock()
	events := make(chan Event, 1)
	p.memory.subscribers = append(p.memory.subscribers, events)
	return events
}

// update changes a spot's state and tells who listens.
func (m *memory) update(spot HostKey, change func(*state)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s, ok := m.spots[spot]
	if !ok {
		s = &state{}
		m.spots[spot] = s
	}
	change(s)
	for _, events := range m.subscribers {
		select {
		case events <- Event{}:
		default:
		}
	}
}

func (m *memory) read(spot HostKey) state {
	m.mu.Lock()
	defer m.mu.Unlock()
	if s, ok := m.spots[spot]; ok {
		return *s
	}
	return state{}
}

// first tells whether a spot was never looked at in the life of this process.
func (m *memory) first(spot HostKey) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	s, ok := m.spots[spot]
	if !ok || !s.looked {
		if ok {
			s.looked = true
		}
		return true
	}
	return false
}

// doing notes the step under way.
func (m *memory) doing(spot HostKey, step string) {
	m.update(spot, func(s *state) { s.doing = step })
}

// begin notes that work on a generation starts, and how to end it.
func (m *memory) begin(ctx context.Context, spot HostKey, w Desired) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	m.update(spot, func(s *state) {
		if s.hash != w.Hash || s.revision != w.Revision {
			s.failure, s.failures = "", 0
		}
		s.hash, s.revision, s.cancel = w.Hash, w.Revision, cancel
	})
	return ctx, func() {
		cancel(nil)
		m.update(spot, func(s *state) { s.cancel, s.doing = nil, "" })
	}
}

// Bounds of the pause after a failure: short where it passes by itself.
const (
	passingPause    = 2 * time.Second
	maxPassingPause = 30 * time.Second
	failurePause    = 10 * time.Second
	maxFailurePause = 5 * time.Minute
)

// failed notes why a try ended and answers when to try again.
func (m *memory) failed(spot HostKey, now time.Time, text string, passing bool) time.Duration {
	pause, most := failurePause, maxFailurePause
	if passing {
		pause, most = passingPause, maxPassingPause
	}
	m.update(spot, func(s *state) {
		pause = min(pause<<min(s.failures, 10), most)
		s.failures++
		s.failure, s.retry = text, now.Add(pause)
	})
	return pause
}

func (m *memory) succeeded(spot HostKey) {
	m.update(spot, func(s *state) { s.failure, s.failures, s.note, s.lost = "", 0, "", 0 })
}

// Supersede ends work on generations of a ProxmoxTemplate that it does not ask for any
// more, and forgets those of a deleted one.
func (p *Provider) CancelSuperseded(w Desired) {
	p.memory.mu.Lock()
	defer p.memory.mu.Unlock()
	for spot, s := range p.memory.spots {
		if spot.UID == w.UID && s.cancel != nil && (w.Deleted || s.hash != w.Hash) {
			s.cancel(errSuperseded)
		}
	}
}

// Forget what is known about a ProxmoxTemplate that is gone.
func (p *Provider) Evict(uid string) {
	p.memory.mu.Lock()
	defer p.memory.mu.Unlock()
	for spot := range p.memory.spots {
		if spot.UID == uid {
			delete(p.memory.spots, spot)
		}
	}
}

// Lost notes that a Template which VMs were cloned from is not there any more.
func (p *Provider) RecordMissing(uid string, zone v1alpha1.TemplateZone) {
	spot := HostKey{UID: uid, Region: zone.Region, Host: zone.Host}
	if p.memory.read(spot).lost != zone.VMID {
		p.memory.update(spot, func(s *state) { s.lost = zone.VMID })
	}
}

// unneeded answers since when a Template was not needed.
func (m *memory) unneeded(zone v1alpha1.TemplateZone, needed bool, now time.Time) (time.Time, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if needed {
		delete(m.idle, zone)
		return time.Time{}, false
	}
	if _, ok := m.idle[zone]; !ok {
		m.idle[zone] = now
	}
	return m.idle[zone], true
}

func (m *memory) wrote(zone v1alpha1.TemplateZone, settings string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.written[zone] = settings
}

func (m *memory) hasWritten(zone v1alpha1.TemplateZone, settings string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.written[zone] == settings
}

// sweepInterval is how often images are looked through without a reason.
const sweepInterval = 10 * time.Minute

// sweepDue tells whether a Host's images are to be looked through: there is a reason, or
// they were not for a long time and the Cluster has a call to spare.
func (m *memory) sweepDue(region, host string, now time.Time, spare func() bool) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	last, ok := m.swept[region+"/"+host]
	if ok && now.Sub(last) >= sweepInterval && spare() {
		delete(m.swept, region+"/"+host)
		return true
	}
	return !ok
}

func (m *memory) sweptAt(region, host string, now time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.swept[region+"/"+host] = now
}

// sweepSoon asks for a look at a Host's images, or at those of all Hosts.
func (m *memory) sweepSoon() {
	m.mu.Lock()
	defer m.mu.Unlock()
	clear(m.swept)
}

// words of a state for the condition.
func (s state) words() string {
	text := ""
	switch {
	case s.doing != "" && s.failure != "":
		text = fmt.Sprintf("%s, after: %s", s.doing, s.failure)
	case s.doing != "":
		text = s.doing
	case s.failure != "":
		text = s.failure
	default:
		text = "waiting for its turn"
	}
	if s.lost != 0 {
		text = fmt.Sprintf("template %d is not there any more, it is made anew: %s", s.lost, text)
	}
	return text
}
