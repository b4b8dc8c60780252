// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package controllers_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/awslabs/operatorpkg/reconciler"
	. "github.com/onsi/gomega"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/nodeclaim/vmhealth"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
)

// health is an Env with the controller.
type health struct {
	*testenv.Env
	class      *v1alpha1.ProxmoxNodeClass
	controller *vmhealth.Controller
}

func newHealth(t *testing.T, options ...testenv.Option) *health {
	t.Helper()
	w := &health{Env: testenv.New(t, append(options, testenv.NoPolling())...)}
	w.class = w.Class()
	w.restart()
	return w
}

// vmHealthSimulated runs a test with a claim whose VM runs. It polls only when the test does.
func vmHealthSimulated(t *testing.T, setup testenv.Setup, test func(w *health, claim *karpv1.NodeClaim)) {
	t.Helper()
	testenv.Simulated(t, func(t *testing.T) {
		w := newHealth(t, setup...)
		test(w, w.Launched("a", w.class))
	})
}

// restart replaces the controller.
func (w *health) restart() {
	w.controller = vmhealth.NewController(vmhealth.Deps{
		Kube: w.Kube, VMs: w.Instances.VMs, Power: w.Instances.Power, Planner: w.Instances.Planner, Launches: w.Instances.Launches, Recorder: w.Events, Clock: w.Clock,
		PollInterval: time.Second, Timeout: 15 * time.Second, Restarts: vmhealth.RestartPolicy{Backoff: time.Minute, Limit: 4, ReplacementMaxFraction: 0.5},
	})
}

func (w *health) reconcile() {
	w.T.Helper()
	w.Expect(w.controller.Reconcile(w.Context())).To(Equal(reconciler.Result{RequeueAfter: time.Second}))
}

// poll reads the state of the VMs, and reconciles.
func (w *health) poll() {
	w.T.Helper()
	w.Refresh()
	w.reconcile()
}

// register sets that the Node of a claim is registered, and waits an hour.
func (w *health) register(claim *karpv1.NodeClaim) *karpv1.NodeClaim {
	w.T.Helper()
	w.Annotate(claim, map[string]string{v1alpha1.AnnotationLaunchedBy: v1alpha1.LaunchedByVersion})
	w.SetTrue(claim, karpv1.ConditionTypeRegistered)
	w.Clock.Advance(time.Hour)
	return claim
}

// destroy destroys the VM of a claim like an administrator.
func (w *health) destroy(claim *karpv1.NodeClaim) {
	w.T.Helper()
	w.DestroyByHand("pve1", w.Intent(claim).VMID)
}

func TestVMNotFound(t *testing.T) {
	vmHealthSimulated(t, testenv.With(), func(w *health, victim *karpv1.NodeClaim) {
		node := w.Node(w.register(victim))
		bystander, launching := w.register(w.Process.Launched("bystander", w.class)), w.Planned("launching", w.class)
		w.reconcile()
		w.Expect(w.IsDeleted(victim)).To(BeFalse())
		w.Expect(w.IsDeleted(bystander)).To(BeFalse(), "it is not in the snapshot yet")

		w.destroy(victim)
		w.poll()
		w.Expect(w.IsDeleted(victim)).To(BeTrue())
		w.Expect(w.IsDeleted(bystander)).To(BeFalse())
		w.Expect(w.IsDeleted(launching)).To(BeFalse(), "its VM does not exist yet")
		w.Expect(w.Events.Reasons(victim)).To(Equal([]string{"VMNotFound"}))
		w.Expect(w.Events.Reasons(node)).To(Equal([]string{"VMNotFound"}))
		w.Expect(w.Events.Messages("VMNotFound")).To(HaveEach(ContainSubstring("it was deleted or converted to a template outside of Karpenter")))
		w.Expect(w.Events.Reasons(bystander)).To(BeEmpty())
	})
}

// A deleted claim exists for some time after its capacity is released.
func TestReservationOfDeletedClaim(t *testing.T) {
	vmHealthSimulated(t, testenv.With(), func(w *health, claim *karpv1.NodeClaim) {
		testenv.Modify(w.Env, claim, func(c *karpv1.NodeClaim) { c.Finalizers = []string{karpv1.TerminationFinalizer} })
		w.Expect(w.Kube.Delete(w.Context(), claim)).To(Succeed())
		w.Delete(w.Stored(claim))
		w.reconcile()
		w.Expect(w.Inventory.View().Reservations).NotTo(HaveKey(string(claim.UID)))
	})
}

