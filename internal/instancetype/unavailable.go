// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package instancetype

import (
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/utils/clock"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/placement"
)

// AllTypes marks every instance type of a zone.
const AllTypes = ""

// unavailable holds offerings that failed lately, until their time is up.
type unavailable struct {
	clock clock.Clock

	generation atomic.Uint64
	expiry     atomic.Int64 // when the next mark ends, Unix nanoseconds

	mu    sync.RWMutex
	marks map[markKey]mark
}

type markKey struct {
	zone         placement.Zone
	instanceType string
}

type mark struct {
	reason string
	until  time.Time
}

func newUnavailable(c clock.Clock) *unavailable {
	u := &unavailable{clock: c, marks: map[markKey]mark{}}
	u.expiry.Store(math.MaxInt64)
	return u
}

// set marks an offering. A later end replaces an earlier one, never the reverse.
func (u *unavailable) set(key markKey, reason string, ttl time.Duration) {
	u.mu.Lock()
	defer u.mu.Unlock()
	until := u.clock.Now().Add(ttl)
	if standing, ok := u.marks[key]; ok && standing.until.After(until) {
		return
	}
	u.marks[key] = mark{reason: reason, until: until}
	u.changed()
}

// current drops the marks whose time is up and gives the generation of the rest.
func (u *unavailable) current() uint64 {
	now := u.clock.Now()
	if now.UnixNano() < u.expiry.Load() {
		return u.generation.Load()
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	for key, m := range u.marks {
		if !m.until.After(now) {
			delete(u.marks, key)
		}
	}
	u.changed()
	return u.generation.Load()
}

// changed counts a change and finds the next end. The caller holds the lock.
func (u *unavailable) changed() {
	next := int64(math.MaxInt64)
	for _, m := range u.marks {
		next = min(next, m.until.UnixNano())
	}
	u.expiry.Store(next)
	u.generation.Add(1)
}

// reason tells why an offering is marked; empty when it is not.
func (u *unavailable) reason(zone placement.Zone, instanceType string) string {
	u.mu.RLock()
	defer u.mu.RUnlock()
	m, ok := u.marks[markKey{zone, AllTypes}]
	if !ok {
		m, ok = u.marks[markKey{zone, instanceType}]
	}
	if !ok {
		return ""
	}
	return fmt.Sprintf("failed lately, tried again at %s: %s", m.until.UTC().Format(time.RFC3339), m.reason)
}

// isMarked is reason without the words.
func (u *unavailable) isMarked(zone placement.Zone, instanceType string) bool {
	u.mu.RLock()
	defer u.mu.RUnlock()
	if len(u.marks) == 0 {
		return false
	}
	_, all := u.marks[markKey{zone, AllTypes}]
	_, one := u.marks[markKey{zone, instanceType}]
	return all || one
}
