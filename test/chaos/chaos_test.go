// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package chaos_test

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/test/chaos/lab"
)

// plan says how much is tried: all of it with CHAOS=long, else a sample that fits
// into a minute.
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

// some is how many of a long list the short form tries.
func (p plan) some(short int) int {
	if p.long {
		return 0
	}
	return short
}

// turn tells whether a case is tried on the n-th installation. Each case is tried on
// one of them, and each place and each trouble on all; four seeds in a row try
// everything everywhere.
func (p plan) turn(n, item int) bool { return (uint64(n)+uint64(item)+p.seed)%4 == 0 }

func (p plan) random(stream uint64) *rand.Rand {
	return rand.New(rand.NewPCG(p.seed, stream))
}

// forGood is how long a trouble lasts that does not go away by itself, in simulated
// time. In the long form a launch runs out of patience meanwhile.
func (p plan) forGood() time.Duration {
	if p.long {
		return 6 * time.Minute
	}
	return time.Minute
}

// tally counts what was tried.
type tally struct {
	mu      sync.Mutex
	tried   map[string]map[string]int // place, trouble
	on      map[lab.Installation]int
	kept    int
	gone    int
	slowest lab.Settling
	which   string
}

func (y *tally) add(on lab.Installation, where, what string, kept bool, took lab.Settling) {
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
	places := map[string][]string{} // by what was tried there
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
	t.Logf("%d cases at %d places; the claim stayed in %d and went in %d; slowest to converge: %s (%s); by installation: %v",
		total, len(y.tried), y.kept, y.gone, y.slowest, y.which, y.on)
}

// TestEveryTroubleAtEveryCall answers each call of a VM's life with each error, and
// lets each of its tasks end badly, once and for good.
func TestEveryTroubleAtEveryCall(t *testing.T) {
	t.Parallel()
	p := newPlan(t)
	type strike struct {
		on lab.Installation
		place
		trouble
		forGood bool
	}
	var strikes []strike
	for n, on := range lab.Installations() {
		calls, tasks, _ := record(t, on)
		for i, forGood := range []bool{false, true} {
			for j, call := range calls {
				for k, trouble := range callTroubles {
					if p.turn(n, i+j+k) {
						strikes = append(strikes, strike{on, call, trouble, forGood})
					}
				}
			}
			for j, task := range tasks {
				for k, trouble := range taskTroubles {
					if p.turn(n, i+j+k) {
						strikes = append(strikes, strike{on, task, trouble, forGood})
					}
				}
			}
		}
	}
	var counted tally
	t.Cleanup(func() { counted.report(t, p) })
	for _, s := range sample(p.random(1), strikes, p.some(24)) {
		how := "once"
		if s.forGood {
			how = "for good"
		}
		t.Run(fmt.Sprintf("%s: %s: %s %s", s.on, s.place, s.name, how), func(t *testing.T) {
			t.Parallel()
			settings := patient
			if s.forGood {
				settings = nil
			}
			c := newCase(t, s.on, s.act, settings)
			c.strike(s.at(s.fault, s.forGood))
			if s.fault.Hang {
				// Somebody sees it, after a while.
				time.AfterFunc(c.world.Clock.Real(20*time.Second), c.world.CancelTasks)
			}
			_ = c.process.Act(s.act, c.claim) // what it says does not matter, what it leaves does
			c.process.Run()
			if s.forGood {
				c.world.Clock.Sleep(p.forGood())
			}
			c.heal()
			kept, took := c.settle(s.act)
			if s.passing && !s.forGood && s.act != lab.ActDelete && !kept {
				t.Errorf("the claim was given up for a trouble that passes")
			}
			counted.add(s.on, s.place.String(), s.name+" "+how, kept, took)
		})
	}
}

// TestDeathAtEveryMoment kills the controller before and after each call of a VM's
// life and each write to the Kubernetes API. The next one carries on, or the Claim
// was deleted meanwhile.
func TestDeathAtEveryMoment(t *testing.T) {
	t.Parallel()
	p := newPlan(t)
	type death struct {
		on lab.Installation
		place
		after, deleted bool
	}
	var deaths []death
	for n, on := range lab.Installations() {
		calls, _, writes := record(t, on)
		for j, place := range append(calls, writes...) {
			for k, when := range []death{{}, {after: true}, {deleted: true}, {after: true, deleted: true}} {
				if p.turn(n, j+k) && (!when.deleted || place.act != lab.ActDelete) {
					when.on, when.place = on, place
					deaths = append(deaths, when)
				}
			}
		}
	}
	var counted tally
	t.Cleanup(func() { counted.report(t, p) })
	for _, d := range sample(p.random(2), deaths, p.some(16)) {
		what := "killed before"
		if d.after {
			what = "killed after"
		}
		if d.deleted {
			what += ", claim deleted meanwhile"
		}
		t.Run(fmt.Sprintf("%s: %s: %s", d.on, d.place, what), func(t *testing.T) {
			t.Parallel()
			c := newCase(t, d.on, d.act, patient)
			c.killAt(d.place, d.after)
			_ = c.process.Act(d.act, c.claim)
			if d.method == http.MethodGet {
				// How often a task is looked at varies: who did not come to that look dies
				// at the end of its act.
				c.process.Cut()
			}
			c.awaitDeath()
			c.heal()
			act := d.act
			if d.deleted {
				c.world.Delete(c.claim)
				act = lab.ActDelete
			}
			c.process = c.world.Process(lab.Start{Settings: patient})
			c.process.Run()
			kept, took := c.settle(act)
			if act != lab.ActDelete && !kept {
				t.Errorf("the claim was given up")
			}
			counted.add(d.on, d.place.String(), what, kept, took)
		})
	}
}