func TestOutage(t *testing.T) {
	vmHealthSimulated(t, testenv.With(), func(w *health, claim *karpv1.NodeClaim) {
		w.register(claim)
		w.destroy(claim)
		w.Refresh()
		reconnect := w.Disconnect()
		w.reconcile()
		w.Expect(w.IsDeleted(claim)).To(BeFalse(), "the second request failed")
		w.Expect(w.Inventory.RefreshAll(w.Context())).NotTo(Succeed())
		w.reconcile()
		w.Expect(w.IsDeleted(claim)).To(BeFalse())
		reconnect()
		w.poll()
		w.Expect(w.IsDeleted(claim)).To(BeTrue())
	})
}

// A region that was never polled does not affect the VMs of other regions.
func TestRegionNotPolled(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w := newHealth(t, testenv.NeverPolled(), testenv.OtherHosts(1))
		elsewhere := w.Claim("elsewhere", w.class)
		elsewhere.Status.ProviderID = "proxmox://" + testenv.OtherRegion + "/20001"
		w.Expect(w.Kube.Status().Update(t.Context(), elsewhere)).To(Succeed())
		w.register(elsewhere)
		w.reconcile()
		poll := func() { w.Expect(w.Inventory.Refresh(t.Context(), testenv.Region)).To(Succeed()) }
		poll()
		stopped, missing := w.register(w.Process.Launched("stopped", w.class)), w.register(w.Process.Launched("missing", w.class))
		w.Expect(w.Sim.PowerOffGuest(w.Intent(stopped).VMID)).To(Succeed())
		w.destroy(missing)

		w.Eventually(func() bool { poll(); w.reconcile(); return w.Running(stopped) }).Should(BeTrue())
		w.Eventually(func() bool { poll(); w.reconcile(); return w.IsDeleted(missing) }).Should(BeTrue())
		w.Expect(w.IsDeleted(elsewhere)).To(BeFalse())
		w.Expect(w.Events.Reasons(elsewhere)).To(BeEmpty())
	})
}

func TestHostOffline(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w := newHealth(t, testenv.Hosts(2))
		claim := w.register(w.Launched("a", w.class, testenv.OnHost("pve2"))) // pve1 serves the API
		w.Expect(w.Sim.HostDown("pve2", "noroute")).To(Succeed())
		waitOnline(w.Env, false)
		w.reconcile()
		w.Expect(w.IsDeleted(claim)).To(BeFalse())
		w.Expect(w.Events.Reasons(claim)).To(BeEmpty())

		// Its guests are stopped when it is back, and are started.
		w.Expect(w.Sim.HostUp("pve2")).To(Succeed())
		w.Eventually(func() []string { w.poll(); return w.Events.Reasons(claim) }).Should(ContainElement("VMRestarted"))
		w.Expect(w.Running(claim)).To(BeTrue())
		w.Expect(w.IsDeleted(claim)).To(BeFalse())
	})
}

func TestMigratedVM(t *testing.T) {
	vmHealthSimulated(t, testenv.With(testenv.Hosts(2)), func(w *health, claim *karpv1.NodeClaim) {
		in := w.Intent(claim)
		target := testenv.OtherHost(in.Host)
		for _, host := range []string{target, in.Host} {
			w.Expect(w.Sim.MigrateGuest(in.VMID, host)).To(Succeed())
			w.poll()
			w.poll()
			w.Expect(w.Instances.Launches.Host(string(claim.UID))).To(Equal(host))
		}
		w.Expect(w.Events.Reasons(claim)).To(Equal([]string{"VMMigrated", "VMMigrated"}), "each one is reported once")
	})
}

