// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package chaos_test

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

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
	if text := os.Getenv("CHAOS_ROUNDS"); text != "" {
		rounds, err := strconv.Atoi(text)
		if err != nil || rounds < 0 {
			t.Fatalf("CHAOS_ROUNDS: found %q, want a number of rounds", text)
		}
		p.rounds = rounds
	}
	t.Logf("CHAOS_SEED=%d CHAOS_ROUNDS=%d", p.seed, p.rounds)
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

// tally counts the cases.
type tally struct {
	mu      sync.Mutex
	tried   map[string]map[string]int // place, fault
	on      map[lab.Installation]int
	kept    int
	gone    int
	slowest lab.Convergence
	which   string
}

func (y *tally) add(on lab.Installation, where, what string, kept bool, took lab.Convergence) {
	y.mu.Lock()
	defer y.mu.Unlock()
	if y.tried == nil {
		y.tried, y.on = map[string]map[string]int{}, map[lab.Installation]int{}
	}
	y.on[on]++
	if y.tried[where] == nil {
		y.tried[where] = map[string]int{}
	}
	y.tried[where][what]++
	if kept {
		y.kept++
	} else {
		y.gone++
	}
	if took.Rounds > y.slowest.Rounds {
		y.slowest, y.which = took, where+": "+what
	}
}

func (y *tally) report(t *testing.T, p plan) {
	t.Helper()
	y.mu.Lock()
	defer y.mu.Unlock()
	total := 0
	places := map[string][]string{} // by faults
	for where, tried := range y.tried {
		what := make([]string, 0, len(tried))
		for name, n := range tried {
			total += n
			what = append(what, fmt.Sprintf("%s ×%d", name, n))
		}
		slices.Sort(what)
		key := strings.Join(what, ", ")
		places[key] = append(places[key], where)
	}
	for what, where := range places {
		slices.Sort(where)
		if p.long {
			t.Logf("%s\n  at each of\n    %s", what, strings.Join(where, "\n    "))
		}
	}
	t.Logf("%d cases at %d places; the claim or template was kept in %d and deleted in %d; slowest to converge: %s (%s); by installation: %v",
		total, len(y.tried), y.kept, y.gone, y.slowest, y.which, y.on)
}

// faultCase is a failure at one place of a VM's lifecycle.
type faultCase struct {
	on lab.Installation
	place
	failure
	persistent bool
}

// faultCases returns the cases of all installations.
func faultCases(t *testing.T, p plan) []faultCase {
	t.Helper()
	var cases []faultCase
	for n, on := range lab.Installations() {
		calls, tasks, _ := recordPlaces(t, on)
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
	}
	return cases
}

// TestFaultAtEveryCall fails each call of a VM's lifecycle with each error and each of
// its tasks in each way, once and persistently.
func TestFaultAtEveryCall(t *testing.T) {
	t.Parallel()
	p := newPlan(t)
	cases := faultCases(t, p)
	var counted tally
	t.Cleanup(func() { counted.report(t, p) })
	for _, f := range sample(p.random(1), cases, p.sampleSize(16)) {
		how := "once"
		settings := longRetries
		if f.persistent {
			how, settings = "persistently", nil
		}
		t.Run(subtestName(f.on, f.place, f.name, how), func(t *testing.T) {
			t.Parallel()
			c := newCase(t, f.on, f.step, settings)
			c.env.AddFault(f.inject(f.fault, f.persistent))
			if f.fault.Hang {
				// An admin cancels the task after a while.
				time.AfterFunc(c.env.Clock.Real(20*time.Second), c.env.CancelTasks)
			}
			_ = c.process.RunStep(f.step, c.claim) // only the resulting state matters
			c.process.Run()
			if f.persistent {
				c.env.Clock.Sleep(p.persistentDuration())
			}
			c.clearFaults()
			kept, took := c.settle(f.step)
			if f.transient && !f.persistent && f.step != lab.StepDelete && !kept {
				t.Errorf("the claim was deleted because of a transient fault")
			}
			counted.add(f.on, f.place.String(), f.name+" "+how, kept, took)
		})
	}
}

var notInName = regexp.MustCompile(`[^A-Za-z0-9.]+`)

// subtestName joins the parts with underscores, so the name can be passed to -run.
func subtestName(parts ...any) string {
	return strings.Trim(notInName.ReplaceAllString(fmt.Sprintln(parts...), "_"), "_")
}

// TestKillAtEveryCall kills the controller before and after each call of a VM's lifecycle and
// each write to the Kubernetes API. Then another controller takes over. In some cases, the
// NodeClaim is deleted in between.
func TestKillAtEveryCall(t *testing.T) {
	t.Parallel()
	p := newPlan(t)
	type killCase struct {
		on lab.Installation
		place
		after, deleted bool
	}
	var cases []killCase
	for n, on := range lab.Installations() {
		calls, _, writes := recordPlaces(t, on)
		for j, place := range append(calls, writes...) {
			for k, when := range []killCase{{}, {after: true}, {deleted: true}, {after: true, deleted: true}} {
				if p.includes(n, j+k) && (!when.deleted || place.step != lab.StepDelete) {
					when.on, when.place = on, place
					cases = append(cases, when)
				}
			}
		}
	}
	var counted tally
	t.Cleanup(func() { counted.report(t, p) })
	for _, d := range sample(p.random(2), cases, p.sampleSize(10)) {
		what := "killed before"
		if d.after {
			what = "killed after"
		}
		if d.deleted {
			what += ", claim deleted"
		}
		t.Run(subtestName(d.on, d.place, what), func(t *testing.T) {
			t.Parallel()
			c := newCase(t, d.on, d.step, longRetries)
			c.killAt(d.place, d.after)
			c.runUntilReached(d.step)
			if d.method == http.MethodGet {
				// The number of task polls varies. If this poll did not happen, the process is
				// killed at the end of the step.
				c.process.Abort()
			}
			c.awaitKill()
			c.clearFaults()
			step := d.step
			if d.deleted {
				c.env.DeleteClaim(c.claim)
				step = lab.StepDelete
			}
			c.process = c.env.StartProcess(lab.ProcessOptions{Settings: longRetries})
			c.process.Run()
			kept, took := c.settle(step)
			if step != lab.StepDelete && !kept {
				t.Errorf("the claim was deleted")
			}
			counted.add(d.on, d.place.String(), what, kept, took)
		})
	}
}
