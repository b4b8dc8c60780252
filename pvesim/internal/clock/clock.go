// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Package clock scales simulated time: durations pass faster than real ones, and the order of events stays the same.
//
// Waits (task durations, lock timeouts, polling intervals) are divided by a speed factor. Timestamps that clients see
// are wall-clock times, because clients compare them with their own clock (token expiry, task start times).
package clock

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// Clock scales waits. The zero value is not usable; call New.
type Clock struct {
	// RealLockTimeouts makes lock timeouts pass in real time. It is set before the clock is used.
	RealLockTimeouts bool

	speed float64
	skew  atomic.Int64
}

// New returns a clock on which time passes speed times faster than real time. A speed of zero or less means 1.
func New(speed float64) *Clock {
	if speed <= 0 {
		speed = 1
	}
	return &Clock{speed: speed}
}

// Now returns the wall-clock time of the simulated hosts, including the skew.
func (c *Clock) Now() time.Time { return time.Now().Add(time.Duration(c.skew.Load())) }

// SetSkew sets the offset between the wall clock of the hosts and the real one.
func (c *Clock) SetSkew(d time.Duration) { c.skew.Store(int64(d)) }

// Real returns the real duration of a simulated one.
func (c *Clock) Real(d time.Duration) time.Duration { return time.Duration(float64(d) / c.speed) }

// maxTimeoutSpeed limits how much faster timeouts pass than in reality. Work needs real CPU time: at a speed of 100 on
// a busy machine, waits would exceed timeouts that a real host meets.
const maxTimeoutSpeed = 10

// Timeout returns the real duration of a simulated timeout. Timeouts keep their order.
func (c *Clock) Timeout(d time.Duration) time.Duration {
	return time.Duration(float64(d) / min(c.speed, maxTimeoutSpeed))
}

// LockTimeout returns the real duration of a simulated timeout of a lock or of another wait for other requests.
func (c *Clock) LockTimeout(d time.Duration) time.Duration {
	if c.RealLockTimeouts {
		return d
	}
	return c.Timeout(d)
}

// Sleep waits for d of simulated time. It returns the error of the context if the context ends first.
func (c *Clock) Sleep(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return ctx.Err()
	}
	timer := time.NewTimer(c.Real(d))
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Group waits for goroutines. Unlike with sync.WaitGroup, goroutines can start while Wait blocks, which happens when a
// simulator is closed during activity.
type Group struct {
	mu   sync.Mutex
	idle *sync.Cond
	n    int
}

// NewGroup returns an empty group.
func NewGroup() *Group {
	g := &Group{}
	g.idle = sync.NewCond(&g.mu)
	return g
}

// Go runs f in a goroutine of the group.
func (g *Group) Go(f func()) {
	g.mu.Lock()
	g.n++
	g.mu.Unlock()
	go func() {
		defer func() {
			g.mu.Lock()
			defer g.mu.Unlock()
			if g.n--; g.n == 0 {
				g.idle.Broadcast()
			}
		}()
		f()
	}()
}

// Wait blocks until no goroutine of the group runs.
func (g *Group) Wait() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for g.n > 0 {
		g.idle.Wait()
	}
}
