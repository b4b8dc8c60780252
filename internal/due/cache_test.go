// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package due_test

import (
	"context"
	"errors"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	testclock "k8s.io/utils/clock/testing"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/backoff"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/due"
)

const key = "key"

// source counts reads.
type source struct {
	value string
	err   error
	reads int
}

func (s *source) read(context.Context) (string, error) {
	s.reads++
	return s.value, s.err
}

func newCache(policy due.Policy) (*due.Cache[string, string], *testclock.FakeClock) {
	clock := testclock.NewFakeClock(time.Date(2026, 11, 15, 8, 0, 0, 0, time.UTC))
	return due.New[string, string](clock, func(string) due.Policy { return policy }), clock
}

func TestGet(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	cache, clock := newCache(due.Policy{Every: time.Minute, Retry: backoff.Exponential{Initial: time.Second, Max: time.Hour}})
	s := &source{value: "a"}
	expect := func(stamp any, value string, err error, reads int) {
		t.Helper()
		got, gotErr := cache.Get(t.Context(), key, stamp, s.read)
		g.Expect(got).To(Equal(value))
		if err == nil {
			g.Expect(gotErr).NotTo(HaveOccurred())
		} else {
			g.Expect(gotErr).To(MatchError(err))
		}
		g.Expect(s.reads).To(Equal(reads))
	}
	expect(1, "a", nil, 1)
	s.value = "b"
	expect(1, "a", nil, 1) // young
	expect(2, "b", nil, 2) // another stamp
	s.value, s.err = "c", errors.New("broken")
	clock.Step(time.Minute)
	expect(2, "b", s.err, 3)
	expect(2, "b", s.err, 3) // backoff
	clock.Step(time.Second)
	expect(2, "b", s.err, 4)
	clock.Step(time.Second)
	expect(2, "b", s.err, 4)
	s.err = nil
	clock.Step(time.Second)
	expect(2, "c", nil, 5)
	cache.Invalidate(key)
	expect(2, "c", nil, 6)
	cache.Keep(func(string) bool { return false })
	expect(2, "c", nil, 7)
}

func TestReadChanged(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	cache, clock := newCache(due.Policy{MinAge: time.Minute})
	s := &source{value: "a"}
	g.Expect(cache.Read(t.Context(), key, s.read)).To(BeTrue())
	g.Expect(cache.Read(t.Context(), key, s.read)).To(BeFalse())
	isDue := func() bool {
		_, _, is := cache.Peek(key)
		return is
	}
	clock.Step(time.Hour)
	g.Expect(isDue()).To(BeFalse(), "without Every")

	// A change during a read makes the value due again, but not before its minimum age.
	_, err := cache.Read(t.Context(), key, func(context.Context) (string, error) {
		g.Expect(isDue()).To(BeFalse(), "another caller reads it")
		cache.Invalidate(key)
		return "b", nil
	})
	g.Expect(err).NotTo(HaveOccurred())
	entry, _, _ := cache.Peek(key)
	g.Expect(entry).To(And(HaveField("Value", "b"), HaveField("Changed", true)))
	g.Expect(isDue()).To(BeFalse())
	clock.Step(time.Minute)
	g.Expect(isDue()).To(BeTrue())
	g.Expect(cache.Drop(key)).To(BeTrue())
	g.Expect(cache.Drop(key)).To(BeFalse())
}
