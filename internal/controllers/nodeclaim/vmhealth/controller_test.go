// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package vmhealth_test

import (
	"fmt"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/nodeclaim/vmhealth"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
)

func controller(w *testenv.Env) *vmhealth.Controller {
	return vmhealth.NewController(vmhealth.Deps{
		Kube: w.Kube, VMs: w.Instances.VMs, Power: w.Instances.Power, Planner: w.Instances.Planner, Recorder: w.Events, Clock: w.Clock,
		PollInterval: time.Second, Timeout: 15 * time.Second, Restarts: vmhealth.RestartPolicy{Backoff: time.Minute, Limit: 4, ReplacementMaxFraction: 0.5},
	})
}

func reconcile(w *testenv.Env, c *vmhealth.Controller) {
	w.T.Helper()
	result, err := c.Reconcile(w.T.Context())
	w.Expect(err).NotTo(HaveOccurred())
	w.Expect(result.RequeueAfter).To(BeNumerically(">", 0))
}

// registered returns a claim that was launched an hour ago and whose Node is registered.
func registered(w *testenv.Env, claim *karpv1.NodeClaim) *karpv1.NodeClaim {
	w.T.Helper()
	claim = unjoined(w, claim)
	claim.StatusConditions().SetTrue(karpv1.ConditionTypeRegistered)
	w.Expect(w.Kube.Status().Update(w.T.Context(), claim)).To(Succeed())
	return claim
}

// unjoined returns a claim that was launched an hour ago and has no Node.
func unjoined(w *testenv.Env, claim *karpv1.NodeClaim) *karpv1.NodeClaim {
	w.T.Helper()
	w.Annotate(claim, map[string]string{v1alpha1.AnnotationLaunchCompleted: time.Now().Add(-time.Hour).UTC().Format(time.RFC3339)})
	return testenv.Reload(w, claim)
}

func TestVMNotFound(t *testing.T) {
	t.Parallel()
	w := testenv.New(t, testenv.NoPolling())
	class := w.Class()
	victim, bystander, launching := registered(w, w.Launched("victim", class)), registered(w, w.Launched("bystander", class)), w.Planned("launching", class)
	c := controller(w)
	reconcile(w, c)
	w.Expect(w.IsDeleted(victim)).To(BeFalse())

	w.DestroyByHand("pve1", w.Intent(victim).VMID)
	w.Refresh()
	reconcile(w, c)
	w.Expect(w.IsDeleted(victim)).To(BeTrue())
	w.Expect(w.IsDeleted(bystander)).To(BeFalse())
	w.Expect(w.IsDeleted(launching)).To(BeFalse(), "its VM does not exist yet")
	w.Expect(w.Events.Reasons(victim)).To(Equal([]string{"VMNotFound"}))
	w.Expect(w.Events.Reasons(bystander)).To(BeEmpty())
}

// A deleted claim exists for some time after its capacity is released.
func TestReservationOfDeletedClaim(t *testing.T) {
	t.Parallel()
	w := testenv.New(t, testenv.NoPolling())
	claim := registered(w, w.Launched("a", w.Class()))
	claim.Finalizers = []string{karpv1.TerminationFinalizer}
	w.Expect(w.Kube.Update(t.Context(), claim)).To(Succeed())
	w.Expect(w.Kube.Delete(t.Context(), claim)).To(Succeed())
	w.Delete(testenv.Reload(w, claim))
	reconcile(w, controller(w))
	w.Expect(w.Inventory.View().Reservations).NotTo(HaveKey(string(claim.UID)))
}

func TestVMMissingInSnapshot(t *testing.T) {
	t.Parallel()
	w := testenv.New(t, testenv.NoPolling())
	class := w.Class()
	claim := w.Planned("a", class)
	w.MustLaunch(claim, class)
	registered(w, testenv.Reload(w, claim))
	reconcile(w, controller(w))
	w.Expect(w.IsDeleted(claim)).To(BeFalse())
	w.Expect(w.Events.Reasons(claim)).To(BeEmpty())
}

func TestOutage(t *testing.T) {
	t.Parallel()
	w := testenv.New(t, testenv.NoPolling())
	claim := registered(w, w.Launched("a", w.Class()))
	w.DestroyByHand("pve1", w.Intent(claim).VMID)
	w.Refresh()
	reconnect := w.Disconnect()
	reconcile(w, controller(w))
	w.Expect(w.IsDeleted(claim)).To(BeFalse(), "the second request failed")
	w.Expect(w.Inventory.RefreshAll(t.Context())).NotTo(Succeed())
	reconcile(w, controller(w))
	w.Expect(w.IsDeleted(claim)).To(BeFalse())
	reconnect()
	w.Refresh()
	reconcile(w, controller(w))
	w.Expect(w.IsDeleted(claim)).To(BeTrue())
}

