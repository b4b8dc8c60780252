// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"fmt"
	"sync"
	"time"
)

const (
	// failuresInARow make launches of a class count as failing.
	failuresInARow = 3
	// refusalLife is how long slow clones keep a Host out.
	refusalLife = time.Hour
	// kindClone and kindDestroy are the types of those tasks.
	kindClone, kindDestroy = "qmclone", "qmdestroy"
)

// health remembers how the launches of each NodeClass went lately.
type health struct {
	mu      sync.Mutex
	byClass map[string]streak
	// refused is since when clones are too slow, by durationKey.
	refused map[string]time.Time
}

type streak struct {
	failures int
	reason   string
	message  string
}

func newHealth() *health {
	return &health{byClass: map[string]streak{}, refused: map[string]time.Time{}}
}

// refusalOver notes since when clones are refused somewhere, and tells when that is
// long enough.
func (h *health) refusalOver(key string, now time.Time) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	since, ok := h.refused[key]
	if !ok {
		h.refused[key] = now
		return false
	}
	if now.Sub(since) < refusalLife {
		return false
	}
	delete(h.refused, key)
	return true
}

func (h *health) failed(class, reason, message string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.byClass[class] = streak{failures: h.byClass[class].failures + 1, reason: reason, message: message}
}

func (h *health) succeeded(class string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.byClass[class] = streak{}
}

// LaunchFailed notes that a launch of a class ended for good.
func (p *Provider) LaunchFailed(class, reason string, cause error) {
	p.health.failed(class, reason, cause.Error())
}

// Forgive forgets the failures of a class that was changed since.
func (p *Provider) ResetFailures(class string) {
	p.health.mu.Lock()
	delete(p.health.byClass, class)
	p.health.mu.Unlock()
	p.Types.ResetFailures(class)
}

// LaunchHealth tells how launches of a class go: known is false before the first
// one since the start; a failing one comes with reason and last message.
func (p *Provider) LaunchHealth(class string) (known, failing bool, reason, message string) {
	p.health.mu.Lock()
	defer p.health.mu.Unlock()
	s, known := p.health.byClass[class]
	if s.failures < failuresInARow {
		return known && s.failures == 0, false, "", ""
	}
	return true, true, s.reason, fmt.Sprintf("%d launches in a row failed, the last with: %s", s.failures, s.message)
}

// CloneTime is how long a clone on that storage takes, as learned; zero when none
// was seen.
func (p *Provider) CloneTime(region, host, storage string) time.Duration {
	return p.durations.Learned(kindClone, durationKey(region, host, storage))
}

// EvaluateCloneTime holds the time of clones on a storage against core's patience: a
// refusal says why no VM can be launched there, a warning that it is close. A
// refusal ends after an hour: a storage that was busy for once is tried again.
func (p *Provider) EvaluateCloneTime(region, host, storage string) (refusal, warning string) {
	took := p.CloneTime(region, host, storage)
	if took >= p.Settings.TooSlowClone && p.health.refusalOver(durationKey(region, host, storage), p.Clock.Now()) {
		p.durations.Reset(kindClone, durationKey(region, host, storage))
		took = 0
	}
	text := fmt.Sprintf("a clone takes about %s there, and Karpenter gives up on a replacement after 10m and on a node that has not registered after 15m; "+
		"put the template on a storage that can link clones (LVM-thin, ZFS, Ceph RBD, or a directory with qcow2)", took.Round(time.Second))
	switch {
	case took >= p.Settings.TooSlowClone:
		return text, ""
	case took >= p.Settings.SlowClone:
		return "", text
	}
	return "", ""
}

// durationKey is what a task's time depends on beside its kind.
func durationKey(region, host, storage string) string { return region + "/" + host + "/" + storage }
