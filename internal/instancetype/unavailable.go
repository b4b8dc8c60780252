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

// Offerings names what a failed launch speaks about: a type in a zone. An empty
// InstanceType means every type; an empty NodeClass means every class, since a
// full storage hits all of them, and a broken template only its own.
type Offerings struct {
	Zone         placement.Zone
	InstanceType string
	NodeClass    string
}

// unavailable holds offerings that failed lately, until their time is up.
type unavailable struct {
	clock clock.Clock

	generation atomic.Uint64
	expiry     atomic.Int64 // when the next mark ends, Unix nanoseconds

	mu    sync.RWMutex
	marks map[Offerings]mark
}

type mark struct {
	reason string
	until  time.Time
}

func newUnavailable(c clock.Clock) *unavailable {
	u := &unavailable{clock: c, marks: map[Offerings]mark{}}
	u.expiry.Store(math.MaxInt64)
	return u
}

// set marks an offering. A later end replaces an earlier one, never the reverse.
func (u *unavailable) set(key Offerings, reason string, ttl time.Duration) {
	u.mu.Lock()
	defer u.mu.Unlock()
	until := u.clock.Now().Add(ttl)
	if standing, ok := u.marks[key]; ok && standing.until.After(until) {
		return
	}
	u.marks[key] = mark{reason: reason, until: until}
	u.changed()
}

// forgive drops the marks of one NodeClass.
func (u *unavailable) forgive(nodeClass string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	before := len(u.marks)
	maps.DeleteFunc(u.marks, func(what Offerings, _ mark) bool { return what.NodeClass == nodeClass && nodeClass != "" })
	if len(u.marks) != before {
		u.changed()
	}
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
func (u *unavailable) reason(what Offerings) string {
	m, ok := u.find(what)
	if !ok {
		return ""
	}
	return fmt.Sprintf("failed lately, tried again at %s: %s", m.until.UTC().Format(time.RFC3339), m.reason)
}

// find looks for a mark of the offering, or of one that includes it.
func (u *unavailable) find(what Offerings) (mark, bool) {
	u.mu.RLock()
	defer u.mu.RUnlock()
	if len(u.marks) == 0 {
		return mark{}, false
	}
	for _, instanceType := range [...]string{"", what.InstanceType} {
		for _, nodeClass := range [...]string{"", what.NodeClass} {
			if m, ok := u.marks[Offerings{what.Zone, instanceType, nodeClass}]; ok {
				return m, true
			}
		}
	}
	return mark{}, false
}