func TestNotPolled(t *testing.T) {
	t.Parallel()
	w := testenv.New(t, testenv.NeverPolled())
	claim := w.Claim("a", w.NewClass())
	claim.Status.ProviderID = "proxmox://region-1/20001"
	w.Expect(w.Kube.Status().Update(t.Context(), claim)).To(Succeed())
	registered(w, claim)
	reconcile(w, controller(w))
	w.Expect(w.IsDeleted(claim)).To(BeFalse())
}

// A region that was never polled does not affect the VMs of other regions.
func TestOtherRegionNotPolled(t *testing.T) {
	t.Parallel()
	w := testenv.New(t, testenv.NeverPolled(), testenv.OtherHosts(1))
	poll := func() { w.Expect(w.Inventory.Refresh(t.Context(), testenv.Region)).To(Succeed()) }
	poll()
	class := w.Class()
	stopped, missing := w.Process.Launched("stopped", class), w.Process.Launched("missing", class)
	registered(w, stopped)
	registered(w, missing)
	elsewhere := w.Claim("elsewhere", class)
	elsewhere.Status.ProviderID = "proxmox://" + testenv.OtherRegion + "/20001"
	w.Expect(w.Kube.Status().Update(t.Context(), elsewhere)).To(Succeed())
	registered(w, elsewhere)
	w.Expect(w.Sim.PowerOffGuest(w.Intent(stopped).VMID)).To(Succeed())
	w.DestroyByHand("pve1", w.Intent(missing).VMID)

	c := controller(w)
	w.Eventually(func() bool { poll(); reconcile(w, c); return w.Running(stopped) }).Should(BeTrue())
	w.Eventually(func() bool { poll(); reconcile(w, c); return w.IsDeleted(missing) }).Should(BeTrue())
	w.Expect(w.IsDeleted(elsewhere)).To(BeFalse())
	w.Expect(w.Events.Reasons(elsewhere)).To(BeEmpty())
}

func TestRestartStoppedVM(t *testing.T) {
	t.Parallel()
	w := testenv.New(t, testenv.NoPolling())
	claim := w.Launched("a", w.Class())
	c := controller(w)
	pause := time.Minute
	w.PowerOff(claim)
	for i := range 4 {
		reconcile(w, c)
		w.Expect(w.Running(claim)).To(BeTrue(), "start %d", i+1)
		w.PowerOff(claim)
		reconcile(w, c)
		w.Expect(w.Running(claim)).To(BeFalse(), "not without backoff")
		w.Clock.Advance(pause + time.Second)
		pause *= 2
	}
	w.Expect(w.Events.Messages("VMRestarted")).To(HaveLen(4))
	w.Expect(w.IsDeleted(claim)).To(BeFalse())
	reconcile(w, c)
	w.Expect(w.IsDeleted(claim)).To(BeTrue())
	w.Expect(w.Events.Messages("VMCrashLooping")).To(HaveLen(1))
}

func TestNoQuorum(t *testing.T) {
	t.Parallel()
	w := testenv.New(t, testenv.Hosts(3), testenv.NoPolling())
	class := w.Class()
	claim := registered(w, w.Launched("a", class))
	w.PowerOff(claim)
	// Other hosts seem to be offline, and their guests are not listed.
	w.Expect(w.Sim.Partition("pve1")).To(Succeed())
	w.Expect(w.Inventory.RefreshAll(t.Context())).To(MatchError(proxmox.ErrNoQuorum))
	w.Sim.ResetRequests()
	c := controller(w)
	reconcile(w, c)
	w.Expect(w.Sim.Requests()).To(BeEmpty(), "no restart, and no check whether the VM still exists")
	w.Expect(w.Events.Reasons(claim)).To(BeEmpty())
	w.Expect(w.IsDeleted(claim)).To(BeFalse())

	w.Sim.Heal()
	w.Eventually(func() error { return w.Inventory.RefreshAll(t.Context()) }).Should(Succeed())
	reconcile(w, c)
	w.Expect(w.Running(claim)).To(BeTrue())
}

