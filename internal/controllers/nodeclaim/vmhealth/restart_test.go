// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package vmhealth_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

// startRequests returns how many starts of VMs were requested.
func startRequests(w *testenv.Env) int {
	return w.Sim.CountRequests("POST", "/nodes/{node}/qemu/{vmid}/status/start")
}

func launched(w *testenv.Env, n int) []*karpv1.NodeClaim {
	w.T.Helper()
	class := w.Class()
	var out []*karpv1.NodeClaim
	for i := range n {
		out = append(out, w.Launched(fmt.Sprintf("c%d", i), class))
	}
	return out
}

// A storage that is late after a power cut does not cost the Nodes whose VMs are on it.
func TestRestartLateStorage(t *testing.T) {
	t.Parallel()
	w := testenv.New(t, testenv.NoPolling())
	claim := launched(w, 1)[0]
	c := controller(w)
	w.Expect(w.Sim.SetStorageActive("pve1", "local-lvm", false)).To(Succeed())
	w.PowerOff(claim)
	before := startRequests(w)
	for range 30 {
		reconcile(w, c)
		w.Clock.Advance(time.Minute)
		w.Expect(w.IsDeleted(claim)).To(BeFalse(), "failed starts do not count")
	}
	w.Expect(startRequests(w)-before).To(BeNumerically("~", 30, 1), "one per backoff")
	w.Expect(w.Events.Messages("VMRestartFailed")).To(ContainElement(ContainSubstring("can't activate LV")))

	w.Expect(w.Sim.SetStorageActive("pve1", "local-lvm", true)).To(Succeed())
	w.Clock.Advance(time.Minute)
	reconcile(w, c)
	w.Expect(w.Running(claim)).To(BeTrue())
	w.Expect(w.Events.Messages("VMRestarted")).To(HaveLen(1))
}

// A start that waits for its storage longer than one attempt does not count either.
func TestRestartInProgress(t *testing.T) {
	t.Parallel()
	w := testenv.New(t, testenv.NoPolling())
	claim := launched(w, 1)[0]
	w.PowerOff(claim)
	// The tasks of the launch may take longer.
	w.Process = w.StartProcess(testenv.Settings(func(s *instance.Settings) { s.TaskTimeout = 200 * time.Millisecond }))
	c := controller(w)
	testenv.AddFault(t, w.Sim, pvesim.Fault{Task: "qmstart", Hang: true})
	for range 8 {
		reconcile(w, c)
		w.Clock.Advance(10 * time.Minute)
	}
	w.Expect(w.IsDeleted(claim)).To(BeFalse())
	w.Expect(w.Events.Reasons(claim)).To(Equal([]string{"VMStopped"}), "its start neither failed nor ended")
}

// A VM is stopped in the last Snapshot, and its region cannot be reached any more. The Snapshot may
// be older than the start of the VM.
func TestRestartUnreachable(t *testing.T) {
	t.Parallel()
	for name, interrupt := range map[string]func(*testenv.Env) (restore func()){
		"region": func(w *testenv.Env) func() {
			testenv.AddFault(w.T, w.Sim, pvesim.Fault{DropBefore: true})
			return w.Sim.ClearFaults
		},
		"no_quorum": func(w *testenv.Env) func() {
			w.Sim.SetQuorum(false)
			return func() { w.Sim.SetQuorum(true) }
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := testenv.New(t, testenv.Hosts(3), testenv.NoPolling())
			claim := w.Launched("a", w.Class())
			w.PowerOff(claim)
			c := controller(w)
			restore := interrupt(w)
			reconcile(w, c)
			w.Expect(w.Events.Reasons(claim)).To(BeEmpty(), "whether it is stopped is unknown")
			w.Expect(w.IsDeleted(claim)).To(BeFalse())
			restore()
			w.Eventually(func() error { return w.Inventory.RefreshAll(t.Context()) }).Should(Succeed())
			reconcile(w, c)
			w.Expect(w.Running(claim)).To(BeTrue(), "there is no backoff")
		})
	}
}

// A VM is stopped, and the API of its Host cannot be reached although the Host is online.
func TestRestartHostUnreachable(t *testing.T) {
	t.Parallel()
	w := testenv.New(t, testenv.NoPolling())
	claim := launched(w, 1)[0]
	w.PowerOff(claim)
	testenv.AddFault(t, w.Sim, pvesim.Fault{Method: "GET", Path: "/nodes/*/qemu/*/config", Status: 595})
	c := controller(w)
	reconcile(w, c)
	w.Expect(w.Events.Reasons(claim)).To(BeEmpty(), "the Snapshot may be older than a start")
	w.Sim.ResetRequests()
	reconcile(w, c)
	w.Expect(w.Sim.CountRequests("GET", "/nodes/{node}/qemu/{vmid}/config")).To(BeZero(), "there is a backoff")
	w.Clock.Advance(61 * time.Second)
	reconcile(w, c)
	w.Expect(w.Events.Messages("VMRestartFailed")).To(ConsistOf(ContainSubstring("host unreachable")))

	w.Sim.ClearFaults()
	w.Clock.Advance(61 * time.Second)
	reconcile(w, c)
	w.Expect(w.Running(claim)).To(BeTrue())
	w.Expect(w.Events.Reasons(claim)).To(Equal([]string{"VMStopped", "VMRestartFailed", "VMRestarted"}))
}

