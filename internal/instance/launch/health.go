// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"k8s.io/utils/clock"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// consecutiveFailures is how many failures in a row make launches of a class unhealthy.
const consecutiveFailures = 3

// Health tracks the results of the recent launches of each NodeClass.
type Health struct {
	mu      sync.Mutex
	byClass map[string]failures
}

type failures struct {
	count   int
	reason  string
	message string
	// forbidden is the last missing privilege by region.
	forbidden map[string]proxmox.ForbiddenError
}

// NewHealth returns a Health.
func NewHealth() *Health { return &Health{byClass: map[string]failures{}} }

// RecordFailure records that a launch of a class in a region failed permanently.
func (h *Health) RecordFailure(class, region, reason string, cause error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	f := h.byClass[class]
	f.count, f.reason, f.message = f.count+1, reason, cause.Error()
	if forbidden, ok := errors.AsType[*proxmox.ForbiddenError](cause); ok {
		f.forbidden = maps.Clone(f.forbidden)
		if f.forbidden == nil {
			f.forbidden = map[string]proxmox.ForbiddenError{}
		}
		f.forbidden[region] = *forbidden
	}
	h.byClass[class] = f
}

// Forbidden returns the missing privileges that made launches of a class fail since its
// last success, one by region. The map must not be modified.
func (h *Health) Forbidden(class string) map[string]proxmox.ForbiddenError {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.byClass[class].forbidden
}

// RecordSuccess records that a launch of a class succeeded.
func (h *Health) RecordSuccess(class string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.byClass[class] = failures{}
}

// Reset discards the failures of a class, after it was changed or a privilege was granted.
func (h *Health) Reset(class string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.byClass, class)
}

// Get reports whether launches of a class fail, with the reason and message of the last
// failure. known is false before the first launch since the start.
func (h *Health) Get(class string) (known, failing bool, reason, message string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	f, known := h.byClass[class]
	if f.count < consecutiveFailures {
		return known && f.count == 0, false, "", ""
	}
	return true, true, f.reason, fmt.Sprintf("%d launches in a row failed, the last with: %s", f.count, f.message)
}

// slowCloneBackoff is how long slow clones make a storage unavailable.
const slowCloneBackoff = time.Hour

// CloneTimes evaluates how long clones take.
type CloneTimes struct {
	// Slow causes a warning, TooSlow makes a storage unavailable.
	Slow, TooSlow time.Duration

	clock clock.PassiveClock
	mu    sync.Mutex
	// measured by storage.
	measured map[storage]cloneTime
}

type storage struct{ region, host, name string }

// cloneTime is what was measured on a storage.
type cloneTime struct {
	// recent are the durations of the last clones, at most recentClones.
	recent []time.Duration
	// tooSlowSince is when the storage became unavailable; zero if it is available.
	tooSlowSince time.Time
}

// recentClones is how many clones in a row must be slow to count: one may have waited for another.
const recentClones = 3

// NewCloneTimes returns a CloneTimes.
func NewCloneTimes(deps instance.Deps) *CloneTimes {
	return &CloneTimes{
		Slow: deps.Settings.CloneSlowAfter, TooSlow: deps.Settings.CloneRefuseAfter,
		clock: deps.Clock, measured: map[storage]cloneTime{},
	}
}

// observe records how long the clone of a VM took.
func (c *CloneTimes) observe(in instance.Intent, took time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	key := storage{in.Region, in.Host, in.Storage}
	measured := c.measured[key]
	measured.recent = append(slices.Clone(measured.recent), took)
	measured.recent = measured.recent[max(0, len(measured.recent)-recentClones):]
	c.measured[key] = measured
}

// Get returns how long a clone on a storage takes, as measured; zero if none was.
func (c *CloneTimes) Get(region, host, name string) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	if recent := c.measured[storage{region, host, name}].recent; len(recent) > 0 {
		return slices.Min(recent)
	}
	return 0
}

// Evaluate compares the time of clones on a storage with core's timeouts: a refusal
// explains why no VM can be launched there, a warning that clones are almost too slow.
// After an hour the storage is tried again.
func (c *CloneTimes) Evaluate(region, host, name string) (refusal, warning string) {
	took := c.Get(region, host, name)
	if took >= c.TooSlow && c.resetIfBackoffExpired(storage{region, host, name}) {
		took = 0
	}
	text := fmt.Sprintf("clones take about %s on this storage; Karpenter's timeout is 10m for a replacement and 15m for the registration of a node; "+
		"put the template on a storage that can link clones (LVM-thin, ZFS, Ceph RBD, or a directory with qcow2)", took.Round(time.Second))
	switch {
	case took >= c.TooSlow:
		return text, ""
	case took >= c.Slow:
		return "", text
	}
	return "", ""
}

// resetIfBackoffExpired starts the backoff of a storage, or forgets its clones and returns true if
// it has expired.
func (c *CloneTimes) resetIfBackoffExpired(key storage) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	measured := c.measured[key]
	switch {
	case measured.tooSlowSince.IsZero():
		measured.tooSlowSince = c.clock.Now()
		c.measured[key] = measured
		return false
	case c.clock.Since(measured.tooSlowSince) < slowCloneBackoff:
		return false
	}
	delete(c.measured, key)
	return true
}
