// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package vmhealth

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
)

func TestRestarts(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]func(g *WithT, r *restarts, clock *clocktesting.FakeClock, vm instance.VM){
		"started": func(g *WithT, r *restarts, clock *clocktesting.FakeClock, vm instance.VM) {
			for _, pause := range []time.Duration{time.Minute, 2 * time.Minute, 4 * time.Minute, 8 * time.Minute} {
				g.Expect(r.next(vm)).To(Equal(restart))
				r.recordStarted(vm)
				clock.Step(pause - time.Second)
				g.Expect(r.next(vm)).To(Equal(wait))
				clock.Step(time.Second)
			}
			g.Expect(r.next(vm)).To(Equal(replace))
			g.Expect(r.exhausted("region-1")).To(Equal(1))
			g.Expect(r.exhausted("region-2")).To(BeZero())
		},
		"failed": func(g *WithT, r *restarts, clock *clocktesting.FakeClock, vm instance.VM) {
			for range 10 {
				g.Expect(r.next(vm)).To(Equal(restart))
				r.recordFailed(vm, false)
				g.Expect(r.next(vm)).To(Equal(wait))
				r.observeRunning(vm.ClaimUID) // another user started it
				clock.Step(time.Minute)
			}
		},
		// A start that takes long counts once the VM was seen running.
		"pending": func(g *WithT, r *restarts, clock *clocktesting.FakeClock, vm instance.VM) {
			for range 10 {
				g.Expect(r.next(vm)).To(Equal(restart))
				r.recordFailed(vm, true)
				clock.Step(time.Minute)
			}
			for range 4 {
				g.Expect(r.next(vm)).To(Equal(restart))
				r.recordFailed(vm, true)
				r.observeRunning(vm.ClaimUID)
				r.observeRunning(vm.ClaimUID)
				clock.Step(time.Minute)
			}
			g.Expect(r.next(vm)).To(Equal(replace))
		},
		"stopping": func(g *WithT, r *restarts, clock *clocktesting.FakeClock, vm instance.VM) {
			other := vm
			other.ClaimUID = "other"
			r.observeStopping(vm)
			g.Expect(r.next(other)).To(Equal(wait), "it stops with its host")
			other.Host = "pve2"
			g.Expect(r.next(other)).To(Equal(restart))
			clock.Step(time.Minute)
			g.Expect(r.next(vm)).To(Equal(restart))
		},
		"reset": func(g *WithT, r *restarts, clock *clocktesting.FakeClock, vm instance.VM) {
			for range 10 {
				g.Expect(r.next(vm)).To(Equal(restart))
				r.recordStarted(vm)
				clock.Step(31 * time.Minute)
			}
		},
		// A VM that is paused long after its last restart starts with a new count.
		"reset_while_paused": func(g *WithT, r *restarts, clock *clocktesting.FakeClock, vm instance.VM) {
			for range 4 {
				r.recordStarted(vm)
			}
			clock.Step(r.resetAfter() + time.Second)
			r.recordBlocked(vm)
			clock.Step(time.Minute)
			g.Expect(r.next(vm)).To(Equal(restart))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			clock := clocktesting.NewFakeClock(time.Now())
			vm := instance.VM{Identity: instance.Identity{Region: "region-1", ClaimUID: "vm"}, Host: "pve1"}
			test(NewWithT(t), newRestarts(clock, RestartPolicy{Backoff: time.Minute, Limit: 4}), clock, vm)
		})
	}
}
