// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package controllers_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/events"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/backoff"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/host/power"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/nodeclaim/launch"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/watch"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/declared"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/ownership"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

// launchBackoff is how long an offering is unavailable after the first failure.
const launchBackoff = 10 * time.Minute

// launching is an Env with the controller, and a class.
type launching struct {
	*testenv.Env
	class      *v1alpha1.ProxmoxNodeClass
	controller *launch.Controller
}

func newNodeClaimLaunchController(w *testenv.Env, kube client.Client, pods ...types.NamespacedName) *launch.Controller {
	return launch.NewController(launch.Deps{
		Kube: kube, Launcher: w.Instances.Launcher, Health: w.Instances.Health, Types: w.Types, Recorder: w.Events, Clock: w.Clock,
		Pods: func(string) []types.NamespacedName { return pods }, FailureBackoff: backoff.Exponential{Initial: launchBackoff, Max: time.Hour},
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

func TestLaunchFailed(t *testing.T) {
	unstartable := testenv.Scenario(setTemplateOption("net0", nic+"bridge=vmbr7"))
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

		w.Clock.Advance(launchBackoff + time.Second)
		w.Expect(w.offered(w.class, host)).To(BeTrue(), "retried after the backoff")
		again := w.Planned("b", w.class)
		w.fail(again, v1alpha1.EventStartFailed, "bridge 'vmbr7' does not exist")
		w.Clock.Advance(launchBackoff + time.Second)
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

// A claim of a static NodePool waits for the CPUs of guest 101, and another one for those of its VM.
func TestLaunchParked(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w := newLaunching(t, testenv.Cores(2))
		park := func(name string) *karpv1.NodeClaim {
			claim := w.Claim(name, w.class)
			in, err := w.Instances.Planner.Park(t.Context(), claim, w.class)
			w.Expect(err).NotTo(HaveOccurred())
			return w.SetPlanned(claim, w.class, in)
		}
		claim := park("a")
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

		late := park("b")
		w.Clock.Advance(6 * time.Minute)
		w.fail(late, v1alpha1.EventInsufficientCapacity, "CPU")
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
		w.Expect(w.reconcile(claim)).To(Equal(reconcile.Result{RequeueAfter: watch.Again}), "it is checked again")
		w.Expect(w.IsDeleted(claim)).To(BeFalse())
		w.Expect(w.Events.Messages(v1alpha1.EventCreatedByNewerController)).To(ConsistOf(ContainSubstring("it was written by a newer controller release")))
	})
}

func newPowerController(w *launching, kube client.Client) *power.Controller {
	hosts := &hostPowerEnv{Env: w.Env, inventory: w.Inventory, kube: kube}
	hosts.manage(w.KubeCluster)
	return hosts.controller
}

// A launch waits for a host that was shut down only until it has booted.
func TestLaunchWakesHost(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w := newLaunching(t, testenv.Hosts(5), testenv.Scenario(allowSleep))
		w.ApplySettings(`{"*": {"pve4": {"powermanagement": "Enabled"}}}`)
		hosts := newPowerController(w, w.Kube)
		poll := func(interval time.Duration) inventory.HostState {
			w.Clock.Advance(interval)
			w.Refresh()
			hosts.Evaluate(w.Context())
			host, _ := w.Inventory.View().Host(testenv.Region, "pve4")
			return host
		}
		poll(0)
		poll(idleTime)
		w.Expect(poll(time.Minute)).To(HaveField("Sleep", declared.Asleep))

		claim := w.Planned("a", w.class, testenv.OnHost("pve4"))
		created := time.Now()
		for !w.completed(claim) {
			poll(w.reconcile(claim).RequeueAfter)
		}
		w.Expect(w.Running(claim)).To(BeTrue())
		w.Expect(time.Since(created)).To(BeNumerically("<", 25*time.Second), "the host boots in 10 s")
	})
}

// A new leader may not read which hosts were shut down to save energy.
func TestLaunchPowerRecordsForbidden(t *testing.T) {
	nodeClaimLaunchSimulated(t, testenv.With(), func(w *launching, claim *karpv1.NodeClaim) {
		w.ApplySettings(`{"*": {"pve1": {"powermanagement": "Enabled"}}}`)
		w.Inventory.SetSleepingOutdated(nil)
		forbidden := true
		kube := interceptor.NewClient(testenv.NewFakeKube(w.T), interceptor.Funcs{
			Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
				if forbidden {
					return apierrors.NewForbidden(corev1.Resource("configmaps"), key.Name, errors.New("no RBAC policy matched"))
				}
				return c.Get(ctx, key, o, opts...)
			},
		})
		hosts := newPowerController(w, kube)
		outdated := reconcile.Result{RequeueAfter: 2 * time.Second}
		w.Expect(w.reconcile(claim)).To(Equal(outdated))
		w.Expect(w.Events.Reasons(claim)).To(BeEmpty(), "the leader has not read the records yet")

		hosts.Evaluate(w.Context())
		w.Expect(w.reconcile(claim)).To(Equal(outdated))
		w.Expect(w.Events.Reasons(claim)).To(Equal([]string{v1alpha1.EventHostPowerUnknown}))
		w.Expect(w.Events.Messages(v1alpha1.EventHostPowerUnknown)).To(ConsistOf(And(ContainSubstring("pve1"),
			ContainSubstring("reading ConfigMap kube-system/"+power.ConfigMapName), ContainSubstring("no RBAC policy matched"), ContainSubstring("allow the controller"))))
		w.Expect(w.VMs()).To(BeEmpty())

		forbidden = false
		hosts.Evaluate(w.Context())
		w.Expect(w.reconcile(claim)).To(BeZero())
		w.Expect(w.completed(claim)).To(BeTrue())
	})
}
