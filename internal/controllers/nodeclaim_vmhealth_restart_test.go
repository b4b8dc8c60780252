// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package controllers_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

// excluded are settings that exclude all Hosts.
const excluded = `{"*": {"*": {"excluded": true}}}`

// startRequests returns how many starts of VMs were requested.
func (w *health) startRequests() int {
	return w.Sim.CountRequests("POST", "/nodes/{node}/qemu/{vmid}/status/start")
}

func TestRestartStoppedVM(t *testing.T) {
	vmHealthSimulated(t, testenv.With(), func(w *health, claim *karpv1.NodeClaim) {
		w.PowerOff(claim)
		for i := range 4 {
			w.reconcile()
			w.Expect(w.Running(claim)).To(BeTrue(), "start %d", i+1)
			w.PowerOff(claim)
			w.reconcile()
			w.Expect(w.Running(claim)).To(BeFalse(), "not without backoff")
			w.Clock.Advance(8 * time.Minute)
		}
		w.Expect(w.Events.Messages("VMRestarted")).To(HaveLen(4))
		w.Expect(w.IsDeleted(claim)).To(BeFalse())
		w.reconcile()
		w.Expect(w.IsDeleted(claim)).To(BeTrue())
		w.Expect(w.Events.Messages("VMCrashLooping")).To(HaveLen(1))
	})
}

// A storage that is late after a power cut does not cost the Nodes whose VMs are on it.
func TestRestartLateStorage(t *testing.T) {
	vmHealthSimulated(t, testenv.With(), func(w *health, claim *karpv1.NodeClaim) {
		w.Expect(w.Sim.SetStorageActive("pve1", "local-lvm", false)).To(Succeed())
		w.PowerOff(claim)
		before := w.startRequests()
		for range 30 {
			w.reconcile()
			w.Clock.Advance(time.Minute)
			w.Expect(w.IsDeleted(claim)).To(BeFalse(), "failed starts do not count")
		}
		w.Expect(w.startRequests()-before).To(Equal(30), "one per backoff")
		w.Expect(w.Events.Messages("VMRestartFailed")).To(ContainElement(ContainSubstring("can't activate LV")))

		w.Expect(w.Sim.SetStorageActive("pve1", "local-lvm", true)).To(Succeed())
		w.reconcile()
		w.Expect(w.Running(claim)).To(BeTrue())
		w.Expect(w.Events.Messages("VMRestarted")).To(HaveLen(1))
	})
}

// A start that waits for its storage longer than one attempt does not count either.
func TestRestartInProgress(t *testing.T) {
	vmHealthSimulated(t, testenv.With(), func(w *health, claim *karpv1.NodeClaim) {
		w.register(claim)
		w.PowerOff(claim)
		// The tasks of the launch may take longer.
		w.Process = w.StartProcess(testenv.Settings(func(s *instance.Settings) { s.TaskTimeout = 200 * time.Millisecond }))
		w.restart()
		w.AddFault(pvesim.Fault{Task: "qmstart", Hang: true})
		for range 8 {
			w.reconcile()
			w.Clock.Advance(10 * time.Minute)
		}
		w.Expect(w.IsDeleted(claim)).To(BeFalse())
		w.Expect(w.Events.Reasons(claim)).To(Equal([]string{"VMStopped"}), "its start neither failed nor ended")
	})
}

// A VM is stopped in the last Snapshot, and its region cannot be reached any more. The Snapshot may
// be older than the start of the VM.
func TestRestartUnreachable(t *testing.T) {
	t.Parallel()
	for name, interrupt := range map[string]func(*testenv.Env){
		"region":    func(w *testenv.Env) { w.AddFault(pvesim.Fault{DropBefore: true}) },
		"no_quorum": func(w *testenv.Env) { w.Sim.SetQuorum(false) },
		// Other hosts seem to be offline, and their guests are not listed. No request is needed.
		"no_quorum_in_snapshot": func(w *testenv.Env) {
			w.Expect(w.Sim.Partition("pve1")).To(Succeed())
			w.Expect(w.Inventory.RefreshAll(w.Context())).To(MatchError(proxmox.ErrNoQuorum))
			w.AddFault(pvesim.Fault{DropAfter: true})
		},
	} {
		t.Run(name, func(t *testing.T) {
			vmHealthSimulated(t, testenv.With(testenv.Hosts(3)), func(w *health, claim *karpv1.NodeClaim) {
				w.register(claim)
				w.PowerOff(claim)
				interrupt(w.Env)
				w.reconcile()
				w.Expect(w.Events.Reasons(claim)).To(BeEmpty(), "whether it is stopped is unknown")
				w.Expect(w.IsDeleted(claim)).To(BeFalse())
				if name == "no_quorum_in_snapshot" {
					w.Expect(w.Sim.Faults()[0].Hits).To(BeZero(), "no restart, and no check whether the VM still exists")
				}
				w.Sim.ClearFaults()
				w.Sim.SetQuorum(true)
				w.Sim.Heal()
				w.Eventually(func() error { return w.Inventory.RefreshAll(w.Context()) }).Should(Succeed())
				w.reconcile()
				w.Expect(w.Running(claim)).To(BeTrue(), "there is no backoff")
			})
		})
	}
}

