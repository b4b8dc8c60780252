// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package testenv

import (
	"sync/atomic"
	"time"

	"k8s.io/utils/clock"
)

// Speed is how much faster than real time Proxmox and all waits are.
const Speed = 50

// Clock shortens waits by Speed, and can be advanced.
type Clock struct {
	clock.RealClock
	ahead atomic.Int64
}

// Advance advances the clock.
func (c *Clock) Advance(d time.Duration) { c.ahead.Add(int64(d)) }

// Now returns the real time plus all advances.
func (c *Clock) Now() time.Time { return time.Now().Add(time.Duration(c.ahead.Load())) }

// Since returns the time since t, relative to Now.
func (c *Clock) Since(t time.Time) time.Duration { return c.Now().Sub(t) }

// After waits for the shortened duration.
func (c *Clock) After(d time.Duration) <-chan time.Time { return time.After(d / Speed) }

// NewTimer returns a timer of the shortened duration.
func (c *Clock) NewTimer(d time.Duration) clock.Timer { return c.RealClock.NewTimer(d / Speed) }

// Sleep sleeps for the shortened duration.
func (c *Clock) Sleep(d time.Duration) { time.Sleep(d / Speed) }

// unscaledClock has the time of a Clock and waits in real time: polling is not
// accelerated.
type unscaledClock struct {
	clock.RealClock
	of *Clock
}

// Now returns the time of the Clock.
func (c unscaledClock) Now() time.Time { return c.of.Now() }

// Since returns the time since t, relative to Now.
func (c unscaledClock) Since(t time.Time) time.Duration { return c.of.Since(t) }
