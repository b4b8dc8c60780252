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

func firstError(steps ...func() error) error {
	for _, step := range steps {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// killable returns a client of a process that is killed with the first fault.
func (e *env) killable() client.Client {
	check := func() error {
		if slices.ContainsFunc(e.sim.Faults(), func(fault pvesim.FaultState) bool { return fault.Hits > 0 }) {
			return context.Canceled
		}
		return nil
	}
	return interceptor.NewClient(e.kube.(client.WithWatch), interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
			return firstError(check, func() error { return c.Create(ctx, o, opts...) })
		},
		Update: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.UpdateOption) error {
			return firstError(check, func() error { return c.Update(ctx, o, opts...) })
		},
	})
}

// The process is killed before and after each request, while a Host is shut down and while it is
// woken. The next process continues.
func TestCrash(t *testing.T) {
	t.Parallel()
	prepared := func(t *testing.T, wake bool) *env {
		e := startEnv(t, enabledScenario(), enabled)
		e.kube = e.killable()
		e.start(kubeCluster)
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
					ctx := testenv.KillAtRequest(t, e.sim, point.Request, point.After)
					e.controller.Evaluate(ctx)
					e.sim.ClearFaults()
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
					// its idle time.
					e.Eventually(func() map[string]inventory.SleepState { e.evaluate(time.Minute); return e.states() }).WithTimeout(time.Minute).Should(
						Equal(map[string]inventory.SleepState{"pve4": inventory.Asleep}), e.log.String)
				})
			}
		})
	}
}

// Two controllers that both enroll all Hosts of a Cluster never shut a Host down that the other
// one uses, and none wakes a Host of the other one.
func TestTwoControllers(t *testing.T) {
	t.Parallel()
	s := enabledScenario()
	mark := func(vmid int, cluster, host string) pvesim.Guest {
		notes := ownership.Mark{VMID: vmid, KubeCluster: cluster, ClaimUID: "a"}
		return pvesim.Guest{VMID: vmid, Host: host, Config: map[string]string{"memory": "1024", "cores": "1", "description": notes.Notes("")}}
	}
	s.Guests = append(s.Guests, mark(20000, "a", "pve1"), mark(20001, "b", "pve2"))
	a := startEnv(t, s, all)
	b := &env{WithT: a.WithT, sim: a.sim, clock: a.clock, client: a.client, settings: a.settings, ctx: a.ctx, log: a.log, kube: testenv.NewFakeKube(t), events: &testenv.Recorder{}}
	a.start("a")
	b.start("b")
	for range 60 {
		a.evaluate(time.Minute)
		b.evaluate(0)
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