func TestVMUnderHA(t *testing.T) {
	vmHealthSimulated(t, testenv.With(), func(w *health, claim *karpv1.NodeClaim) {
		vmid, before := w.Intent(claim).VMID, w.startRequests()
		w.Expect(w.Sim.SetHA(vmid, "stopped")).To(Succeed())
		w.WaitStatus(vmid, "stopped")
		w.reconcile()
		w.reconcile()
		w.Expect(w.startRequests()).To(Equal(before), "stopped by an administrator")
		w.Expect(w.Events.Messages("VMStoppedByHA")).To(HaveEach(ContainSubstring("ha-manager set vm:")))
		w.Expect(w.Events.Reasons(claim)).NotTo(ContainElement("VMRestarted"))

		w.Expect(w.Sim.SetHA(vmid, "started")).To(Succeed())
		w.Eventually(func() bool { w.poll(); return w.Running(claim) }).Should(BeTrue())
		w.WaitStatus(vmid, "running")
		w.Expect(w.startRequests()).To(Equal(before), "HA has started it")
		w.Expect(w.IsDeleted(claim)).To(BeFalse())

		w.Expect(w.Sim.SetHA(vmid, "ignored")).To(Succeed())
		w.PowerOff(claim)
		w.reconcile()
		w.Expect(w.Running(claim)).To(BeTrue(), "HA ignores it")
		w.Expect(w.startRequests()).To(Equal(before + 1))
	})
}

func TestNodeNotJoined(t *testing.T) {
	vmHealthSimulated(t, testenv.With(), func(w *health, late *karpv1.NodeClaim) {
		joined := w.register(w.Launched("joined", w.class))
		young := w.Launched("young", w.class)
		w.poll()
		w.Expect(w.Events.Messages(v1alpha1.EventNodeNotJoined)).To(HaveExactElements(And(
			ContainSubstring(fmt.Sprintf("VM %d has been running on host pve1", w.Intent(late).VMID)),
			ContainSubstring("kubectl proxmox render --nodeclaim "+late.Name),
			ContainSubstring(fmt.Sprintf("qm terminal %d", w.Intent(late).VMID)),
		)), "only of the one after the timeout")
		w.Expect(w.Events.Reasons(young)).To(BeEmpty())
		w.Expect(w.Events.Reasons(joined)).To(BeEmpty())
	})
}

func TestReportStoppedAndRestarted(t *testing.T) {
	vmHealthSimulated(t, testenv.With(), func(w *health, claim *karpv1.NodeClaim) {
		node, vmid := w.Node(w.register(claim)), w.Intent(claim).VMID
		w.PowerOff(claim)
		w.Expect(w.Sim.SetConfigLock(vmid, "suspended")).To(Succeed()) // it was hibernated, and a start continues it
		w.reconcile()
		w.Expect(w.Running(claim)).To(BeTrue())
		w.WaitStatus(vmid, "running")
		w.restart()
		w.reconcile()
		for _, object := range []client.Object{claim, node} {
			w.Expect(w.Events.Reasons(object)).To(Equal([]string{"VMStopped", "VMRestarted"}))
		}
		w.Expect(w.Events.Messages("VMStopped")).To(HaveEach(fmt.Sprintf(
			"VM %d on host pve1 is stopped: it was stopped outside of Karpenter, crashed, or its host restarted; Karpenter starts it", vmid)))
		w.Expect(w.Events.Messages("VMRestarted")).To(HaveEach(fmt.Sprintf("VM %d was found stopped on host pve1 and was started again", vmid)))
	})
}

// A VM that stays stopped is reported once.
func TestReportStoppedOnce(t *testing.T) {
	vmHealthSimulated(t, testenv.With(), func(w *health, claim *karpv1.NodeClaim) {
		node, vmid := w.Node(claim), w.Intent(claim).VMID
		// repeat reconciles with new controllers, and returns the recorded problem.
		repeat := func() string {
			for range 3 {
				w.restart()
				w.reconcile()
			}
			return w.Instances.Launches.Reported(string(claim.UID), "problem")
		}
		w.ApplySettings(excluded)
		w.PowerOff(claim)
		w.Expect(repeat()).To(Equal(w.Events.Messages("VMRestartSuspended")[0]))
		w.Expect(w.Events.Reasons(claim)).To(Equal([]string{"VMRestartSuspended"}))

		// An administrator starts it.
		w.Wait(w.Client.StartVM(w.Context(), "pve1", vmid))
		w.WaitStatus(vmid, "running")
		w.Expect(repeat()).To(BeEmpty())
		w.Expect(w.Events.Reasons(node)).To(Equal([]string{"VMRestartSuspended", "VMRestarted"}))
		w.Expect(w.Events.Messages("VMRestarted")).To(HaveEach(HaveSuffix("is running again on host pve1")))
	})
}
