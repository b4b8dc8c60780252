// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package chaos_test

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/test/chaos/lab"
)

// plan is the extent of a run: all cases with CHAOS=long, otherwise a sample that takes about
// a minute.
type plan struct {
	long   bool
	seed   uint64
	rounds int
}

func newPlan(t *testing.T) plan {
	t.Helper()
	p := plan{seed: 1, rounds: 1}
	if os.Getenv("CHAOS") == "long" {
		p = plan{long: true, seed: uint64(time.Now().UnixNano()), rounds: 20}
	}
	if text := os.Getenv("CHAOS_SEED"); text != "" {
		seed, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			t.Fatalf("CHAOS_SEED: found %q, want a number", text)
		}
		p.seed = seed
	}
	t.Logf("CHAOS_SEED=%d", p.seed)
	return p
}

// sampleSize returns short in a short run and 0, which means all, in a long one.
func (p plan) sampleSize(short int) int {
	if p.long {
		return 0
	}
	return short
}

// includes reports whether a case is run on the n-th installation. Each case runs on one of
// them, and each place and each fault on all. Four consecutive seeds run all cases on all
// installations.
func (p plan) includes(n, item int) bool { return (uint64(n)+uint64(item)+p.seed)%4 == 0 }

func (p plan) random(stream uint64) *rand.Rand {
	return rand.New(rand.NewPCG(p.seed, stream))
}

// persistentDuration returns how long a persistent fault lasts in simulated time. In a long
// run it exceeds the launch retry timeout.
func (p plan) persistentDuration() time.Duration {
	if p.long {
		return 6 * time.Minute
	}
	return time.Minute
}

// runCases runs a sample of cases in parallel.
func runCases[C fmt.Stringer](t *testing.T, p plan, stream uint64, short int, cases []C, run func(*testing.T, C)) {
	t.Helper()
	for _, c := range sample(p.random(stream), cases, p.sampleSize(short)) {
		t.Run(subtestName(c), func(t *testing.T) {
			t.Parallel()
			run(t, c)
		})
	}
}

var notInName = regexp.MustCompile(`[^A-Za-z0-9.]+`)

// subtestName returns a name that can be passed to -run.
func subtestName(of fmt.Stringer) string {
	return strings.Trim(notInName.ReplaceAllString(of.String(), "_"), "_")
}

// faultCase is a failure at one place of the lifecycle of a VM or template.
type faultCase struct {
	on lab.Installation
	place
	failure
	persistent bool
}

func (f faultCase) String() string {
	how := "once"
	if f.persistent {
		how = "persistently"
	}
	return fmt.Sprintf("%s, %s, %s %s", f.on, f.place, f.name, how)
}

// faults returns the cases of the n-th installation.
func (p plan) faults(n int, on lab.Installation, calls, tasks []place) (cases []faultCase) {
	add := func(places []place, failures []failure) {
		for i, persistent := range []bool{false, true} {
			for j, place := range places {
				for k, failure := range failures {
					if p.includes(n, i+j+k) {
						cases = append(cases, faultCase{on, place, failure, persistent})
					}
				}
			}
		}
	}
	add(calls, callFailures)
	add(tasks, taskFailures)
	return cases
}

// killCase is a kill of the controller at one place. In some cases, the NodeClaim or template is
// deleted before another controller takes over.
type killCase struct {
	on lab.Installation
	place
	after, deleted bool
}

func (k killCase) String() string {
	what := "killed before"
	if k.after {
		what = "killed after"
	}
	if k.deleted {
		what += ", deleted"
	}
	return fmt.Sprintf("%s, %s, %s", k.on, k.place, what)
}

// kills returns the cases of the n-th installation.
func (p plan) kills(n int, on lab.Installation, places []place) (cases []killCase) {
	for j, place := range places {
		for k, when := range []killCase{{}, {after: true}, {deleted: true}, {after: true, deleted: true}} {
			if p.includes(n, j+k) && (!when.deleted || place.step != lab.StepDelete) {
				when.on, when.place = on, place
				cases = append(cases, when)
			}
		}
	}
	return cases
}

// TestFaultAtEveryCall fails each call of a VM's lifecycle with each error and each of
// its tasks in each way, once and persistently.
func TestFaultAtEveryCall(t *testing.T) {
	t.Parallel()
	p := newPlan(t)
	var cases []faultCase
	for n, on := range lab.Installations() {
		calls, tasks, _ := recordPlaces(t, on)
		cases = append(cases, p.faults(n, on, calls, tasks)...)
	}
	runCases(t, p, 1, 16, cases, func(t *testing.T, f faultCase) {
		settings := longRetries
		if f.persistent {
			settings = nil
		}
		c := newCase(t, f.on, f.step, settings)
		c.addFault(f)
		_ = c.process.RunStep(f.step, c.claim) // only the resulting state matters
		c.process.Run()
		if f.persistent {
			c.env.Clock.Sleep(p.persistentDuration())
		}
		c.clearFaults()
		if kept := c.settle(f.step); f.transient && !f.persistent && f.step != lab.StepDelete && !kept {
			t.Errorf("the claim was deleted because of a transient fault")
		}
	})
}

// TestKillAtEveryCall kills the controller before and after each call of a VM's lifecycle and
// each write to the Kubernetes API. Then another controller takes over. In some cases, the
// NodeClaim is deleted in between.
func TestKillAtEveryCall(t *testing.T) {
	t.Parallel()
	p := newPlan(t)
	var cases []killCase
	for n, on := range lab.Installations() {
		calls, _, writes := recordPlaces(t, on)
		cases = append(cases, p.kills(n, on, append(calls, writes...))...)
	}
	runCases(t, p, 2, 10, cases, func(t *testing.T, k killCase) {
		c := newCase(t, k.on, k.step, longRetries)
		c.killAt(k.place, k.after)
		c.runUntilReached(k.step)
		if k.method == http.MethodGet {
			// The number of task polls varies. If this poll did not happen, the process is
			// killed at the end of the step.
			c.process.Abort()
		}
		c.awaitKill()
		c.clearFaults()
		step := k.step
		if k.deleted {
			c.env.DeleteClaim(c.claim)
			step = lab.StepDelete
		}
		c.process = c.env.StartProcess(lab.ProcessOptions{Settings: longRetries})
		c.process.Run()
		if kept := c.settle(step); step != lab.StepDelete && !kept {
			t.Errorf("the claim was deleted")
		}
	})
}

// TestLateUpload delays an upload whose response was lost. The controller uploads the boot
// drive again and deletes it after use. When the first upload ends after that, its boot drive
// must be deleted too.
func TestLateUpload(t *testing.T) {
	t.Parallel()
	c := newCase(t, lab.Installations()[0], lab.StepLaunch, longRetries)
	c.env.AddFault(pvesim.Fault{Method: "POST", Path: "/nodes/{node}/storage/{storage}/upload", Count: 1, DropAfter: true})
	c.env.AddFault(pvesim.Fault{Task: "imgcopy", Count: 1, Delay: pvesim.Duration(3 * time.Minute)})
	c.process.Run()
	c.env.MustConverge(c.process, "after the launch")
	c.env.Clock.Sleep(4 * time.Minute)
	c.env.MustConverge(c.process, "after the late upload")
	if len(c.env.Claims()) == 0 {
		t.Error("the claim was deleted")
	}
}
