// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Package clock lets simulated durations pass faster than real ones while the order of events stays the same.
//
// Waits (task durations, lock time-outs, polling periods) are divided by a speed factor. Time stamps that a client can
// see are wall-clock times, because clients compare them with their own clock (token expiry, task start times).
package clock

import (
	"context"
	"sync/atomic"
	"time"
)

// Clock scales waits. The zero value is not usable; call New.
type Clock struct {
	speed float64
	skew  atomic.Int64
}

// New returns a clock on which simulated time passes speed times faster than real time. A speed of zero or less means 1.
func New(speed float64) *Clock {
	if speed <= 0 {
		speed = 1
	}
	return &Clock{speed: speed}
}

// Now is the wall-clock time that the simulated hosts show, including any skew that a fault has set.
func (c *Clock) Now() time.Time { return time.Now().Add(time.Duration(c.skew.Load())) }

// SetSkew moves the hosts' wall clock relative to the real one.
func (c *Clock) SetSkew(d time.Duration) { c.skew.Store(int64(d)) }

// Real converts a simulated duration into the real time to wait for it.
func (c *Clock) Real(d time.Duration) time.Duration { return time.Duration(float64(d) / c.speed) }

// maxTimeoutSpeed bounds how much faster time-outs pass than in reality. Work is done by goroutines that need real CPU
// time: at a speed of 100 a busy machine would turn short waits into time-outs that no Proxmox would have had.
const maxTimeoutSpeed = 25

// Timeout converts the time after which somebody gives up. All time-outs keep their order among each other.
func (c *Clock) Timeout(d time.Duration) time.Duration {
	return time.Duration(float64(d) / min(c.speed, maxTimeoutSpeed))
}

// Sleep waits for d of simulated time and reports the context's error if that ends first.
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
