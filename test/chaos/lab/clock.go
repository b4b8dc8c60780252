// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"time"

	"k8s.io/utils/clock"
)

// Clock is simulated time: it passes as much faster as the simulator works, so
// that the product's patience, back-off and grace periods keep the proportions
// that they have in real life.
type Clock struct {
	clock.RealClock
	began time.Time
	speed float64
}

// NewClock starts now.
func NewClock(speed float64) *Clock { return &Clock{began: time.Now(), speed: speed} }

// Now is the simulated time.
func (c *Clock) Now() time.Time { return c.began.Add(c.ahead() + time.Since(c.began)) }

// ahead is how far simulated time has run away from the real one.
func (c *Clock) ahead() time.Duration {
	return time.Duration(float64(time.Since(c.began)) * (c.speed - 1))
}

// Since is simulated, too.
func (c *Clock) Since(t time.Time) time.Duration { return c.Now().Sub(t) }

// Real is how long a simulated duration takes.
func (c *Clock) Real(d time.Duration) time.Duration { return time.Duration(float64(d) / c.speed) }

// Simulated is how much simulated time passes in a real duration.
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
