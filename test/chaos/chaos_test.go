// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package chaos_test

import (
	"fmt"
	"math/rand/v2"
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
	kept    int
	gone    int
	slowest time.Duration
	which   string
}

func (y *tally) add(where, what string, kept bool, took time.Duration) {
	y.mu.Lock()
	defer y.mu.Unlock()
	if y.tried == nil {
		y.tried = map[string]map[string]int{}
	}
	if y.tried[where] == nil {
		y.tried[where] = map[string]int{}
	}
	y.tried[where][what]++
	if kept {
		y.kept++
	} else {
		y.gone++
	}
	if took > y.slowest {
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
	t.Logf("%d cases at %d places; the claim stayed in %d and went in %d; slowest to converge: %s simulated (%s)",
		total, len(y.tried), y.kept, y.gone, y.slowest.Round(time.Second), y.which)
}

// TestEveryTroubleAtEveryCall answers each call of a VM's life with each error, and
// lets each of its tasks end badly, once and for good.
func TestEveryTroubleAtEveryCall(t *testing.T) {
	t.Parallel()
	p := newPlan(t)
	calls, tasks, _ := record(t)
	type strike struct {
		place
		trouble
		forGood bool
	}
	var strikes []strike
	for _, forGood := range []bool{false, true} {
		for _, call := range calls {
			for _, trouble := range callTroubles {
				strikes = append(strikes, strike{call, trouble, forGood})
			}
		}
		for _, task := range tasks {
			for _, trouble := range taskTroubles {
				strikes = append(strikes, strike{task, trouble, forGood})
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
		t.Run(fmt.Sprintf("%s: %s %s", s.place, s.name, how), func(t *testing.T) {
			t.Parallel()
			settings := patient
			if s.forGood {
				settings = nil
			}
			c := newCase(t, s.act, settings)
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
			counted.add(s.place.String(), s.name+" "+how, kept, took)
		})
	}
}

// TestDeathAtEveryMoment kills the controller before and after each call of a VM's
// life and each write to the Kubernetes API. The next one carries on, or the Claim
// was deleted meanwhile.
func TestDeathAtEveryMoment(t *testing.T) {
	t.Parallel()
	p := newPlan(t)
	calls, _, writes := record(t)
	type death struct {
		place
		after, deleted bool
	}
	var deaths []death
	for _, place := range append(calls, writes...) {
		for _, after := range []bool{false, true} {
			for _, deleted := range []bool{false, true} {
				if deleted && place.act == lab.ActDelete {
					continue
				}
				deaths = append(deaths, death{place, after, deleted})
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
		t.Run(d.place.String()+": "+what, func(t *testing.T) {
			t.Parallel()
			c := newCase(t, d.act, patient)
			c.killAt(d.place, d.after)
			_ = c.process.Act(d.act, c.claim)
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
			counted.add(d.place.String(), what, kept, took)
		})
	}
}
