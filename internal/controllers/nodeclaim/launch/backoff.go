// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"sync"
	"time"

	"k8s.io/utils/clock"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/backoff"
)

// failureBackoff increases the delay while launches of a NodePool keep failing for one reason: a
// VM that cannot start must not be cloned repeatedly.
type failureBackoff struct {
	backoff.Exponential
	clock clock.Clock
	mu    sync.Mutex
	byKey map[backoffKey]failures
}

type backoffKey struct{ pool, reason string }

type failures struct {
	count int
	last  time.Time
	// until is the end of the current backoff: launches that fail before it were already
	// in progress, and do not count.
	until time.Time
}

func newFailureBackoff(c clock.Clock, delays backoff.Exponential) *failureBackoff {
	return &failureBackoff{Exponential: delays, clock: c, byKey: map[backoffKey]failures{}}
}

// recordFailure records a failure and returns how long to avoid the offering. The count restarts
// after twice the longest backoff without a failure.
func (b *failureBackoff) recordFailure(pool, reason string) time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	now, key := b.clock.Now(), backoffKey{pool, reason}
	f := b.byKey[key]
	if now.Sub(f.last) > 2*b.Max {
		f = failures{}
	}
	if now.Before(f.until) {
		return f.until.Sub(now)
	}
	delay := b.Delay(f.count)
	b.byKey[key] = failures{count: f.count + 1, last: now, until: now.Add(delay)}
	return delay
}

// recordSuccess resets the backoff of a NodePool.
func (b *failureBackoff) recordSuccess(pool string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for key := range b.byKey {
		if key.pool == pool {
			delete(b.byKey, key)
		}
	}
}
