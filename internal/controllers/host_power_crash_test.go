// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package controllers_test

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/declared"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/ownership"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

// A new process continues from the records, and knows the size and the template of Hosts that
// are off.
func TestRestart(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		e := startEnv(t, enabled)
		e.sleepOne()
		before := e.pve4()
		e.start(kubeCluster)
		e.controller.Evaluate(e.ctx)
		e.evaluate(0)
		e.Expect(e.pve4()).To(And(HaveField("Sleep", declared.Asleep), HaveField("Free", before.Free), HaveField("Size", before.Size)))
		template, _ := e.inventory.View().Guest(testenv.Region, 9003)
		e.Expect(template).To(And(HaveField("Template", true), HaveField("Config", Not(BeNil()))))
		storage, _ := e.inventory.View().Storage(testenv.Region, "pve4", "local-lvm")
		e.Expect(storage.FreeBytes).To(BeNumerically(">", 0))

		e.reserve()
		e.evaluate(0)
		e.start(kubeCluster)
		e.expectStates(time.Minute, states{})

		// Records of another Kubernetes cluster are ignored.
		e.sleepOne()
		e.start("copy")
		e.evaluate(0)
		e.Expect(e.pve4().Sleep).To(BeEmpty())
		e.Expect(e.logged()).To(ContainSubstring("ignoring invalid record"))
	})
}

// kill is the write at which a process is killed, before or after it. The zero value is never.
type kill struct {
	write int
	after bool
}

// killable replaces the client by that of a process that is killed with the first fault, or at a
// write. It returns whether it was killed at the write.
func (e *hostPowerEnv) killable(at kill) (killed func() bool) {
	writes := 0
	isDead := func() bool {
		return at.write > 0 && (writes > at.write || writes == at.write && !at.after) ||
			slices.ContainsFunc(e.Sim.Faults(), func(fault pvesim.FaultState) bool { return fault.Hits > 0 })
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

// expectContinued starts the next process and expects that it wakes or shuts down the Host.
func (e *hostPowerEnv) expectContinued(wake bool) {
	e.T.Helper()
	e.start(kubeCluster)
	if wake {
		e.evaluate(0)
		e.reserve()
		for range 3 {
			e.evaluate(31 * time.Second) // the packet is sent again
		}
		e.expectStates(0, states{})
		e.Expect(e.wakes()).To(BeNumerically(">", 0))
		return
	}
	// The request was sent or not: the Host sleeps, or is awake after the timeout. Then it sleeps after
	// its idle time.
	e.evaluate(16 * time.Minute)
	e.evaluate(idleTime)
	e.expectStates(time.Minute, asleep)
}

// The process is killed before and after each request, while a Host is shut down and while it is
// woken. The next process continues.
func TestCrash(t *testing.T) {
	t.Parallel()
	prepared := func(t *testing.T, wake bool) *hostPowerEnv {
		e := startEnv(t, enabled)
		e.killable(kill{})
		if wake {
			e.sleepOne()
			e.reserve()
		} else {
			e.evaluate(0)
			time.Sleep(idleTime)
		}
		e.Sim.ResetRequests()
		return e
	}
	for name, wake := range map[string]bool{"shutdown": false, "wake": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var requests []pvesim.Request
			synctest.Test(t, func(t *testing.T) {
				e := prepared(t, wake)
				e.controller.Evaluate(e.ctx)
				requests = e.Sim.Requests()
			})
			for _, point := range testenv.CrashPoints(requests) {
				testenv.RunSimulated(t, point.Name, func(t *testing.T) {
					e := prepared(t, wake)
					e.controller.Evaluate(testenv.KillAtRequest(t, e.Sim, point.Request, point.After))
					time.Sleep(time.Second) // a request is served even if the process does not wait for its response
					e.Sim.ClearFaults()
					e.expectContinued(wake)
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
		testenv.RunSimulated(t, name, func(t *testing.T) {
			e := startEnv(t, enabled)
			if test.wake {
				e.sleepOne()
			}
			plain := e.kube
			killed := e.killable(test.kill)
			e.evaluate(0)
			if test.wake {
				e.reserve()
			}
			e.evaluate(idleTime)
			if test.write == 2 {
				e.evaluate(20 * time.Second)
			}
			e.Expect(killed()).To(BeTrue(), e.logged)
			e.kube = plain
			e.expectContinued(test.wake)
		})
	}
}

// Two controllers that both enroll all Hosts of a Cluster never shut a Host down that the other
// one uses, and none wakes a Host of the other one.
func TestTwoControllers(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		mark := func(vmid int, cluster, host string) pvesim.Guest {
			notes := ownership.Mark{VMID: vmid, KubeCluster: cluster, ClaimUID: "a"}
			return pvesim.Guest{VMID: vmid, Host: host, Config: map[string]string{"memory": "1024", "cores": "1", "description": notes.Notes("")}}
		}
		a := startEnv(t, all, func(s *pvesim.Scenario) {
			s.Guests = append(s.Guests, mark(20000, "a", "pve1"), mark(20001, "b", "pve2"))
		})
		b := new(*a)
		b.kube = testenv.NewFakeKube(t)
		a.start("a")
		b.start("b")
		a.evaluate(0)
		b.evaluate(0)
		time.Sleep(idleTime)
		for range 10 {
			a.evaluate(time.Minute)
			b.evaluate(0)
		}
		used := []string{"/nodes/pve1/status", "/nodes/pve2/status"}
		for _, request := range a.Sim.Requests() {
			if request.Method == "POST" {
				a.Expect(used).NotTo(ContainElement(request.Path))
			}
		}
		offline := 0
		for _, host := range a.inventory.View().Hosts() {
			if host.Has(inventory.Off) {
				offline++
			}
		}
		a.Expect(offline).To(Equal(2), "quorum needs three hosts")
		a.Expect(a.wakes()).To(BeZero())
	})
}
