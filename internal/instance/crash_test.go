// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package instance_test

import (
	"fmt"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

// callsOf records what a step asks of Proxmox.
func (w *world) callsOf(step func()) []pvesim.Request {
	w.t.Helper()
	w.sim.ResetRequests()
	step()
	return w.sim.Requests()
}

// moments are the places where a process can die, found by recording.
func moments(calls []pvesim.Request, run func(name string, n int, after bool)) {
	for n, call := range calls {
		for _, after := range []bool{false, true} {
			when := "before"
			if after {
				when = "after"
			}
			run(fmt.Sprintf("%s call %d, %s %s", when, n+1, call.Method, call.Template), n, after)
		}
	}
}

// expectDeath lets Proxmox answer again. Whoever did not die never made that call: a
// task is looked at as often as it takes.
func (w *world) expectDeath(died bool) {
	w.t.Helper()
	for _, fault := range w.sim.Faults() {
		w.Expect(died || fault.Hits == 0).To(BeTrue(), "the work went on after a death")
	}
	w.sim.ClearFaults()
}

// Whatever the moment at which the controller dies in a launch, the next one
// ends with exactly one VM: the one that the intent names.
func TestALaunchSurvivesDeathAtEveryCall(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	p := w.process(frozen)
	claim := w.planned(p, "recorded")
	calls := w.callsOf(func() { w.Expect(p.Launcher.Launch(t.Context(), claim, w.class)).To(Succeed()) })
	moments(calls, func(name string, n int, after bool) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, 1)
			dying := w.process(frozen)
			claim := w.planned(dying, "pool-abc")
			intent, _, err := instance.ReadIntent(claim)
			w.Expect(err).NotTo(HaveOccurred())
			err = dying.Launcher.Launch(testenv.DieAt(w.t, w.sim, n, after), claim, w.class)
			w.expectDeath(err != nil)

			next := w.process()
			w.Eventually(func() error { return next.Launcher.Launch(t.Context(), w.reread(claim), w.class) }).
				WithTimeout(30 * time.Second).WithPolling(100 * time.Millisecond).Should(Succeed())
			w.Expect(w.ours()).To(ConsistOf(HaveField("VMID", intent.VMID)))
			status, err := w.client().VMStatus(t.Context(), intent.Host, intent.VMID)
			w.Expect(err).NotTo(HaveOccurred())
			w.Expect(status.Running).To(BeTrue())
			cfg, err := w.client().VMConfig(t.Context(), intent.Host, intent.VMID)
			w.Expect(err).NotTo(HaveOccurred())
			disk, _ := cfg.BootDisk()
			w.Expect(disk.SizeBytes).To(BeNumerically(">=", intent.DiskBytes), "the disk was grown")
			w.Expect(cfg.Cores()).To(Equal(intent.Cores))
			w.deleted(next, w.reread(claim))
			w.expectNothingLeft()
		})
	})
}

// A claim that is deleted after its controller died in the launch leaves nothing.
func TestALaunchThatDiedIsDeletedWithoutATrace(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	p := w.process(frozen)
	claim := w.planned(p, "recorded")
	calls := w.callsOf(func() { w.Expect(p.Launcher.Launch(t.Context(), claim, w.class)).To(Succeed()) })
	moments(calls, func(name string, n int, after bool) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, 1)
			dying := w.process(frozen)
			claim := w.planned(dying, "pool-abc")
			err := dying.Launcher.Launch(testenv.DieAt(w.t, w.sim, n, after), claim, w.class)
			w.expectDeath(err != nil)
			w.deleted(w.process(), w.reread(claim))
			w.expectNothingLeft()
		})
	})
}

// A delete that dies at any call is finished by the next controller.
func TestADeleteSurvivesDeathAtEveryCall(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	p := w.process(frozen)
	claim := w.launched(p, "recorded")
	calls := w.callsOf(func() { w.deleted(p, claim) })
	moments(calls, func(name string, n int, after bool) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, 1)
			dying := w.process(frozen)
			claim := w.launched(dying, "pool-abc")
			gone, err := dying.Deleter.Delete(testenv.DieAt(w.t, w.sim, n, after), claim)
			w.expectDeath(!gone || err != nil)
			w.deleted(w.process(), w.reread(claim))
			w.expectNothingLeft()
		})
	})
}

// The figures to beat: one node, linked clone, boot drive, one security group,
// disk resized.
func TestALaunchAndADeleteAskLittle(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	p := w.process(frozen, unhurried)
	// The first launch teaches how long tasks take here.
	w.deleted(p, w.launched(p, "teacher"))
	claim := w.planned(p, "pool-abc")
	launch := w.callsOf(func() { w.Expect(p.Launcher.Launch(t.Context(), claim, w.class)).To(Succeed()) })
	w.Expect(len(launch)).To(BeNumerically("<=", 14), "%v", names(launch))
	claim = w.reread(claim)
	w.Expect(p.inventory.Refresh(t.Context(), region)).To(Succeed())
	removal := w.callsOf(func() { w.deleted(p, claim) })
	w.Expect(len(removal)).To(BeNumerically("<=", 8), "%v", names(removal))
}

func names(calls []pvesim.Request) []string {
	out := make([]string, 0, len(calls))
	for _, call := range calls {
		out = append(out, call.Method+" "+call.Template)
	}
	return out
}
