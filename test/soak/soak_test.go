// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"
)

const (
	// disturbanceTime is how long disturbances last before everything must converge.
	disturbanceTime = time.Minute
	// convergenceTimeout includes Karpenter's own intervals and the replacement of all Nodes
	// within the disruption budget.
	convergenceTimeout = 8 * time.Minute
)

// TestSoak runs for the duration SOAK, half of it with each version of Proxmox VE. SOAK_SEED
// repeats the decisions of an earlier run.
func TestSoak(t *testing.T) {
	if os.Getenv("SOAK") == "" {
		t.Skip("SKIPPED: SOAK must be a duration; make soak sets it")
	}
	duration, err := time.ParseDuration(os.Getenv("SOAK"))
	if err != nil {
		t.Fatalf("SOAK: %v, want a duration such as 1h", err)
	}
	seed := uint64(time.Now().UnixNano())
	if text := os.Getenv("SOAK_SEED"); text != "" {
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatalf("SOAK_SEED: %v, want a number", err)
		}
	}
	t.Logf("SOAK_SEED=%d", seed)
	for i, version := range []string{"8.4", "9.2"} {
		t.Run(version, func(t *testing.T) {
			s := newSoak(t, version, rand.New(rand.NewPCG(seed, uint64(i))))
			s.run(time.Now().Add(duration / 2))
		})
	}
}

// run disturbs and converges until the deadline, then deletes everything.
func (s *soak) run(deadline time.Time) {
	s.t.Helper()
	s.mustConverge("before the disturbances")
	for period := 1; period == 1 || time.Now().Before(deadline); period++ {
		s.disturb(min(disturbanceTime, max(0, time.Until(deadline))))
		s.recover()
		took := s.mustConverge(fmt.Sprintf("after disturbances %v", s.done))
		s.t.Logf("period %d: %v; converged after %s", period, s.done, took.Round(time.Second))
	}
	s.stopMonitor()
	s.removeAll()
}

// mustConverge waits until all invariants hold and returns how long that took.
func (s *soak) mustConverge(when string) time.Duration {
	s.t.Helper()
	began, logged := time.Now(), time.Now()
	for {
		violations := s.violations()
		took := time.Since(began)
		if len(violations) == 0 {
			return took
		}
		s.failIfBroken()
		if took > convergenceTimeout {
			s.fail(fmt.Sprintf("%s: violations after %s", when, took.Round(time.Second)), violations)
		}
		if time.Since(logged) > 30*time.Second {
			logged = time.Now()
			s.t.Logf("%s: waiting for:\n%s", when, lines(violations))
		}
		s.actAsAdmin()
		time.Sleep(500 * time.Millisecond)
	}
}