// What blocks a VM is reported if it still does at the second attempt.
func TestRestartBlocked(t *testing.T) {
	t.Parallel()
	lock := func(name string) func(*testenv.Env, instance.Intent) {
		return func(w *testenv.Env, in instance.Intent) { w.Expect(w.Sim.SetConfigLock(in.VMID, name)).To(Succeed()) }
	}
	pause := func(action, status string) func(*testenv.Env, instance.Intent) {
		return func(w *testenv.Env, in instance.Intent) {
			w.PostToProxmox(fmt.Sprintf("/nodes/%s/qemu/%d/status/%s", in.Host, in.VMID, action), nil)
			w.WaitStatus(in.VMID, status)
		}
	}
	for name, test := range map[string]struct {
		running        bool
		block, unblock func(*testenv.Env, instance.Intent)
		reasons        []string
		message        string // with VMID
	}{
		// The API of the Host cannot be reached although the Host is online. The Snapshot may be older than a start.
		"unreachable_host": {
			block: func(w *testenv.Env, _ instance.Intent) {
				w.AddFault(pvesim.Fault{Method: "GET", Path: "/nodes/*/qemu/*/config", Status: 595})
			},
			unblock: func(w *testenv.Env, _ instance.Intent) { w.Sim.ClearFaults() },
			reasons: []string{"VMStopped", "VMRestartFailed"}, message: "VM %d on host pve1 is stopped and cannot be started, .*host unreachable",
		},
		// A task may work on the VM, or it was killed.
		"locked": {block: lock("migrate"), unblock: lock(""), reasons: []string{"VMLocked"}, message: `locked \(migrate\).*qm unlock %d$`},
		// By QEMU, for example because its storage is full. A migration pauses a VM for a moment.
		"paused": {
			running: true, block: pause("suspend", "paused"), unblock: pause("resume", "running"), reasons: []string{"VMPaused"}, message: "qm resume %d",
		},
	} {
		t.Run(name, func(t *testing.T) {
			vmHealthSimulated(t, testenv.With(), func(w *health, claim *karpv1.NodeClaim) {
				in := w.Intent(claim)
				if !test.running {
					w.PowerOff(claim)
				}
				test.block(w.Env, in)
				w.reconcile()
				w.Expect(w.Events.Reasons(claim)).To(BeEmpty(), "it may end soon")
				if !test.running {
					w.Sim.ResetRequests()
					w.reconcile()
					w.Expect(w.Sim.Requests()).To(BeEmpty(), "there is a backoff")
					w.Clock.Advance(time.Minute)
				}
				w.reconcile()
				w.Expect(w.Events.Reasons(claim)).To(Equal(test.reasons))
				w.Expect(w.Events.Messages(test.reasons[len(test.reasons)-1])).To(ConsistOf(MatchRegexp(test.message, in.VMID)))

				test.unblock(w.Env, in)
				w.Clock.Advance(time.Minute)
				w.reconcile()
				w.Expect(w.Running(claim)).To(BeTrue())
				w.Expect(w.Events.Reasons(claim)).To(Equal(append(test.reasons, "VMRestarted")))
			})
		})
	}
}

func TestMassReplacement(t *testing.T) {
	vmHealthSimulated(t, testenv.With(), func(w *health, claim *karpv1.NodeClaim) {
		claims := []*karpv1.NodeClaim{claim}
		for _, name := range []string{"b", "c", "d", "e"} {
			claims = append(claims, w.Launched(name, w.class))
		}
		var before int
		for range 5 {
			for _, claim := range claims {
				w.PowerOff(claim)
			}
			w.Clock.Advance(9 * time.Minute)
			before = w.startRequests()
			w.reconcile()
		}
		for _, claim := range claims {
			w.Expect(w.IsDeleted(claim)).To(BeFalse(), "all VMs stop, so their common cause has to be fixed")
			w.Expect(w.Events.Reasons(claim)).To(ContainElement("ReplacementBlocked"))
		}
		w.Expect(w.startRequests()-before).To(Equal(5), "they are started with the longest backoff")
		w.Expect(w.Events.Messages("ReplacementBlocked")).To(HaveEach(ContainSubstring("5 of 5 VMs in region %s stop repeatedly", testenv.Region)))
		w.Expect(w.Events.Messages("VMCrashLooping")).To(BeEmpty())
	})
}

