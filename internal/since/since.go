// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Package since remembers since when something is in a state, such as since when a VM is an orphan.
package since

import (
	"maps"
	"time"

	"k8s.io/utils/clock"
)

// Times are since when keys are in a state. They are not safe for concurrent use. A restart of the
// process loses them, so each state begins again.
type Times[K comparable] struct {
	clock clock.PassiveClock
	byKey map[K]time.Time
}

// New returns Times without keys.
func New[K comparable](c clock.PassiveClock) Times[K] {
	return Times[K]{clock: c, byKey: map[K]time.Time{}}
}

// Observe records that a key is in the state, and returns since when.
func (t Times[K]) Observe(key K) time.Time {
	if _, known := t.byKey[key]; !known {
		t.byKey[key] = t.clock.Now()
	}
	return t.byKey[key]
}

// End records that the matching keys are not in the state any more.
func (t Times[K]) End(matches func(K) bool) {
	maps.DeleteFunc(t.byKey, func(key K, _ time.Time) bool { return matches(key) })
}
