// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package vmhealth

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	clocktesting "k8s.io/utils/clock/testing"
)

func TestRestarts(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	clock := clocktesting.NewFakeClock(time.Now())
	r := newRestarts(clock, RestartPolicy{Backoff: time.Minute, Limit: 4})
	for _, pause := range []time.Duration{time.Minute, 2 * time.Minute, 4 * time.Minute, 8 * time.Minute} {
		g.Expect(r.next("vm")).To(Equal(restart))
		g.Expect(r.next("vm")).To(Equal(wait))
		clock.Step(pause - time.Second)
		g.Expect(r.next("vm")).To(Equal(wait))
		clock.Step(time.Second)
	}
	g.Expect(r.next("vm")).To(Equal(replace))
}

func TestRestartsUndo(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	r := newRestarts(clocktesting.NewFakeClock(time.Now()), RestartPolicy{Backoff: time.Minute, Limit: 4})
	for range 10 {
		g.Expect(r.next("vm")).To(Equal(restart))
		r.undo("vm")
	}
}

func TestRestartsReset(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	clock := clocktesting.NewFakeClock(time.Now())
	r := newRestarts(clock, RestartPolicy{Backoff: time.Minute, Limit: 4})
	for range 10 {
		g.Expect(r.next("vm")).To(Equal(restart))
		clock.Step(31 * time.Minute)
	}
}
