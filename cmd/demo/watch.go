// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/fleet/terminal"
)

const (
	// observeInterval is short enough to see each phase of a VM.
	observeInterval = 300 * time.Millisecond
	// progressInterval is how often a wait reports what is missing.
	progressInterval = 30 * time.Second
)

// Watch observes the state periodically, reports it, and lets callers wait for a condition.
type Watch struct {
	observer *observer
	report   *Reporter
	// detail returns more about the state for reports of progress; nil for nothing.
	detail func(State) string

	mu      sync.Mutex
	state   State
	updated chan struct{} // closed and replaced at each observation
}

// NewWatch returns a watch of a stage.
func NewWatch(stage *Stage, report *Reporter) *Watch {
	return &Watch{observer: stage.Observer, report: report, updated: make(chan struct{})}
}

// run observes until the context ends. It ignores failed observations: a permanent failure
// ends the step that waits.
func (w *Watch) run(ctx context.Context) {
	tick := time.NewTicker(observeInterval)
	defer tick.Stop()
	for {
		if state, err := w.observer.observe(ctx); err == nil {
			w.mu.Lock()
			w.state = state
			close(w.updated)
			w.updated = make(chan struct{})
			w.mu.Unlock()
			w.report.Observe(state)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// until waits for the condition and returns how long that took. It reports what is missing
// periodically.
func (w *Watch) until(ctx context.Context, what string, is func(State) bool) (time.Duration, error) {
	began := time.Now()
	progress := time.NewTicker(progressInterval)
	defer progress.Stop()
	// The last observation, and one in progress, may be older than the caller's last action,
	// so two more are needed.
	for observations := 0; ; observations++ {
		w.mu.Lock()
		state, updated := w.state, w.updated
		w.mu.Unlock()
		if observations > 1 && is(state) {
			return time.Since(began), nil
		}
		select {
		case <-updated:
		case <-progress.C:
			w.reportProgress(what, time.Since(began), state)
		case <-ctx.Done():
			return 0, fmt.Errorf("waiting for %s: %w", what, context.Cause(ctx))
		}
	}
}

func (w *Watch) reportProgress(what string, since time.Duration, state State) {
	message := fmt.Sprintf("waiting for %s (%s): %s", what, clock(since), state.describe())
	if w.detail != nil {
		message += w.detail(state)
	}
	w.report.Event(terminal.Dim, "%s", message)
}

// now returns the last observed state.
func (w *Watch) now() State {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.state
}
