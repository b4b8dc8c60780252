// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"time"

	"k8s.io/utils/clock"
)

// Clock is simulated time. It runs as much faster than real time as the simulator, so
// timeouts, backoffs and grace periods keep their proportions.
type Clock struct {
	clock.RealClock
	began time.Time
	speed float64
}

// NewClock returns a clock that starts at the current time.
func NewClock(speed float64) *Clock { return &Clock{began: time.Now(), speed: speed} }

// Now returns the simulated time.
func (c *Clock) Now() time.Time { return c.began.Add(c.skew() + time.Since(c.began)) }

// skew returns how far simulated time is ahead of real time.
func (c *Clock) skew() time.Duration {
	return time.Duration(float64(time.Since(c.began)) * (c.speed - 1))
}

// Since returns the simulated time since t.
func (c *Clock) Since(t time.Time) time.Duration { return c.Now().Sub(t) }

// Real returns how long a simulated duration takes.
func (c *Clock) Real(d time.Duration) time.Duration { return time.Duration(float64(d) / c.speed) }

// Simulated returns how much simulated time passes in a real duration.
func (c *Clock) Simulated(d time.Duration) time.Duration {
	return time.Duration(float64(d) * c.speed)
}

// After waits for simulated time.
func (c *Clock) After(d time.Duration) <-chan time.Time { return time.After(c.Real(d)) }

// NewTimer waits for simulated time.
func (c *Clock) NewTimer(d time.Duration) clock.Timer { return c.RealClock.NewTimer(c.Real(d)) }

// Sleep waits for simulated time.
func (c *Clock) Sleep(d time.Duration) { time.Sleep(c.Real(d)) }

// Tick ticks in simulated time.
func (c *Clock) Tick(d time.Duration) <-chan time.Time { return c.RealClock.Tick(c.Real(d)) }

// NewTicker ticks in simulated time.
func (c *Clock) NewTicker(d time.Duration) clock.Ticker { return c.RealClock.NewTicker(c.Real(d)) }
