// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package controllers_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/events"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/backoff"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/nodeclaim/launch"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/ownership"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

// launching is an Env with the controller, and a class.
type launching struct {
	*testenv.Env
	class      *v1alpha1.ProxmoxNodeClass
	controller *launch.Controller
}

func newNodeClaimLaunchController(w *testenv.Env, kube client.Client, pods ...types.NamespacedName) *launch.Controller {
	return launch.NewController(launch.Deps{
		Kube: kube, Launcher: w.Instances.Launcher, Health: w.Instances.Health, Types: w.Types, Recorder: w.Events, Clock: w.Clock,
		Pods: func(string) []types.NamespacedName { return pods }, FailureBackoff: backoff.Exponential{Initial: 3 * time.Minute, Max: 30 * time.Minute},
	})
}

// newLaunching returns an Env that polls only when the test does.
func newLaunching(t *testing.T, options ...testenv.Option) *launching {
	t.Helper()
	w := &launching{Env: testenv.New(t, append(options, testenv.NoPolling())...)}
	w.class, w.controller = w.Class(), newNodeClaimLaunchController(w.Env, w.Kube)
	return w
}

// nodeClaimLaunchSimulated runs a test with a claim that was planned.
func nodeClaimLaunchSimulated(t *testing.T, setup testenv.Setup, test func(w *launching, claim *karpv1.NodeClaim)) {
	t.Helper()
	testenv.Simulated(t, func(t *testing.T) {
		w := newLaunching(t, setup...)
		test(w, w.Planned("a", w.class))
	})
}

// simulatedParked runs a test with a claim of a static NodePool that waits for the CPUs of guest 101.
func simulatedParked(t *testing.T, test func(w *launching, claim *karpv1.NodeClaim)) {
	t.Helper()
	testenv.Simulated(t, func(t *testing.T) {
		w := newLaunching(t, testenv.Cores(2))
		claim := w.Claim("a", w.class)
		in, err := w.Instances.Planner.Park(t.Context(), claim, w.class)
		w.Expect(err).NotTo(HaveOccurred())
		test(w, w.SetPlanned(claim, w.class, in))
	})
}

func (w *launching) reconcile(claim *karpv1.NodeClaim) reconcile.Result {
	w.T.Helper()
	return testenv.Reconcile(w.Env, w.controller, claim)
}

func (w *launching) completed(claim *karpv1.NodeClaim) bool {
	return w.Instances.VMs.IsLaunched(w.Stored(claim))
}

// fail reconciles a claim whose launch fails, and checks its event.
func (w *launching) fail(claim *karpv1.NodeClaim, reason, message string) {
	w.T.Helper()
	w.Expect(w.reconcile(claim)).To(BeZero(), "it is not retried")
	w.Expect(w.IsDeleted(claim)).To(BeTrue())
	w.Expect(w.Events.Reasons(claim)).To(Equal([]string{reason, events.InsufficientCapacityError}))
	w.Expect(w.Events.Messages(reason)).To(ContainElement(ContainSubstring(message)))
}

// offered reports whether a Host is available for claims of a class.
func (w *launching) offered(class *v1alpha1.ProxmoxNodeClass, host string) bool {
	w.T.Helper()
	for _, it := range w.Types.List(class, "") {
		for _, offering := range it.Offerings {
			if it.Name == testenv.InstanceType && offering.Requirements.Get(corev1.LabelTopologyZone).Has(host) {
				return offering.Available
			}
		}
	}
	w.T.Fatalf("%s is not offered on %s at all", testenv.InstanceType, host)
	return false
}

func TestLaunch(t *testing.T) {
	t.Parallel()
	w := testenv.NewWithAPIServer(t)
	w.StartManager(func(kube client.Client) testenv.Registrar { return newNodeClaimLaunchController(w, kube) })
	claim := w.Planned("a", w.Class())
	w.Eventually(w.Instances.VMs.IsLaunched).WithArguments(claim).Should(BeTrue())
	w.Expect(w.VMs()).To(ConsistOf(HaveField("VMID", w.Intent(claim).VMID)))
	w.Expect(w.Running(claim)).To(BeTrue())
	w.Eventually(w.Events.Reasons).WithArguments(claim).Should(Equal([]string{"VMLaunched"}))
	w.Expect(w.Events.Messages("VMLaunched")).To(ConsistOf(And(
		HavePrefix("Launched VM %d on host pve1 of region region-1 in ", w.Intent(claim).VMID), ContainSubstring("s, Cloning "), ContainSubstring("s, Started "))))
}

func TestReconcileNotPending(t *testing.T) {
	nodeClaimLaunchSimulated(t, testenv.With(), func(w *launching, done *karpv1.NodeClaim) {
		unplanned := w.Claim("unplanned", w.class)
		w.SetTrue(done, karpv1.ConditionTypeRegistered)
		going := w.Planned("going", w.class, func(c *karpv1.NodeClaim) { c.Finalizers = []string{"example.com/hold"} })
		w.Expect(w.Kube.Delete(w.Context(), going)).To(Succeed())
		w.Sim.ResetRequests()
		for _, claim := range []*karpv1.NodeClaim{done, unplanned, going} {
			w.Expect(w.reconcile(claim)).To(BeZero())
		}
		w.Expect(w.Sim.Requests()).To(BeEmpty())
	})
}

// unstartable are templates that have a bridge that no Host has.
var unstartable = testenv.Scenario(func(s *pvesim.Scenario) {
	for i := range s.Guests {
		if s.Guests[i].VMID >= 9000 {
			s.Guests[i].Config["net0"] = "virtio=BC:24:11:00:00:01,bridge=vmbr7"
		}
	}
})

