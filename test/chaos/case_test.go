// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package chaos_test

import (
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/test/chaos/lab"
)

// one is a World with one Claim, brought to the eve of an act.
type one struct {
	t       *testing.T
	world   *lab.World
	process *lab.Process
	claim   string
}

// patient launches: a machine that is busy with other tests must not look like a
// trouble that does not pass.
func patient(s *instance.Settings) { s.LaunchRetryTimeout = time.Hour }

func newCase(t *testing.T, on lab.Installation, act string, settings func(*instance.Settings)) *one {
	t.Helper()
	c := &one{t: t, world: lab.New(t, lab.Options{Speed: speed, Installation: on, Addresses: 1}), claim: "pool-abc"}
	c.process = c.world.Process(lab.Start{Quiet: true, Settings: settings})
	teach(t, c.world, c.process)
	c.world.Claim(c.claim)
	for _, before := range []string{lab.ActLaunch, lab.ActHandOver} {
		if before == act {
			break
		}
		done(t, c.process, before, c.claim)
	}
	if act == lab.ActDelete {
		c.world.Delete(c.claim)
	}
	return c
}

// teach lets a Process learn how long tasks take, on half of the installations: it
// then does some things at the same time that it would else do in turn.
func teach(t *testing.T, w *lab.World, p *lab.Process) {
	t.Helper()
	if w.Installation.Version != "9.2" {
		return
	}
	w.Claim("teacher")
	done(t, p, lab.ActLaunch, "teacher")
	w.Delete("teacher")
	for len(w.Claims()) > 0 {
		done(t, p, lab.ActDelete, "teacher")
	}
}

// done has an act done before any trouble, as a controller would: what fails is tried
// again. On a machine that is busy with other tests, ten seconds for a lock go by
// quickly.
func done(t *testing.T, p *lab.Process, act, claim string) {
	t.Helper()
	var err error
	for range 20 {
		if err = p.Act(act, claim); err == nil {
			return
		}
	}
	t.Fatalf("the %s of %s without any trouble, %v", act, claim, err)
}

// strike installs a fault.
func (c *one) strike(f pvesim.Fault) {
	c.t.Helper()
	if _, err := c.world.Sim.AddFault(f); err != nil {
		c.t.Fatal(err)
	}
}

// heal ends all troubles: faults go, tasks that hang are cancelled.
func (c *one) heal() {
	hung := false
	for _, f := range c.world.Sim.Faults() {
		hung = hung || f.Hang
	}
	c.world.Sim.ClearFaults()
	if hung {
		c.world.CancelTasks()
	}
}

// killAt ends the Process when it gets to a place, before that has an effect or
// just after.
func (c *one) killAt(at place, after bool) {
	c.t.Helper()
	if at.method == "" {
		// The clone and the boot drive write at the same time.
		var n atomic.Int64
		c.process.OnWrite(func(done bool) {
			if done == after && n.Add(1) == int64(at.nth)+1 {
				c.process.Cut()
			}
		})
		return
	}
	c.strike(at.at(pvesim.Fault{DropBefore: !after, DropAfter: after}, false))
	go func() {
		for c.process.Context().Err() == nil {
			if faults := c.world.Sim.Faults(); len(faults) > 0 && faults[0].Hits > 0 {
				c.process.Cut()
				return
			}
			time.Sleep(time.Millisecond)
		}
	}()
}

// awaitDeath returns when nothing of the Process runs any more.
func (c *one) awaitDeath() {
	c.t.Helper()
	select {
	case <-c.process.Context().Done():
	case <-time.After(30 * time.Second):
		c.t.Fatal("the process never came to the place where it was to die")
	}
	c.process.Kill()
}

// settle waits until all is in order, then deletes the Claim, if it is still there,
// and waits again: nothing may be left of it.
func (c *one) settle(act string) (kept bool, took lab.Settling) {
	c.t.Helper()
	took = c.converge("after the trouble")
	kept = len(c.world.Claims()) > 0
	if act == lab.ActDelete && kept {
		c.t.Errorf("the claim is still there")
	}
	if kept {
		c.world.Delete(c.claim)
		c.converge("after the claim's deletion")
	}
	return kept, took
}

func (c *one) converge(when string) lab.Settling {
	c.t.Helper()
	took, amiss := c.world.Converge(c.process)
	if len(amiss) > 0 {
		c.t.Fatalf("%s, still amiss after %s on %s:\n%s", when, took, c.world.Installation, strings.Join(amiss, "\n"))
	}
	return took
}
