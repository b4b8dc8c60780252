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

// Health tracks the results of the recent launches of each NodeClass, and how long clones take on
// each storage.
type Health struct {
	// Clones that take as long as Slow cause a warning, as TooSlow make their storage unavailable.
	Slow, TooSlow time.Duration

	clock   clock.PassiveClock
	mu      sync.Mutex
	byClass map[string]failures
	clones  map[storage]clones
}

type failures struct {
	count   int
	reason  string
	message string
	// forbidden is the last missing privilege by region.
	forbidden map[string]proxmox.ForbiddenError
}

// NewHealth returns a Health.
func NewHealth(deps instance.Deps) *Health {
	return &Health{
		Slow: deps.Settings.CloneSlowAfter, TooSlow: deps.Settings.CloneRefuseAfter,
		clock: deps.Clock, byClass: map[string]failures{}, clones: map[storage]clones{},
	}
}

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

// recentClones is how many clones in a row must be slow to count: one may have waited for another.
const recentClones = 3

// slowCloneBackoff is how long slow clones make a storage unavailable.
const slowCloneBackoff = time.Hour

type storage struct{ region, host, name string }

// clones are the durations of the last clones on a storage, at most recentClones, and when the last
// one ended.
type clones struct {
	took []time.Duration
	last time.Time
}

// observeClone records how long the clone of a VM took.
func (h *Health) observeClone(in instance.Intent, took time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	key := storage{in.Region, in.Host, in.Storage}
	recent := append(slices.Clone(h.clones[key].took), took)
	h.clones[key] = clones{recent[max(0, len(recent)-recentClones):], h.clock.Now()}
}

// CloneTime returns how long a clone on a storage takes, as measured; zero if none was. A storage
// whose clones are too slow is tried again an hour after the last one.
func (h *Health) CloneTime(region, host, name string) time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	measured, ok := h.clones[storage{region, host, name}]
	if !ok {
		return 0
	}
	took := slices.Min(measured.took)
	if took >= h.TooSlow && h.clock.Since(measured.last) >= slowCloneBackoff {
		return 0
	}
	return took
}

// EvaluateClones compares the time of clones on a storage with core's timeouts: a refusal
// explains why no VM can be launched there, a warning that clones are almost too slow.
func (h *Health) EvaluateClones(region, host, name string) (refusal, warning string) {
	took := h.CloneTime(region, host, name)
	text := fmt.Sprintf("clones take about %s on this storage; Karpenter's timeout is 10m for a replacement and 15m for the registration of a node; "+
		"put the template on a storage that can link clones (LVM-thin, ZFS, Ceph RBD, or a directory with qcow2)", took.Round(time.Second))
	switch {
	case took >= h.TooSlow:
		return text, ""
	case took >= h.Slow:
		return "", text
	}
	return "", ""
}