func TestLaunchFailed(t *testing.T) {
	nodeClaimLaunchSimulated(t, testenv.With(testenv.Hosts(2), unstartable), func(w *launching, claim *karpv1.NodeClaim) {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: w.Name, Name: "waiting"}}
		w.Create(pod)
		w.controller = newNodeClaimLaunchController(w.Env, w.Kube, client.ObjectKeyFromObject(pod), types.NamespacedName{Namespace: w.Name, Name: "gone"})
		other := w.Class(func(c *v1alpha1.ProxmoxNodeClass) { c.Name = "other" })
		host := w.Intent(claim).Host
		w.fail(claim, v1alpha1.EventStartFailed, "bridge 'vmbr7' does not exist")
		w.Expect(w.Events.Reasons(pod)).To(Equal([]string{events.InsufficientCapacityError}))
		w.Expect(w.offered(w.class, host)).To(BeFalse())
		w.Expect(w.offered(other, host)).To(BeTrue(), "other classes are not affected")
		w.Expect(w.offered(w.class, testenv.OtherHost(host))).To(BeTrue(), "other hosts are not affected")

		w.Clock.Advance(3*time.Minute + time.Second)
		w.Expect(w.offered(w.class, host)).To(BeTrue(), "retried after the backoff")
		again := w.Planned("b", w.class)
		w.fail(again, v1alpha1.EventStartFailed, "bridge 'vmbr7' does not exist")
		w.Clock.Advance(3*time.Minute + time.Second)
		w.Expect(w.offered(w.class, w.Intent(again).Host)).To(BeFalse(), "with a longer backoff after another failure")
	})
}

func TestLaunchRetried(t *testing.T) {
	t.Parallel()
	for name, recovers := range map[string]bool{"transient": true, "timeout": false} {
		t.Run(name, func(t *testing.T) {
			nodeClaimLaunchSimulated(t, testenv.With(), func(w *launching, claim *karpv1.NodeClaim) {
				w.AddFault(pvesim.Fault{Method: "POST", Path: "/nodes/*/qemu/*/clone", Status: 595, Message: "No route to host"})
				_, err := w.controller.Reconcile(w.Context(), claim)
				w.Expect(err).To(HaveOccurred(), "retried")
				w.Expect(w.IsDeleted(claim)).To(BeFalse())
				if recovers {
					w.Sim.ClearFaults()
					w.Expect(w.reconcile(claim)).To(BeZero())
					w.Expect(w.completed(claim)).To(BeTrue())
					w.Expect(w.Events.Reasons(claim)).To(Equal([]string{"VMLaunched"}))
				} else {
					w.Clock.Advance(2 * time.Minute)
					w.fail(claim, v1alpha1.EventLaunchTimeout, "host unreachable")
				}
				w.Expect(w.offered(w.class, "pve1")).To(Equal(recovers))
			})
		})
	}
}

func TestLaunchParkedClaim(t *testing.T) {
	simulatedParked(t, func(w *launching, claim *karpv1.NodeClaim) {
		w.Expect(w.reconcile(claim)).To(Equal(reconcile.Result{RequeueAfter: 10 * time.Second}))
		w.Expect(w.VMs()).To(BeEmpty())
		w.Expect(w.IsDeleted(claim)).To(BeFalse())

		w.DestroyByHand("pve1", 101)
		w.Refresh()
		w.Expect(w.reconcile(claim)).To(BeZero())
		w.Expect(w.completed(claim)).To(BeTrue())
		in := w.Intent(w.Stored(claim))
		w.Expect(in.Parked).To(BeFalse())
		w.Expect(in.ProviderID()).To(Equal(claim.Status.ProviderID), "core knows its providerID already")
	})
}

func TestLaunchParkedTimeout(t *testing.T) {
	simulatedParked(t, func(w *launching, claim *karpv1.NodeClaim) {
		w.Clock.Advance(6 * time.Minute)
		w.fail(claim, v1alpha1.EventInsufficientCapacity, "CPU")
	})
}

func TestLaunchMissingNodeClass(t *testing.T) {
	nodeClaimLaunchSimulated(t, testenv.With(), func(w *launching, claim *karpv1.NodeClaim) {
		w.Expect(w.Kube.Delete(w.Context(), w.class)).To(Succeed())
		w.fail(claim, v1alpha1.EventInvalidLaunchIntent, fmt.Sprintf("NodeClass %s does not exist", w.class.Name))
		w.Expect(w.VMs()).To(BeEmpty())
	})
}

func TestLaunchNewerMark(t *testing.T) {
	nodeClaimLaunchSimulated(t, testenv.With(), func(w *launching, claim *karpv1.NodeClaim) {
		in := w.Intent(claim)
		mark := ownership.Mark{VMID: in.VMID, KubeCluster: w.KubeCluster, ClaimUID: string(claim.UID)}
		w.MustLaunch(claim, w.class)
		w.Expect(w.Client.UpdateVM(w.Context(), in.Host, in.VMID, proxmox.ConfigChange{
			Set: map[string]string{"description": strings.Replace(mark.Comment(), `"v":1`, `"v":2`, 1)},
		})).To(Succeed())
		w.Restart(true)
		w.controller = newNodeClaimLaunchController(w.Env, w.Kube)
		w.Expect(w.reconcile(claim)).To(Equal(reconcile.Result{RequeueAfter: time.Minute}), "it is checked again")
		w.Expect(w.IsDeleted(claim)).To(BeFalse())
		w.Expect(w.Events.Messages(v1alpha1.EventCreatedByNewerController)).To(ConsistOf(ContainSubstring("it was written by a newer controller release")))
	})
}