func TestHostOffline(t *testing.T) {
	t.Parallel()
	w := testenv.New(t, testenv.Hosts(2), testenv.NoPolling())
	class := w.Class()
	claim := registered(w, w.Launched("a", class))
	host := w.Intent(claim).Host
	if host == w.Sim.Host() {
		claim = registered(w, w.Launched("b", class, func(c *karpv1.NodeClaim) { c.Labels["spread"] = "1" }))
		host = w.Intent(claim).Host
	}
	w.Expect(host).NotTo(Equal(w.Sim.Host()), "another host serves the API")
	w.Expect(w.Sim.HostDown(host, "noroute")).To(Succeed())
	w.Eventually(func() bool {
		w.Refresh()
		return w.Inventory.View().Snapshots[testenv.Region].Hosts[host].Online
	}).Should(BeFalse())
	c := controller(w)
	reconcile(w, c)
	w.Expect(w.IsDeleted(claim)).To(BeFalse())
	w.Expect(w.Events.Reasons(claim)).To(BeEmpty())

	// Its guests are stopped when it is back, and are started.
	w.Expect(w.Sim.HostUp(host)).To(Succeed())
	w.Eventually(func() []string {
		w.Refresh()
		reconcile(w, c)
		return w.Events.Reasons(claim)
	}).Should(ContainElement("VMRestarted"))
	w.Expect(w.Running(claim)).To(BeTrue())
	w.Expect(w.IsDeleted(claim)).To(BeFalse())
}

func TestMigratedVM(t *testing.T) {
	t.Parallel()
	w := testenv.New(t, testenv.Hosts(2), testenv.NoPolling())
	claim := w.Launched("a", w.Class())
	in := w.Intent(claim)
	target := testenv.OtherHost(in.Host)
	w.Expect(w.Sim.MigrateGuest(in.VMID, target)).To(Succeed())
	w.Refresh()
	c := controller(w)
	reconcile(w, c)
	reconcile(w, c)
	w.Expect(testenv.Reload(w, claim).Annotations).To(And(
		HaveKeyWithValue(v1alpha1.AnnotationHost, target), HaveKey(v1alpha1.AnnotationHostSince)))
	w.Expect(w.Events.Reasons(claim)).To(Equal([]string{"VMMigrated"}), "reported once")
	w.Expect(w.Sim.MigrateGuest(in.VMID, in.Host)).To(Succeed())
	w.Refresh()
	reconcile(w, c)
	w.Expect(testenv.Reload(w, claim).Annotations).To(HaveKeyWithValue(v1alpha1.AnnotationHost, in.Host))
}

func TestVMUnderHA(t *testing.T) {
	t.Parallel()
	w := testenv.New(t, testenv.NoPolling())
	claim := w.Launched("a", w.Class())
	vmid, c := w.Intent(claim).VMID, controller(w)
	started := func() int { return w.Sim.CountRequests("POST", "/nodes/{node}/qemu/{vmid}/status/start") }
	before := started()
	status := func() string {
		w.Refresh()
		guest, _ := w.Inventory.View().Guest(testenv.Region, vmid)
		return guest.Status
	}

	w.Expect(w.Sim.SetHA(vmid, "stopped")).To(Succeed())
	w.Eventually(status).Should(Equal("stopped"))
	reconcile(w, c)
	reconcile(w, c)
	w.Expect(started()).To(Equal(before), "stopped by an administrator")
	w.Expect(w.Events.Messages("VMStoppedByHA")).To(HaveEach(ContainSubstring("ha-manager set vm:")))
	w.Expect(w.Events.Reasons(claim)).NotTo(ContainElement("VMRestarted"))

	w.Expect(w.Sim.SetHA(vmid, "started")).To(Succeed())
	w.Eventually(func() string { reconcile(w, c); return status() }).Should(Equal("running"))
	w.Expect(started()).To(Equal(before), "HA has started it")
	w.Expect(w.IsDeleted(claim)).To(BeFalse())

	w.Expect(w.Sim.SetHA(vmid, "ignored")).To(Succeed())
	w.PowerOff(claim)
	reconcile(w, c)
	w.Expect(w.Running(claim)).To(BeTrue(), "HA ignores it")
	w.Expect(started()).To(Equal(before + 1))
}

func TestNodeNotJoined(t *testing.T) {
	t.Parallel()
	w := testenv.New(t, testenv.NoPolling())
	class := w.Class()
	young, late, joined := w.Launched("young", class), unjoined(w, w.Launched("late", class)), registered(w, w.Launched("joined", class))
	w.Refresh()
	reconcile(w, controller(w))
	w.Expect(w.Events.Messages(v1alpha1.EventNodeNotJoined)).To(HaveExactElements(And(
		ContainSubstring(fmt.Sprintf("VM %d has been running on host pve1", w.Intent(late).VMID)),
		ContainSubstring("kubectl proxmox render --nodeclaim "+late.Name),
		ContainSubstring(fmt.Sprintf("qm terminal %d", w.Intent(late).VMID)),
	)), "only of the one after the timeout")
	w.Expect(w.Events.Reasons(young)).To(BeEmpty())
	w.Expect(w.Events.Reasons(joined)).To(BeEmpty())
}
