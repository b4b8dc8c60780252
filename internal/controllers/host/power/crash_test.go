// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package power_test

import (
	"context"
	"slices"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/ownership"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

// A new process continues from the records, and knows the size and the template of Hosts that
// are off.
func TestRestart(t *testing.T) {
	t.Parallel()
	e := startEnv(t, enabledScenario(), enabled)
	e.sleepOne()
	before, _ := e.inventory.View().Host("home", "pve4")
	e.start(kubeCluster)
	e.controller.Evaluate(e.ctx)
	e.evaluate(0)
	after, _ := e.inventory.View().Host("home", "pve4")
	e.Expect(after).To(And(HaveField("Sleep", inventory.Asleep), HaveField("Unusable", ""), HaveField("Free", before.Free), HaveField("Size", before.Size)))
	template, _ := e.inventory.View().Guest("home", 9003)
	e.Expect(template.Template).To(BeTrue())
	e.Expect(template.Config).NotTo(BeNil())
	storage, _ := e.inventory.View().Storage("home", "pve4", "local-lvm")
	e.Expect(storage.FreeBytes).To(BeNumerically(">", 0))

	e.reserve()
	e.evaluate(0)
	e.start(kubeCluster)
	e.evaluateUntil(map[string]inventory.SleepState{})

	// Records of another Kubernetes cluster are ignored.
	e.evaluate(0)
	e.evaluate(31 * time.Minute)
	e.evaluateUntil(map[string]inventory.SleepState{"pve4": inventory.Asleep})
	e.start("copy")
	e.evaluate(0)
	host, _ := e.inventory.View().Host("home", "pve4")
	e.Expect(host.Sleep).To(BeEmpty())
	e.Expect(e.log.String()).To(ContainSubstring("ignoring invalid record"))
}

// kill is the write at which a process is killed, before or after it. The zero value is never.
type kill struct {
	write int
	after bool
}

// killable replaces the client by that of a process that is killed with the first fault, or at a
// write. It returns whether it was killed at the write.
func (e *env) killable(at kill) (killed func() bool) {
	writes := 0
	isDead := func() bool {
		return at.write > 0 && (writes > at.write || writes == at.write && !at.after) ||
			slices.ContainsFunc(e.sim.Faults(), func(fault pvesim.FaultState) bool { return fault.Hits > 0 })
	}
	write := func(do func() error) error {
		if writes++; isDead() {
			return context.Canceled
		}
		if err := do(); err != nil || writes != at.write {
			return err
		}
		return context.Canceled
	}
	e.kube = interceptor.NewClient(e.kube.(client.WithWatch), interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
			return write(func() error { return c.Create(ctx, o, opts...) })
		},
		Update: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.UpdateOption) error {
			return write(func() error { return c.Update(ctx, o, opts...) })
		},
	})
	e.start(kubeCluster)
	return func() bool { return at.write > 0 && writes >= at.write }
}

// expectContinued starts the next process and expects that it wakes or shuts down the Host. lost means
// that a shutdown was requested whose response was lost.
func (e *env) expectContinued(wake, lost bool) {
	e.start(kubeCluster)
	if wake {
		e.evaluate(0)
		e.reserve()
		e.Eventually(func() map[string]inventory.SleepState { e.evaluate(5 * time.Second); return e.states() }).WithTimeout(time.Minute).Should(
			BeEmpty(), e.log.String)
		e.Expect(e.wakes()).To(BeNumerically(">", 0))
		return
	}
	// The request was sent or not: the Host sleeps, or is awake after the timeout. Then it sleeps after
	// its idle time. The simulated shutdown takes real time, so the clock advances only until it was
	// requested: its timeout must not end meanwhile.
	requested := func() bool {
		return lost || slices.ContainsFunc(e.sim.Requests(), func(r pvesim.Request) bool { return r.Method == "POST" && r.Status == 200 })
	}
	e.Eventually(func() map[string]inventory.SleepState {
		if requested() {
			e.evaluate(0)
		} else {
			e.evaluate(5 * time.Minute)
		}
		return e.states()
	}).WithTimeout(time.Minute).Should(Equal(map[string]inventory.SleepState{"pve4": inventory.Asleep}), e.log.String)
}

