// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package instancetype

import (
	"fmt"
	"maps"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/utils/clock"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/placement"
)

// OfferingSelector selects the offerings that a failed launch affects: a type in a zone.
// An empty InstanceType means every type. An empty NodeClass means every NodeClass: a
// full storage affects all of them, an invalid template only its own.
type OfferingSelector struct {
	Zone         placement.Zone
	InstanceType string
	NodeClass    string
}

// unavailableOfferings holds offerings whose launch failed recently, until they expire.
type unavailableOfferings struct {
	clock clock.Clock

	generation atomic.Uint64
	expiry     atomic.Int64 // of the next entry, in Unix nanoseconds

	mu      sync.RWMutex
	entries map[OfferingSelector]unavailableEntry
}

type unavailableEntry struct {
	reason string
	until  time.Time
}

func newUnavailableOfferings(c clock.Clock) *unavailableOfferings {
	u := &unavailableOfferings{clock: c, entries: map[OfferingSelector]unavailableEntry{}}
	u.expiry.Store(math.MaxInt64)
	return u
}

// add marks offerings as unavailable. It never shortens an existing entry.
func (u *unavailableOfferings) add(key OfferingSelector, reason string, ttl time.Duration) {
	u.mu.Lock()
	defer u.mu.Unlock()
	until := u.clock.Now().Add(ttl)
	if existing, ok := u.entries[key]; ok && existing.until.After(until) {
		return
	}
	u.entries[key] = unavailableEntry{reason: reason, until: until}
	u.recordChange()
}

// removeClass removes the entries of one NodeClass.
func (u *unavailableOfferings) removeClass(nodeClass string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	before := len(u.entries)
	maps.DeleteFunc(u.entries, func(offering OfferingSelector, _ unavailableEntry) bool {
		return offering.NodeClass == nodeClass && nodeClass != ""
	})
	if len(u.entries) != before {
		u.recordChange()
	}
}

// expire removes expired entries and returns the generation of the remaining ones.
func (u *unavailableOfferings) expire() uint64 {
	now := u.clock.Now()
	if now.UnixNano() < u.expiry.Load() {
		return u.generation.Load()
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	for key, m := range u.entries {
		if !m.until.After(now) {
			delete(u.entries, key)
		}
	}
	u.recordChange()
	return u.generation.Load()
}

// recordChange updates the generation and the next expiry. The caller holds the lock.
func (u *unavailableOfferings) recordChange() {
	next := int64(math.MaxInt64)
	for _, m := range u.entries {
		next = min(next, m.until.UnixNano())
	}
	u.expiry.Store(next)
	u.generation.Add(1)
}

// reason returns why an offering is marked as unavailable; empty if it is not.
func (u *unavailableOfferings) reason(offering OfferingSelector) string {
	m, ok := u.find(offering)
	if !ok {
		return ""
	}
	return fmt.Sprintf("failed recently, retried at %s: %s", m.until.UTC().Format(time.RFC3339), m.reason)
}

// find returns an entry that includes the offering.
func (u *unavailableOfferings) find(offering OfferingSelector) (unavailableEntry, bool) {
	u.mu.RLock()
	defer u.mu.RUnlock()
	if len(u.entries) == 0 {
		return unavailableEntry{}, false
	}
	for _, instanceType := range [...]string{"", offering.InstanceType} {
		for _, nodeClass := range [...]string{"", offering.NodeClass} {
			if m, ok := u.entries[OfferingSelector{offering.Zone, instanceType, nodeClass}]; ok {
				return m, true
			}
		}
	}
	return unavailableEntry{}, false
}
