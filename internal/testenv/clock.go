// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package testenv

import (
	"sync/atomic"
	"time"

	"k8s.io/utils/clock"
)

// Speed is how much faster than real time Proxmox and all waits of an Env are.
const Speed = 50

// Clock accelerates all waits by its speed, and can be advanced.
type Clock struct {
	clock.RealClock
	speed float64
	// began is when simulated time equaled real time; zero if only waits are accelerated.
	began time.Time
	ahead *atomic.Int64
}

// NewClock returns a clock on which time passes at the given speed, so timeouts, backoffs
// and grace periods keep their proportions.
func NewClock(speed float64) *Clock {
	return &Clock{speed: speed, began: time.Now(), ahead: &atomic.Int64{}}
}

// NewSteppedClock returns a clock on which only waits are accelerated: its time is the real
// time plus all advances.
func NewSteppedClock(speed float64) *Clock { return &Clock{speed: speed, ahead: &atomic.Int64{}} }

// unscaled returns a clock with the time of a stepped clock whose waits are not accelerated.
func (c *Clock) unscaled() *Clock { return &Clock{speed: 1, ahead: c.ahead} }

// Advance advances the clock. In a simulation, everything that happens meanwhile happens.
func (c *Clock) Advance(d time.Duration) {
	if inSimulation() {
		time.Sleep(d)
		return
	}
	c.ahead.Add(int64(d))
}

// Now returns the simulated time.
func (c *Clock) Now() time.Time { return time.Now().Add(c.Skew()) }

// Skew returns how far simulated time is ahead of real time.
func (c *Clock) Skew() time.Duration {
	skew := time.Duration(c.ahead.Load())
	if !c.began.IsZero() {
		skew += time.Duration(float64(time.Since(c.began)) * (c.speed - 1))
	}
	return skew
}

// Since returns the simulated time since t.
func (c *Clock) Since(t time.Time) time.Duration { return c.Now().Sub(t) }

// Real returns how long a wait for a simulated duration takes.
func (c *Clock) Real(d time.Duration) time.Duration { return time.Duration(float64(d) / c.speed) }

// After waits for simulated time.
func (c *Clock) After(d time.Duration) <-chan time.Time { return time.After(c.Real(d)) }

// NewTimer returns a timer of simulated time.
func (c *Clock) NewTimer(d time.Duration) clock.Timer { return c.RealClock.NewTimer(c.Real(d)) }

// Sleep sleeps for simulated time.
func (c *Clock) Sleep(d time.Duration) { time.Sleep(c.Real(d)) }

// Tick ticks in simulated time.
func (c *Clock) Tick(d time.Duration) <-chan time.Time { return c.RealClock.Tick(c.Real(d)) }

// NewTicker ticks in simulated time.
func (c *Clock) NewTicker(d time.Duration) clock.Ticker { return c.RealClock.NewTicker(c.Real(d)) }