// The threshold is per region.
func TestMassDeletion(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w := newHealth(t, testenv.OtherHosts(1))
		w.Launched("a", w.class)
		missing := map[string][]*karpv1.NodeClaim{}
		for _, region := range []string{testenv.Region, testenv.OtherRegion} {
			for n := range 4 {
				claim := w.register(w.Claim(fmt.Sprint("missing-", region, n), w.class))
				claim.Status.ProviderID = fmt.Sprintf("proxmox://%s/%d", region, testenv.LastVMID-n)
				w.Expect(w.Kube.Status().Update(t.Context(), claim)).To(Succeed())
				missing[region] = append(missing[region], claim)
			}
		}
		ctx, logged := testenv.RecordLog(t.Context())
		poll := func() {
			w.Refresh()
			w.Expect(w.controller.Reconcile(ctx)).Error().NotTo(HaveOccurred())
		}
		poll()
		w.Expect(w.Events.Messages("ReplacementBlocked")).To(And(HaveLen(8), ContainElement(ContainSubstring("4 of 5 VMs in region region-1 do not exist"))))
		w.register(w.Launched("later", w.class))
		poll()
		w.Expect(w.Events.Messages("ReplacementBlocked")).To(HaveLen(8), "one event per claim, also when another VM is launched")
		w.Expect(logged.Lines("too many VMs do not exist")).To(ConsistOf(ContainSubstring("region-1"), ContainSubstring("region-2")), "once per region")
		w.Expect(w.Kube.Delete(t.Context(), missing[testenv.Region][0])).To(Succeed())
		poll()
		for _, claim := range missing[testenv.Region] {
			w.Expect(w.IsDeleted(claim)).To(BeTrue(), "three are below the threshold")
		}
		for _, claim := range missing[testenv.OtherRegion] {
			w.Expect(w.IsDeleted(claim)).To(BeFalse())
		}
	})
}

func TestRestartHostOutOfService(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		begin, end func(*testenv.Env)
		event      string
	}{
		"maintenance": {
			func(w *testenv.Env) { w.Expect(w.Sim.SetMaintenance("pve1", true)).To(Succeed()) },
			func(w *testenv.Env) { w.Expect(w.Sim.SetMaintenance("pve1", false)).To(Succeed()) }, "in maintenance",
		},
		"excluded": {func(w *testenv.Env) { w.ApplySettings(excluded) }, func(w *testenv.Env) { w.ApplySettings("{}") }, "excluded by settings"},
		"shutting_down": {func(w *testenv.Env) {
			w.AddFault(pvesim.Fault{Task: "stopall", Hang: true})
			w.Expect(w.Sim.ShutdownHost("pve1")).To(Succeed())
		}, func(w *testenv.Env) {
			w.Expect(w.Sim.HostDown("pve1", "noroute")).To(Succeed())
			w.Expect(w.Sim.HostUp("pve1")).To(Succeed())
		}, "shutting down"},
	} {
		t.Run(name, func(t *testing.T) {
			vmHealthSimulated(t, testenv.With(testenv.HA("9.2")), func(w *health, claim *karpv1.NodeClaim) {
				test.begin(w.Env)
				w.PowerOff(claim)
				before := w.startRequests()
				for range 8 {
					w.reconcile()
					w.Clock.Advance(10 * time.Minute)
				}
				w.Expect(w.startRequests()).To(Equal(before))
				w.Expect(w.IsDeleted(claim)).To(BeFalse())
				w.Expect(w.Events.Reasons(claim)).To(Equal([]string{"VMRestartSuspended"}), "one event per change")
				w.Expect(w.Events.Messages("VMRestartSuspended")).To(ConsistOf(ContainSubstring(test.event)))

				test.end(w.Env)
				w.Clock.Advance(10 * time.Minute)
				w.Eventually(func() bool { w.poll(); return w.Running(claim) }).Should(BeTrue())
			})
		})
	}
}

// A Claim that is deleted during the start of its VM ends the start without an event.
func TestRestartDeletedClaim(t *testing.T) {
	vmHealthSimulated(t, testenv.With(), func(w *health, claim *karpv1.NodeClaim) {
		w.PowerOff(claim)
		w.AddFault(pvesim.Fault{Task: "qmstart", Hang: true})
		before := w.startRequests()
		done := make(chan error, 1)
		go func() { _, err := w.controller.Reconcile(w.Context()); done <- err }()
		w.Eventually(w.startRequests).Should(Equal(before + 1))
		ctx, cancel := context.WithCancel(w.Context())
		deleted := make(chan error, 1)
		go func() { _, err := w.Instances.Deleter.Delete(ctx, claim); deleted <- err }()
		w.Expect(<-done).To(Succeed())
		cancel() // the start keeps running
		<-deleted
		w.Expect(w.Events.Reasons(claim)).To(BeEmpty())
	})
}
