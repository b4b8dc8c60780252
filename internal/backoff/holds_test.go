// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package backoff_test

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/backoff"
)

func TestHoldsFail(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	clock := clocktesting.NewFakeClock(time.Now())
	h := backoff.NewHolds[string](clock, backoff.Exponential{Initial: 3 * time.Minute, Max: 30 * time.Minute})
	g.Expect(h.Fail("a")).To(Equal(3 * time.Minute))
	clock.Step(time.Minute)
	g.Expect(h.Fail("a")).To(Equal(2*time.Minute), "it was in progress when the first one failed")
	clock.Step(2 * time.Minute)
	_, _, held := h.Get("a")
	g.Expect(held).To(BeFalse())
	g.Expect(h.Fail("a")).To(Equal(6 * time.Minute))
	g.Expect(h.Fail("b")).To(Equal(3*time.Minute), "another key")
	for range 10 {
		clock.Step(30 * time.Minute)
		g.Expect(h.Fail("a")).To(BeNumerically("<=", 30*time.Minute))
	}
	g.Expect(h.Fail("b")).To(Equal(3*time.Minute), "begins again after twice the longest delay")
	clock.Step(3 * time.Minute)
	h.Clear(func(key string) bool { return key == "a" })
	g.Expect(h.Fail("a")).To(Equal(3 * time.Minute))
	g.Expect(h.Fail("b")).To(Equal(6*time.Minute), "not cleared")
}

func TestHoldsAdd(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	clock := clocktesting.NewFakeClock(time.Now())
	h := backoff.NewHolds[string](clock, backoff.Exponential{})
	generation := h.Generation()
	changed := func() bool {
		before := generation
		generation = h.Generation()
		return generation != before
	}
	h.Add("a", "long", time.Minute)
	g.Expect(changed()).To(BeTrue())
	h.Add("a", "short", time.Second)
	reason, until, held := h.Get("a")
	g.Expect(held).To(BeTrue())
	g.Expect(reason).To(Equal("long"), "a hold is never shortened")
	g.Expect(until).To(Equal(clock.Now().Add(time.Minute)))
	g.Expect(changed()).To(BeFalse())
	clock.Step(time.Minute)
	_, _, held = h.Get("a")
	g.Expect(held).To(BeFalse())
	g.Expect(changed()).To(BeTrue())
	g.Expect(changed()).To(BeFalse())
}
