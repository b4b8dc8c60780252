// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package testenv

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

// KillAtRequest disconnects a process from Proxmox at its n-th request from now, before or after
// the request has an effect, and cancels the returned context.
func KillAtRequest(t testing.TB, sim *pvesim.Simulator, n int, after bool) context.Context {
	t.Helper()
	faults := []pvesim.Fault{{Skip: n, DropBefore: true}}
	if after {
		// The second rule does not see the request that the first one matches.
		faults = []pvesim.Fault{{Skip: n, Count: 1, DropAfter: true}, {Skip: n, DropBefore: true}}
	}
	for _, fault := range faults {
		AddFault(t, sim, fault)
	}
	ctx, cancel := context.WithCancel(t.Context())
	Go(t, func(context.Context) error {
		OnFault(ctx, sim, cancel)
		return nil
	})
	return ctx
}

// OnFault calls a function when a fault was applied. It returns then, when there are no faults, or
// when ctx ends.
func OnFault(ctx context.Context, sim *pvesim.Simulator, then func()) {
	for faults := sim.Faults(); ctx.Err() == nil && len(faults) > 0; faults = sim.Faults() {
		if slices.ContainsFunc(faults, func(fault pvesim.FaultState) bool { return fault.Hits > 0 }) {
			then()
			return
		}
		time.Sleep(time.Millisecond)
	}
}

// RecordRequests returns the requests that a step sends.
func (c *Cluster) RecordRequests(step func()) []pvesim.Request {
	c.T.Helper()
	c.Sim.ResetRequests()
	step()
	return c.Sim.Requests()
}

// CrashPoint is where a process can be killed: before or after a request.
type CrashPoint struct {
	// Name of a subtest.
	Name string
	// Request is the number of the request, from 0.
	Request int
	After   bool
}

// CrashPoints returns all crash points of recorded requests. A read changes nothing, so after it is
// the same as before the next request.
func CrashPoints(requests []pvesim.Request) []CrashPoint {
	var out []CrashPoint
	for n, request := range requests {
		name := fmt.Sprintf("request %d, %s %s", n+1, request.Method, request.Template)
		out = append(out, CrashPoint{"before " + name, n, false})
		if request.Method != http.MethodGet {
			out = append(out, CrashPoint{"after " + name, n, true})
		}
	}
	return out
}

// Crash kills a step of a test at one request, or records the requests of the step.
type Crash struct {
	// point is nil to record the requests.
	point    *CrashPoint
	requests []pvesim.Request
}

// RunCrashes runs a test without a crash, and then in a subtest for each point at which its step can
// be killed.
func RunCrashes(t *testing.T, test func(t *testing.T, crash *Crash)) {
	t.Helper()
	t.Parallel()
	recorded := &Crash{}
	synctest.Test(t, func(t *testing.T) { test(t, recorded) })
	for _, point := range CrashPoints(recorded.requests) {
		RunSimulated(t, point.Name, func(t *testing.T) { test(t, &Crash{point: &point}) })
	}
}

// Run runs the step of the test. A step that is not killed is repeated until it succeeds.
func (c *Crash) Run(w *Env, step func(context.Context) error) {
	w.T.Helper()
	if c.point == nil {
		c.requests = w.RecordRequests(func() {
			w.Eventually(func() error { return step(w.T.Context()) }).Should(gomega.Succeed())
		})
		return
	}
	err := step(KillAtRequest(w.T, w.Sim, c.point.Request, c.point.After))
	for _, fault := range w.Sim.Faults() { // a request may not be sent: the number of those that poll a task varies
		w.Expect(err != nil || fault.Hits == 0).To(gomega.BeTrue(), "the process continued after it was killed")
	}
	w.Sim.ClearFaults()
}