// A VM that stays locked after a crash is reported, and started when it is unlocked.
func TestRestartLocked(t *testing.T) {
	t.Parallel()
	w := testenv.New(t, testenv.NoPolling())
	claim := launched(w, 1)[0]
	w.PowerOff(claim)
	vmid := w.Intent(claim).VMID
	w.Expect(w.Sim.SetConfigLock(vmid, "migrate")).To(Succeed())
	c := controller(w)
	reconcile(w, c)
	w.Expect(w.Events.Reasons(claim)).To(BeEmpty(), "a task may work on the VM")
	w.Sim.ResetRequests()
	reconcile(w, c)
	w.Expect(w.Sim.CountRequests("GET", "/nodes/{node}/qemu/{vmid}/config")).To(BeZero(), "there is a backoff")
	w.Clock.Advance(61 * time.Second)
	reconcile(w, c)
	w.Expect(w.Events.Messages("VMLocked")).To(ConsistOf(And(ContainSubstring("locked (migrate)"), HaveSuffix("qm unlock %d", vmid))))

	w.Expect(w.Sim.SetConfigLock(vmid, "")).To(Succeed())
	w.Clock.Advance(61 * time.Second)
	reconcile(w, c)
	w.Expect(w.Running(claim)).To(BeTrue())
	w.Expect(w.Events.Reasons(claim)).To(Equal([]string{"VMLocked", "VMRestarted"}))
}

// A VM that QEMU paused, for example because its storage is full, is reported.
func TestPaused(t *testing.T) {
	t.Parallel()
	w := testenv.New(t, testenv.NoPolling())
	claim := launched(w, 1)[0]
	in, c := w.Intent(claim), controller(w)
	set := func(action, status string) {
		w.PostToProxmox(fmt.Sprintf("/nodes/%s/qemu/%d/status/%s", in.Host, in.VMID, action), nil)
		w.Eventually(func() string {
			w.Refresh()
			guest, _ := w.Inventory.View().Guest(in.Region, in.VMID)
			return guest.Status
		}).Should(Equal(status))
	}
	set("suspend", "paused")
	reconcile(w, c)
	w.Expect(w.Events.Reasons(claim)).To(BeEmpty(), "a migration pauses a VM for a moment")
	reconcile(w, c)
	w.Expect(w.Events.Messages("VMPaused")).To(ConsistOf(ContainSubstring("qm resume %d", in.VMID)))
	set("resume", "running")
	reconcile(w, c)
	w.Expect(w.Events.Reasons(claim)).To(Equal([]string{"VMPaused", "VMRestarted"}))
}

// A VM that was hibernated is started, which continues it.
func TestRestartSuspended(t *testing.T) {
	t.Parallel()
	w := testenv.New(t, testenv.NoPolling())
	claim := launched(w, 1)[0]
	w.PowerOff(claim)
	w.Expect(w.Sim.SetConfigLock(w.Intent(claim).VMID, "suspended")).To(Succeed())
	reconcile(w, controller(w))
	w.Expect(w.Running(claim)).To(BeTrue())
}

func TestMassReplacement(t *testing.T) {
	t.Parallel()
	w := testenv.New(t, testenv.NoPolling())
	claims := launched(w, 5)
	c := controller(w)
	crashAll := func() {
		for _, claim := range claims {
			w.PowerOff(claim)
		}
	}
	crashAll()
	for range 4 {
		reconcile(w, c)
		crashAll()
		w.Clock.Advance(9 * time.Minute)
	}
	before := startRequests(w)
	reconcile(w, c)
	for _, claim := range claims {
		w.Expect(w.IsDeleted(claim)).To(BeFalse(), "all VMs stop, so their common cause has to be fixed")
		w.Expect(w.Events.Reasons(claim)).To(ContainElement("ReplacementBlocked"))
	}
	w.Expect(startRequests(w)-before).To(Equal(5), "they are started with the longest backoff")
	w.Expect(w.Events.Messages("ReplacementBlocked")).To(ContainElement(ContainSubstring("5 of 5 VMs in region %s stop repeatedly", testenv.Region)))
	w.Expect(w.Events.Messages("VMCrashLooping")).To(BeEmpty())
}

