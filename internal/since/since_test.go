// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package since_test

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/since"
)

func TestTimes(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	clock := clocktesting.NewFakeClock(time.Now())
	times, began := since.New[string](clock), clock.Now()
	times.Observe("a")
	clock.Step(time.Minute)
	g.Expect(times.Observe("a")).To(Equal(began))
	g.Expect(times.Observe("b")).To(Equal(clock.Now()))
	times.End(func(key string) bool { return key == "a" })
	clock.Step(time.Minute)
	g.Expect(times.Observe("a")).To(Equal(clock.Now()), "it began again")
	g.Expect(times.Observe("b")).To(Equal(began.Add(time.Minute)))
}
