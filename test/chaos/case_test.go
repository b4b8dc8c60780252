// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package chaos_test

import (
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/test/chaos/lab"
)

// testCase is an Env with one NodeClaim on which all steps before the tested one were run.
type testCase struct {
	t       *testing.T
	env     *lab.Env
	process *lab.Process
	claim   string
}

// longRetries prevents launches from failing at the retry timeout on a busy machine, so only
// faults that are not transient fail a launch.
func longRetries(s *instance.Settings) { s.LaunchRetryTimeout = time.Hour }

func newCase(t *testing.T, on lab.Installation, step string, settings func(*instance.Settings)) *testCase {
	t.Helper()
	c := &testCase{t: t, env: lab.New(t, lab.Options{Installation: on, Addresses: 1, DataDisk: true, Machine: true}), claim: "pool-abc"}
	c.process = c.env.StartProcess(lab.ProcessOptions{Quiet: true, Settings: settings})
	warmUp(t, c.env, c.process)
	c.env.CreateClaim(c.claim)
	for _, before := range []string{lab.StepLaunch, lab.StepCleanup} {
		if before == step {
			break
		}
		mustRun(t, c.process, before, c.claim)
	}
	if step == lab.StepDelete {
		c.env.DeleteClaim(c.claim)
	}
	return c
}

// warmUp lets a Process learn how long tasks take, on half of the installations. It then runs
// some calls in parallel that it would otherwise run in sequence.
func warmUp(t *testing.T, env *lab.Env, p *lab.Process) {
	t.Helper()
	if env.Installation.Version != "9.2" {
		return
	}
	env.CreateClaim("warmup")
	mustRun(t, p, lab.StepLaunch, "warmup")
	env.DeleteClaim("warmup")
	for len(env.Claims()) > 0 {
		mustRun(t, p, lab.StepDelete, "warmup")
	}
}

// mustRun runs a step without faults. Like the controller, it retries failures: on a busy
// machine, a lock can take longer than its ten-second timeout.
func mustRun(t *testing.T, p *lab.Process, step, claim string) {
	t.Helper()
	var err error
	for range 20 {
		if err = p.RunStep(step, claim); err == nil {
			return
		}
	}
	t.Fatalf("running step %s of %s without faults: %v", step, claim, err)
}

// clearFaults removes all faults and cancels tasks that hang.
func (c *testCase) clearFaults() {
	hung := false
	for _, f := range c.env.Sim.Faults() {
		hung = hung || f.Hang
	}
	c.env.Sim.ClearFaults()
	if hung {
		c.env.CancelTasks()
	}
}

// killAt kills the Process at a place, before or after the call takes effect.
func (c *testCase) killAt(at place, after bool) {
	c.t.Helper()
	if at.method == "" {
		// Clone and boot data write concurrently.
		var n atomic.Int64
		c.process.OnWrite(func(done bool) {
			if done == after && n.Add(1) == int64(at.nth)+1 {
				c.process.Abort()
			}
		})
		return
	}
	c.env.AddFault(at.inject(pvesim.Fault{DropBefore: !after, DropAfter: after}, false))
	go testenv.OnFault(c.process.Context(), c.env.Sim, c.process.Abort)
}

// runUntilReached runs a step until it has reached the place of killAt. Like mustRun, it retries
// on a busy machine.
func (c *testCase) runUntilReached(step string) {
	for range 20 {
		_ = c.process.RunStep(step, c.claim)
		if c.process.Context().Err() != nil || slices.ContainsFunc(c.env.Sim.Faults(), func(f pvesim.FaultState) bool { return f.Hits > 0 }) {
			return
		}
	}
}

// awaitKill waits until the Process has been killed and all its goroutines have ended.
func (c *testCase) awaitKill() {
	c.t.Helper()
	select {
	case <-c.process.Context().Done():
	case <-time.After(30 * time.Second):
		c.t.Fatal("the process did not reach the place where it is killed")
	}
	c.process.Kill()
}

// settle waits until all invariants hold, then deletes the NodeClaim if it still exists and
// waits until nothing of it remains. It reports whether the NodeClaim existed and how long the
// first wait took.
func (c *testCase) settle(step string) (kept bool, took lab.Convergence) {
	c.t.Helper()
	took = c.env.MustConverge(c.process, "after the fault")
	kept = len(c.env.Claims()) > 0
	if step == lab.StepDelete && kept {
		c.t.Errorf("the claim still exists")
	}
	if kept {
		c.env.DeleteClaim(c.claim)
		c.env.MustConverge(c.process, "after deleting the claim")
	}
	return kept, took
}
