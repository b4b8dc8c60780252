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

// Clock waits as much shorter as the simulator is faster, and can be set forward.
type Clock struct {
	clock.RealClock
	ahead atomic.Int64
}

// Advance sets the clock forward.
func (c *Clock) Advance(d time.Duration) { c.ahead.Add(int64(d)) }

// Now is the real time plus all advances.
func (c *Clock) Now() time.Time { return time.Now().Add(time.Duration(c.ahead.Load())) }

// Since counts from Now.
func (c *Clock) Since(t time.Time) time.Duration { return c.Now().Sub(t) }

// After is hurried.
func (c *Clock) After(d time.Duration) <-chan time.Time { return time.After(d / Speed) }

// NewTimer is hurried.
func (c *Clock) NewTimer(d time.Duration) clock.Timer { return c.RealClock.NewTimer(d / Speed) }

// Sleep is hurried.
func (c *Clock) Sleep(d time.Duration) { time.Sleep(d / Speed) }

// calendar has the time of a Clock, and waits in real time: what polls on it is not
// hurried.
type calendar struct {
	clock.RealClock
	of *Clock
}

// Now is the Clock's.
func (c calendar) Now() time.Time { return c.of.Now() }

// Since counts from Now.
func (c calendar) Since(t time.Time) time.Duration { return c.of.Since(t) }