func TestMassDeletion(t *testing.T) {
	t.Parallel()
	w := testenv.New(t, testenv.NoPolling())
	var missing []*karpv1.NodeClaim
	for _, claim := range launched(w, 5)[1:] {
		missing = append(missing, registered(w, claim))
		w.DestroyByHand("pve1", w.Intent(claim).VMID)
	}
	w.Refresh()
	c := controller(w)
	reconcile(w, c)
	w.Expect(w.Events.Messages("ReplacementBlocked")).To(HaveEach(ContainSubstring("4 of 5 VMs in region %s do not exist", testenv.Region)))
	registered(w, w.Launched("later", w.Class(func(c *v1alpha1.ProxmoxNodeClass) { c.Name = w.Named("other") })))
	w.Refresh()
	reconcile(w, c)
	for _, claim := range missing {
		w.Expect(w.IsDeleted(claim)).To(BeFalse())
		w.Expect(w.Events.Reasons(claim)).To(Equal([]string{"ReplacementBlocked"}), "one event, also when another VM is launched")
	}
	w.Expect(w.Kube.Delete(t.Context(), missing[0])).To(Succeed())
	w.Expect(w.IsDeleted(missing[0])).To(BeTrue())
	reconcile(w, c)
	for _, claim := range missing[1:] {
		w.Expect(w.IsDeleted(claim)).To(BeTrue(), "three are below the threshold")
	}
}

func TestRestartHostOutOfService(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		options []testenv.Option
		begin   func(*testenv.Env)
		end     func(*testenv.Env)
		event   string
	}{
		"maintenance": {
			options: []testenv.Option{testenv.Scenario(func(s *pvesim.Scenario) { s.Version = "9.2" })},
			begin:   func(w *testenv.Env) { w.Expect(w.Sim.SetMaintenance("pve1", true)).To(Succeed()) },
			end:     func(w *testenv.Env) { w.Expect(w.Sim.SetMaintenance("pve1", false)).To(Succeed()) },
			event:   "in maintenance",
		},
		"excluded": {
			begin: func(w *testenv.Env) { exclude(w, true) },
			end:   func(w *testenv.Env) { exclude(w, false) },
			event: "excluded by settings",
		},
		"shutting_down": {
			begin: func(w *testenv.Env) {
				testenv.AddFault(w.T, w.Sim, pvesim.Fault{Task: "stopall", Hang: true})
				w.Expect(w.Sim.ShutdownHost("pve1")).To(Succeed())
			},
			end: func(w *testenv.Env) {
				w.Expect(w.Sim.HostDown("pve1", "noroute")).To(Succeed())
				w.Expect(w.Sim.HostUp("pve1")).To(Succeed())
			},
			event: "shutting down",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := testenv.New(t, append(test.options, testenv.NoPolling())...)
			claim := launched(w, 1)[0]
			c := controller(w)
			test.begin(w)
			w.PowerOff(claim)
			before := startRequests(w)
			for range 8 {
				reconcile(w, c)
				w.Clock.Advance(10 * time.Minute)
			}
			w.Expect(startRequests(w)).To(Equal(before))
			w.Expect(w.IsDeleted(claim)).To(BeFalse())
			w.Expect(w.Events.Reasons(claim)).To(Equal([]string{"VMRestartSuspended"}), "one event per change")
			w.Expect(w.Events.Messages("VMRestartSuspended")).To(ContainElement(ContainSubstring(test.event)))

			test.end(w)
			w.Clock.Advance(10 * time.Minute)
			w.Eventually(func() bool { w.Refresh(); reconcile(w, c); return w.Running(claim) }).Should(BeTrue())
		})
	}
}

func TestStoppedVMWithoutProviderID(t *testing.T) {
	t.Parallel()
	w := testenv.New(t, testenv.NoPolling())
	claim := launched(w, 1)[0]
	w.PowerOff(claim)
	claim.Status.ProviderID = "" // core has not written the result of Create yet
	w.Expect(w.Kube.Status().Update(t.Context(), claim)).To(Succeed())
	reconcile(w, controller(w))
	w.Expect(w.Events.Reasons(claim)).To(BeEmpty())
	w.Expect(w.Running(claim)).To(BeFalse())
}

// A Claim that is deleted during the start of its VM ends the start without an event.
func TestRestartDeletedClaim(t *testing.T) {
	t.Parallel()
	w := testenv.New(t, testenv.NoPolling())
	claim := launched(w, 1)[0]
	w.PowerOff(claim)
	testenv.AddFault(t, w.Sim, pvesim.Fault{Task: "qmstart", Hang: true})
	before := startRequests(w)
	done := make(chan error, 1)
	go func() { _, err := controller(w).Reconcile(t.Context()); done <- err }()
	w.Eventually(func() int { return startRequests(w) }).Should(Equal(before + 1))
	ctx, cancel := context.WithCancel(t.Context())
	deleted := make(chan error, 1)
	go func() { _, err := w.Instances.Deleter.Delete(ctx, claim); deleted <- err }()
	w.Eventually(done).Should(Receive(BeNil()))
	cancel() // the start keeps running
	<-deleted
	w.Expect(w.Events.Reasons(claim)).To(BeEmpty())
}

func exclude(w *testenv.Env, on bool) {
	w.T.Helper()
	settings, err := inventory.ParseSettings([]byte(fmt.Sprintf(`{"*": {"*": {"excluded": %t}}}`, on)))
	w.Expect(err).NotTo(HaveOccurred())
	w.Inventory.SetSettings(settings)
}