// The process is killed before and after each request, while a Host is shut down and while it is
// woken. The next process continues.
func TestCrash(t *testing.T) {
	t.Parallel()
	prepared := func(t *testing.T, wake bool) *env {
		e := startEnv(t, enabledScenario(), enabled)
		e.killable(kill{})
		if wake {
			e.sleepOne()
			e.reserve()
			return e
		}
		e.evaluate(0)
		e.clock.SetTime(e.clock.Now().Add(31 * time.Minute))
		return e
	}
	for name, wake := range map[string]bool{"shutdown": false, "wake": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := prepared(t, wake)
			e.sim.ResetRequests()
			e.controller.Evaluate(e.ctx)
			for _, point := range testenv.CrashPoints(e.sim.Requests()) {
				t.Run(point.Name, func(t *testing.T) {
					t.Parallel()
					e := prepared(t, wake)
					e.sim.ResetRequests()
					ctx := testenv.KillAtRequest(t, e.sim, point.Request, point.After)
					e.controller.Evaluate(ctx)
					// A request is served even if the process does not wait for its response.
					e.Eventually(func() bool { return len(e.sim.Requests()) >= e.sim.Faults()[0].Matched }).WithTimeout(time.Minute).Should(BeTrue())
					served := e.sim.Requests()
					e.sim.ClearFaults()
					e.expectContinued(wake, point.After && point.Request < len(served) && served[point.Request].Method == "POST")
				})
			}
		})
	}
}

// The process is killed before and after each write to Kubernetes.
func TestCrashAtWrite(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		wake bool
		kill
	}{
		"before_ShuttingDown": {false, kill{1, false}}, "after_ShuttingDown": {false, kill{1, true}},
		"before_Asleep": {false, kill{2, false}}, "after_Asleep": {false, kill{2, true}},
		"before_Waking": {true, kill{1, false}}, "after_Waking": {true, kill{1, true}},
		"before_awake": {true, kill{2, false}}, "after_awake": {true, kill{2, true}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := startEnv(t, enabledScenario(), enabled)
			if test.wake {
				e.sleepOne()
			}
			plain := e.kube
			killed := e.killable(test.kill)
			e.evaluate(0)
			if test.wake {
				e.reserve()
			}
			e.clock.SetTime(e.clock.Now().Add(31 * time.Minute))
			// The clock stands still: a Host that wakes is not woken again.
			e.Eventually(func() bool { e.evaluate(0); return killed() }).WithTimeout(time.Minute).Should(BeTrue(), e.log.String)
			e.kube = plain
			e.expectContinued(test.wake, false)
		})
	}
}

// Two controllers that both enroll all Hosts of a Cluster never shut a Host down that the other
// one uses, and none wakes a Host of the other one.
func TestTwoControllers(t *testing.T) {
	t.Parallel()
	s := enabledScenario()
	s.Speed = 0.5 // both controllers decide before a Host stops its guests and is off
	mark := func(vmid int, cluster, host string) pvesim.Guest {
		notes := ownership.Mark{VMID: vmid, KubeCluster: cluster, ClaimUID: "a"}
		return pvesim.Guest{VMID: vmid, Host: host, Config: map[string]string{"memory": "1024", "cores": "1", "description": notes.Notes("")}}
	}
	s.Guests = append(s.Guests, mark(20000, "a", "pve1"), mark(20001, "b", "pve2"))
	a := startEnv(t, s, all)
	b := &env{WithT: a.WithT, sim: a.sim, clock: a.clock, client: a.client, settings: a.settings, ctx: a.ctx, log: a.log, kube: testenv.NewFakeKube(t), events: &testenv.Recorder{}}
	a.start("a")
	b.start("b")
	shuttingDown := func() bool {
		return slices.ContainsFunc(slices.Concat(a.inventory.View().Hosts(), b.inventory.View().Hosts()), func(host inventory.HostState) bool {
			return host.Sleep == inventory.ShuttingDown
		})
	}
	for range 60 {
		a.evaluate(time.Minute)
		b.evaluate(0)
		if shuttingDown() {
			// The simulated shutdown takes real time. The clock does not advance, so its timeout does not end meanwhile.
			a.Eventually(func() bool { a.evaluate(0); b.evaluate(0); return shuttingDown() }).WithTimeout(time.Minute).Should(BeFalse(), a.log.String)
		}
	}
	used := []string{"/nodes/pve1/status", "/nodes/pve2/status"}
	for _, request := range a.sim.Requests() {
		if request.Method == "POST" {
			a.Expect(used).NotTo(ContainElement(request.Path))
		}
	}
	offline := 0
	for _, host := range a.inventory.View().Hosts() {
		if !host.OfflineSince.IsZero() {
			offline++
		}
	}
	a.Expect(offline).To(Equal(2), "quorum needs three hosts")
	a.Expect(a.wakes()).To(BeZero())
}
