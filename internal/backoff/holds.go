// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package backoff

import (
	"maps"
	"sync"
	"time"

	"k8s.io/utils/clock"
)

// Holds keep what failed, each with a key, from being tried again too soon. They are safe for concurrent use.
type Holds[K comparable] struct {
	clock  clock.PassiveClock
	delays Exponential

	mu         sync.Mutex
	byKey      map[K]hold
	generation uint64
}

type hold struct {
	until    time.Time
	reason   string
	failures int
}

// NewHolds returns Holds. The delays are those after failures.
func NewHolds[K comparable](c clock.PassiveClock, delays Exponential) *Holds[K] {
	return &Holds[K]{clock: c, delays: delays, byKey: map[K]hold{}}
}

// Add holds a key for a time. It never shortens a hold.
func (h *Holds[K]) Add(key K, reason string, d time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.evict()
	before, until := h.byKey[key], h.clock.Now().Add(d)
	if !before.until.After(until) {
		h.set(key, hold{until: until, reason: reason, failures: before.failures})
	}
}

// Fail records a failure of a key, and returns how long the key is held. A failure during a hold
// began before it and does not count. The delays begin again twice the longest delay after the last
// failure.
func (h *Holds[K]) Fail(key K) time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.evict()
	now, before := h.clock.Now(), h.byKey[key]
	if now.Before(before.until) {
		return before.until.Sub(now)
	}
	delay := h.delays.Delay(before.failures)
	h.set(key, hold{until: now.Add(delay), failures: before.failures + 1})
	return delay
}

// Get returns until when a key is held and why; false if it is not held.
func (h *Holds[K]) Get(key K) (reason string, until time.Time, held bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	found := h.byKey[key]
	return found.reason, found.until, found.until.After(h.clock.Now())
}

// Clear ends the matching holds and forgets their failures.
func (h *Holds[K]) Clear(matches func(K) bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.deleteFunc(func(key K, _ hold) bool { return matches(key) })
}

// Generation returns a number that changes when a hold begins or ends.
func (h *Holds[K]) Generation() uint64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.evict()
	return h.generation
}

// set, evict and deleteFunc need the lock.
func (h *Holds[K]) set(key K, to hold) {
	h.byKey[key] = to
	h.generation++
}

// evict removes the holds that have ended and whose failures do not count any more.
func (h *Holds[K]) evict() {
	now := h.clock.Now()
	h.deleteFunc(func(_ K, found hold) bool {
		if found.failures > 0 {
			return now.Sub(found.until)+h.delays.Delay(found.failures-1) > 2*h.delays.Max
		}
		return !found.until.After(now)
	})
}

func (h *Holds[K]) deleteFunc(matches func(K, hold) bool) {
	before := len(h.byKey)
	if maps.DeleteFunc(h.byKey, matches); len(h.byKey) != before {
		h.generation++
	}
}
