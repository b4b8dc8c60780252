// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"sync"
	"time"

	"k8s.io/utils/clock"
)

// Avoidance is how long an offering is left alone after a failed launch.
type FailureBackoff struct {
	// First follows a first failure; it doubles up to Longest while a pool fails for
	// the same cause.
	Initial, Max time.Duration
}

// backoff lengthens the avoidance of offerings while launches of a pool keep
// failing for one cause: a VM that cannot start must not be cloned again and again.
type backoff struct {
	FailureBackoff
	clock clock.Clock
	mu    sync.Mutex
	runs  map[backoffKey]run
}

type backoffKey struct{ pool, reason string }

type run struct {
	failures int
	last     time.Time
	// until is the end of the avoidance that stands: what fails before it was under
	// way already, and is no new failure.
	until time.Time
}

func newBackoff(c clock.Clock, a FailureBackoff) *backoff {
	return &backoff{FailureBackoff: a, clock: c, runs: map[backoffKey]run{}}
}

// failed counts a failure and says for how long to stay away. A quiet spell twice
// as long as the longest avoidance begins a new run.
func (b *backoff) failed(pool, reason string) time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	now, key := b.clock.Now(), backoffKey{pool, reason}
	r := b.runs[key]
	if now.Sub(r.last) > 2*b.Max {
		r = run{}
	}
	if now.Before(r.until) {
		return r.until.Sub(now)
	}
	avoid := min(b.Initial<<min(r.failures, 10), b.Max)
	b.runs[key] = run{failures: r.failures + 1, last: now, until: now.Add(avoid)}
	return avoid
}

// succeeded ends all runs of a pool.
func (b *backoff) succeeded(pool string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for key := range b.runs {
		if key.pool == pool {
			delete(b.runs, key)
		}
	}
}
