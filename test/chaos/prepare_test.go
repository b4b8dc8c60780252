// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package chaos_test

import (
	"net/http"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/test/chaos/lab"
)

// newPrepareCase is an Env with a running Process and, for a deletion, a prepared template. On
// half of the installations, templates are on a shared storage.
func newPrepareCase(t *testing.T, on lab.Installation, step string) *testCase {
	t.Helper()
	shared := (on.Version == "9.2") != on.PoolScoped
	c := &testCase{t: t, env: lab.New(t, lab.Options{Installation: on, Hosts: 2, Templates: &lab.TemplateOptions{Shared: shared}})}
	c.startPreparing()
	if step == lab.StepDelete {
		c.begin(lab.StepPrepare)
		c.env.MustConverge(c.process, "before the fault")
	}
	return c
}

// startPreparing starts another Process.
func (c *testCase) startPreparing() {
	c.t.Helper()
	c.process = c.env.StartProcess(lab.ProcessOptions{})
	c.process.Run()
}

// begin creates or deletes the template.
func (c *testCase) begin(step string) {
	c.t.Helper()
	if step == lab.StepDelete {
		c.env.DeleteTemplate()
		return
	}
	c.env.CreateTemplate()
}

// recordPreparePlaces prepares and deletes a template without faults, and returns the places
// where a fault can be injected or the controller killed. Between two changes, each read is
// one place.
func recordPreparePlaces(t *testing.T, on lab.Installation) (calls, tasks, writes []place) {
	t.Helper()
	c := newPrepareCase(t, on, lab.StepPrepare)
	var written atomic.Int64
	c.process.OnWrite(func(after bool) {
		if after {
			written.Add(1)
		}
	})
	for _, step := range []string{lab.StepPrepare, lab.StepDelete} {
		c.env.Sim.ResetRequests()
		written.Store(0)
		c.begin(step)
		c.env.MustConverge(c.process, "without faults")
		called, kinds := placesOf(step, c.env.Sim.Requests())
		calls, tasks = append(calls, called...), append(tasks, kinds...)
		// The status is written more often the longer a step takes.
		for n := range min(int(written.Load()), 6) {
			writes = append(writes, place{step: step, nth: n})
		}
	}
	return calls, tasks, writes
}

// TestPrepareAtEveryCall prepares and deletes a template. It fails each call with each error and
// each task in each way, once and persistently, and kills the controller before and after each
// call and each write to the Kubernetes API. In the end each host has the template once, or all
// share one, and nothing else is left.
func TestPrepareAtEveryCall(t *testing.T) {
	t.Parallel()
	p := newPlan(t)
	installations := lab.Installations()
	if !p.long {
		installations = installations[:2] // one with local and one with shared storage
	}
	var faults []faultCase
	var kills []killCase
	for n, on := range installations {
		calls, tasks, writes := recordPreparePlaces(t, on)
		faults = append(faults, p.faults(n, on, calls, tasks)...)
		kills = append(kills, p.kills(n, on, append(calls, writes...))...)
	}
	// A later read does not fail in another way for longer.
	faults = slices.DeleteFunc(faults, func(f faultCase) bool { return f.persistent && f.method == http.MethodGet && f.nth > 0 })
	kills = slices.DeleteFunc(kills, func(k killCase) bool { return k.after && k.method == http.MethodGet })
	runCases(t, p, 6, 3, faults, func(t *testing.T, f faultCase) {
		c := newPrepareCase(t, f.on, f.step)
		c.addFault(f)
		c.begin(f.step)
		c.awaitFault()
		if f.persistent {
			c.env.Clock.Sleep(p.persistentDuration())
			gomega.NewWithT(t).Eventually(c.env.UnreportedTemplate).Should(gomega.BeEmpty(), "neither up to date nor a reason")
		}
		c.settlePreparation(f.step)
	})
	runCases(t, p, 7, 3, kills, func(t *testing.T, k killCase) {
		c := newPrepareCase(t, k.on, k.step)
		c.killAt(k.place, k.after)
		c.begin(k.step)
		c.env.ConvergeUnlessKilled(c.process)
		c.process.Kill()
		c.clearFaults()
		step := k.step
		if k.deleted {
			c.begin(lab.StepDelete)
			step = lab.StepDelete
		}
		c.startPreparing()
		c.settlePreparation(step)
	})
}

// awaitFault waits until the fault was injected. The number of reads varies, so that may not
// happen.
func (c *testCase) awaitFault() {
	deadline := c.env.Clock.Now().Add(3 * time.Minute)
	for c.env.Clock.Now().Before(deadline) && !slices.ContainsFunc(c.env.Sim.Faults(), func(f pvesim.FaultState) bool { return f.Hits > 0 }) {
		time.Sleep(5 * time.Millisecond)
	}
}

// settlePreparation ends all faults and waits until all invariants hold. Then it deletes the
// template, unless that was the tested step, and waits until nothing of it remains.
func (c *testCase) settlePreparation(step string) {
	c.t.Helper()
	c.clearFaults()
	c.env.MustConverge(c.process, "after the fault")
	if step != lab.StepDelete {
		c.begin(lab.StepDelete)
		c.env.MustConverge(c.process, "after deleting the template")
	}
}
