// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// lookInterval is short enough to see each phase of a VM.
const lookInterval = 300 * time.Millisecond

// Watch looks at the world again and again, reports it, and lets others wait
// for it to be as they want it.
type Watch struct {
	observer *observer
	report   *Reporter

	mu    sync.Mutex
	world World
	news  chan struct{} // closed and replaced at each look
}

// NewWatch prepares a watch over a stage.
func NewWatch(stage *Stage, report *Reporter) *Watch {
	return &Watch{observer: stage.observer(), report: report, news: make(chan struct{})}
}

// run looks until the context ends. A look that fails is left out: what is
// broken for good shows in the steps that wait.
func (w *Watch) run(ctx context.Context) {
	tick := time.NewTicker(lookInterval)
	defer tick.Stop()
	for {
		if world, err := w.observer.look(ctx); err == nil {
			w.mu.Lock()
			w.world = world
			close(w.news)
			w.news = make(chan struct{})
			w.mu.Unlock()
			w.report.Observe(world)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// until waits for the world to be as described, and gives the time it took.
func (w *Watch) until(ctx context.Context, what string, is func(World) bool) (time.Duration, error) {
	began := time.Now()
	// What was seen before this call, or is being looked at just now, may be
	// older than what the caller just did: two looks must pass.
	for looks := 0; ; looks++ {
		w.mu.Lock()
		world, news := w.world, w.news
		w.mu.Unlock()
		if looks > 1 && is(world) {
			return time.Since(began), nil
		}
		select {
		case <-news:
		case <-ctx.Done():
			return 0, fmt.Errorf("waiting for %s: %w", what, context.Cause(ctx))
		}
	}
}

// now is what was seen last.
func (w *Watch) now() World {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.world
}
