// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package cloudprovider_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	corecloudprovider "sigs.k8s.io/karpenter/pkg/cloudprovider"
	"sigs.k8s.io/karpenter/pkg/controllers/node/health"
	"sigs.k8s.io/karpenter/pkg/controllers/node/legacyrepair"
	"sigs.k8s.io/karpenter/pkg/controllers/node/termination"
	"sigs.k8s.io/karpenter/pkg/controllers/node/termination/terminator"
	"sigs.k8s.io/karpenter/pkg/controllers/nodeclaim/reboot"
	coreoptions "sigs.k8s.io/karpenter/pkg/operator/options"
	nodeutils "sigs.k8s.io/karpenter/pkg/utils/node"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/cloudprovider"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/ownership"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

func resets(w *testenv.Env) int {
	return w.Sim.CountRequests("POST", "/nodes/{node}/qemu/{vmid}/status/reset")
}

// A reset is recorded before it is requested: core retries after each failed write.
func TestReboot(t *testing.T) {
	testenv.With().Test(t, func(w *testenv.Env, _ *testenv.Process) {
		claim := w.Launched("a", w.Class())
		refused := errors.New("refused")
		w.Process = w.StartProcess(testenv.Kube(interceptor.NewClient(w.Kube.(client.WithWatch), interceptor.Funcs{
			Patch: func(ctx context.Context, c client.WithWatch, o client.Object, patch client.Patch, options ...client.PatchOption) error {
				if refused != nil {
					return refused
				}
				return c.Patch(ctx, o, patch, options...)
			},
		})))
		cp := w.CloudProvider()
		for range 3 {
			w.Expect(cp.Reboot(w.Context(), testenv.Reload(w, claim), "op-1")).To(MatchError(refused))
		}
		w.Expect(resets(w)).To(BeZero(), "nothing was recorded")
		refused = nil
		w.Expect(cp.Reboot(w.Context(), claim, "op-1")).To(Succeed())
		w.Expect(resets(w)).To(Equal(1))

		w.DestroyByHand("pve1", w.Intent(claim).VMID)
		err := cp.Reboot(w.Context(), claim, "op-2")
		w.Expect(corecloudprovider.IsNodeClaimNotFoundError(err)).To(BeTrue(), "%v", err)
	})
}

// A reset whose outcome is unknown is not repeated; one that was refused is.
func TestRebootFailed(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		fault pvesim.Fault
		want  int
	}{
		"outcome_unknown": {pvesim.Fault{DropAfter: true}, 1},
		"refused":         {pvesim.Fault{Status: 500, Message: "got no worker upid - start worker failed"}, 2},
	} {
		testenv.With().Subtest(t, name, func(w *testenv.Env, _ *testenv.Process) {
			claim := w.Launched("a", w.Class())
			test.fault.Method, test.fault.Path, test.fault.Count = "POST", "/nodes/*/qemu/*/status/reset", 1
			w.AddFault(test.fault)
			err := w.CloudProvider().Reboot(w.Context(), claim, "op")
			w.Expect(err).To(HaveOccurred())
			w.Expect(corecloudprovider.IsNodeRebootFailedError(err)).To(BeFalse(), "core retries it")
			stale := testenv.Reload(w, claim).DeepCopy()
			w.Expect(w.CloudProvider().Reboot(w.Context(), claim, "op")).To(Succeed())
			w.Expect(resets(w)).To(Equal(test.want))

			err = w.CloudProvider().Reboot(w.Context(), stale, "op")
			w.Expect(resets(w)).To(Equal(test.want), "the cache does not show the reset yet: %v", err)
		})
	}
}

// A Node whose reboot Proxmox refuses is replaced at once: core would retry another error for
// minutes, with the Node drained.
func TestRebootRefused(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]pvesim.Fault{
		"missing_privilege":          {Status: 403, Message: "Permission check failed (/vms/20000, VM.PowerMgmt)"},
		"invalid_parameter":          {Status: 400, Message: "Parameter verification failed."},
		"root_only":                  {Status: 500, Message: "only root can reset this VM"},
		"mark_of_a_newer_controller": {},
	} {
		testenv.With(testenv.NoPolling()).Subtest(t, name, func(w *testenv.Env, _ *testenv.Process) {
			claim := w.Launched("a", w.Class())
			if fault.Status == 0 {
				writeNewerMark(w, claim)
			} else {
				fault.Method, fault.Path = "POST", "/nodes/*/qemu/*/status/reset"
				w.AddFault(fault)
			}
			err := w.CloudProvider().Reboot(w.Context(), claim, "op")
			w.Expect(corecloudprovider.IsNodeRebootFailedError(err)).To(BeTrue(), "%v", err)
			w.Expect(err).To(MatchError(ContainSubstring("rebooting the VM")))
		})
	}
}

// A pod that may not be evicted delays core's reboot until the drain timeout, and stays on its Node:
// core leaves pods that remain then to the kubelet. Core replaces a Node whose reboot is refused.
func TestRebootNode(t *testing.T) {
	t.Parallel()
	for name, refused := range map[string]bool{"accepted": false, "refused": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			k := newKarpenter(t)
			claim := k.Launched("a", k.Class())
			node := k.Node(claim)
			node.Status.NodeInfo.BootID = "boot-1"
			k.Expect(k.Kube.Status().Update(k.ctx, node)).To(Succeed())
			pod := &corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{Namespace: k.Name, Name: "protected", Annotations: map[string]string{karpv1.DoNotDisruptAnnotationKey: "true"}},
				Spec:       corev1.PodSpec{NodeName: node.Name, Containers: []corev1.Container{{Name: "web", Image: "web"}}},
			}
			k.Create(pod)
			policies := k.cp.RepairPolicies()
			policy := policies[len(policies)-1]
			k.Expect(policy.Action).To(Equal(corecloudprovider.RebootNode))
			k.Annotate(claim, map[string]string{karpv1.RebootTerminationGracePeriodAnnotationKey: policy.TerminationGracePeriod.String()})
			claim.StatusConditions().SetTrueWithReason(karpv1.ConditionTypeRebooting, karpv1.RebootReasonRequested, "test")
			k.Expect(k.Kube.Status().Update(k.ctx, claim)).To(Succeed())
			evictions := terminator.NewQueue(k.Clock, k.Kube, k.Events)
			core := reboot.NewController(k.Clock, k.Kube, k.cp, terminator.NewTerminator(k.Clock, k.Kube, evictions, k.Events), k.Events)
			reconcile := func() {
				_, err := core.Reconcile(k.ctx, testenv.Reload(k.Env, claim))
				k.Expect(err).NotTo(HaveOccurred())
			}
			if refused {
				k.AddFault(pvesim.Fault{Method: "POST", Path: "/nodes/*/qemu/*/status/reset", Status: 403, Message: "Permission check failed"})
			}

			reconcile()
			k.Expect(resets(k.Env)).To(BeZero(), "the drain continues")
			k.Clock.Advance(*policy.TerminationGracePeriod)
			reconcile()
			k.Expect(resets(k.Env)).To(Equal(1))
			k.Expect(testenv.Reload(k.Env, pod).DeletionTimestamp).To(BeNil())
			if refused {
				k.Expect(k.Events.Messages("RebootFailed")).To(ConsistOf(ContainSubstring("reboot rejected by the cloud provider: rebooting the VM")))
				k.Expect(k.IsDeleted(claim)).To(BeTrue())
			} else {
				k.Expect(testenv.Reload(k.Env, claim).StatusConditions().Get(karpv1.ConditionTypeRebooting).Reason).To(Equal(karpv1.RebootReasonIssued))
			}
		})
	}
}

// writeNewerMark replaces the mark of a claim's VM by that of a newer release.
func writeNewerMark(w *testenv.Env, claim *karpv1.NodeClaim) {
	w.T.Helper()
	in := w.Intent(claim)
	mark := ownership.Mark{VMID: in.VMID, KubeCluster: w.KubeCluster, ClaimUID: string(claim.UID)}.Comment()
	change := proxmox.ConfigChange{Set: map[string]string{"description": strings.Replace(mark, `"v":1`, `"v":2`, 1)}}
	w.Expect(w.Client.UpdateVM(w.T.Context(), in.Host, in.VMID, change)).To(Succeed())
}

func TestRepairPolicies(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	ctx := coreoptions.ToContext(t.Context(), &coreoptions.Options{FeatureGates: coreoptions.FeatureGates{NodeRepair: true}})
	cp := cloudprovider.New(cloudprovider.Deps{Settings: cloudprovider.Settings{
		Repair: cloudprovider.RepairTolerations{Unready: 15 * time.Minute, Request: time.Minute, Drain: 5 * time.Minute},
	}})
	g.Expect(health.NewRepairPolicyMatcher(ctx, cp)).NotTo(BeNil())
	for _, status := range []corev1.ConditionStatus{corev1.ConditionFalse, corev1.ConditionUnknown} {
		g.Expect(cp.RepairPolicies()).To(ContainElement(And(
			HaveField("ConditionType", corev1.NodeReady), HaveField("ConditionStatus", status), HaveField("TolerationDuration", 15*time.Minute))))
	}
}

// unreadyToleration is how long a Node may be not ready before core repairs it.
const unreadyToleration = 10 * time.Minute

// terminating is a Node on a VM, with core's controllers that repair, drain and delete it.
type terminating struct {
	*karpenter
	claim *karpv1.NodeClaim
	node  *corev1.Node

	repair      *legacyrepair.Controller
	termination *termination.Controller
	queue       *terminator.Queue
}

// newTerminating returns a registered Node with a pod of a Deployment and one of a
// StatefulSet.
func newTerminating(t *testing.T, options ...testenv.Option) *terminating {
	t.Helper()
	n := &terminating{karpenter: newKarpenter(t, options...)}
	n.ResetForeignGuests()
	class := n.Class()
	n.Pool(class)
	n.claim = n.Launched("a", class, func(c *karpv1.NodeClaim) { c.Finalizers = []string{karpv1.TerminationFinalizer} })
	n.node = &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: n.claim.Name, Finalizers: []string{karpv1.TerminationFinalizer}, Labels: map[string]string{
			karpv1.NodePoolLabelKey: n.Named("pool"), v1alpha1.LabelNodeClass: class.Name, karpv1.NodeRegisteredLabelKey: "true",
		}},
		Spec: corev1.NodeSpec{ProviderID: n.claim.Status.ProviderID},
	}
	n.Create(n.node)
	n.setReady(corev1.ConditionTrue)
	for _, condition := range []string{karpv1.ConditionTypeLaunched, karpv1.ConditionTypeRegistered, karpv1.ConditionTypeInitialized} {
		n.claim.StatusConditions().SetTrue(condition)
	}
	n.claim.Status.NodeName = n.node.Name
	n.Expect(n.Kube.Status().Update(t.Context(), n.claim)).To(Succeed())
	for name, owner := range map[string]string{"web": "ReplicaSet", "database": "StatefulSet"} {
		n.Create(&corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: n.Name, Name: name, OwnerReferences: []metav1.OwnerReference{
				{APIVersion: appsv1.SchemeGroupVersion.String(), Kind: owner, Name: name, UID: n.claim.UID, Controller: new(true)},
			}},
			Spec: corev1.PodSpec{NodeName: n.node.Name, Containers: []corev1.Container{{Name: "c", Image: "i"}}},
		})
	}
	n.startCore()
	t.Cleanup(func() {
		// Objects with a finalizer would stay in the shared API server.
		for _, o := range []client.Object{n.claim, n.node} {
			_ = n.Kube.Patch(context.WithoutCancel(t.Context()), o, client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"finalizers":null}}`)))
		}
	})
	return n
}

// startCore starts core's controllers with the current Process.
func (n *terminating) startCore() {
	n.karpenter.startCore()
	n.repair = legacyrepair.NewController(n.Kube, n.cp, n.Clock, n.Events)
	n.queue = terminator.NewQueue(n.Clock, n.Kube, n.Events)
	n.termination = termination.NewController(n.Clock, n.Kube, n.cp, terminator.NewTerminator(n.Clock, n.Kube, n.queue, n.Events), n.Events)
}

// setReady does what the node lifecycle controller does when the kubelet reports, or does
// not.
func (n *terminating) setReady(status corev1.ConditionStatus) {
	n.T.Helper()
	n.node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: status, Reason: "NodeStatus", LastTransitionTime: metav1.Now()}}
	n.Expect(n.Kube.Status().Update(n.T.Context(), n.node)).To(Succeed())
}

// reconcile runs each controller once on its objects, like a manager. It returns their
// errors.
func (n *terminating) reconcile() []error {
	n.T.Helper()
	var errs []error
	add := func(err error) {
		if err != nil {
			errs = append(errs, err)
		}
	}
	if !n.IsDeleted(n.node) {
		testenv.Reload(n.Env, n.node)
		_, err := n.repair.Reconcile(n.ctx, n.node.DeepCopy())
		add(err)
		_, err = n.termination.Reconcile(n.ctx, n.node.DeepCopy())
		add(err)
	}
	for _, pod := range n.pods() {
		_, err := n.queue.Reconcile(n.ctx, pod)
		add(err)
	}
	if !n.IsDeleted(n.claim) {
		testenv.Reload(n.Env, n.claim)
		_, err := n.lifecycle.Reconcile(n.ctx, n.claim.DeepCopy())
		add(err)
	}
	return errs
}

func (n *terminating) pods() []*corev1.Pod {
	n.T.Helper()
	pods, err := nodeutils.GetPods(n.ctx, n.Kube, n.node.Name)
	n.Expect(err).NotTo(HaveOccurred())
	return pods
}

// until reconciles until a condition is met. A minute passes between two rounds.
func (n *terminating) until(what string, met func() bool) {
	n.T.Helper()
	var errs []error
	n.Eventually(func() bool {
		errs = n.reconcile()
		n.Clock.Advance(time.Minute)
		return met()
	}).WithTimeout(5*time.Minute).Should(BeTrue(), func() string { return fmt.Sprintf("%s; errors of core's controllers: %v", what, errs) })
}

func (n *terminating) deleted() bool { return n.IsDeleted(n.claim) && n.IsDeleted(n.node) }

// The VM of a Node cannot be reached. Core repairs the Node: it drains it although nothing can be
// read, also by a controller that was restarted. The claim waits.
func TestTerminateUnreachable(t *testing.T) {
	t.Parallel()
	n := newTerminating(t)
	reconnect := n.Disconnect()
	n.Restart(false)
	n.startCore()
	n.setReady(corev1.ConditionUnknown)
	n.Clock.Advance(unreadyToleration)
	n.until("waits", func() bool { return len(n.Events.Messages(v1alpha1.EventHostUnreachable)) > 0 })
	n.Expect(testenv.Reload(n.Env, n.node).Spec.Taints).To(ContainElement(HaveField("Key", karpv1.DisruptedTaintKey)))
	n.Expect(n.pods()).To(And(HaveLen(2), HaveEach(HaveField("DeletionTimestamp", Not(BeNil())))), "evicted")
	n.Expect(testenv.Reload(n.Env, n.claim).StatusConditions().Get(karpv1.ConditionTypeDrained).IsTrue()).To(BeTrue())
	n.Expect(n.claim.DeletionTimestamp).NotTo(BeNil())

	reconnect()
	n.until("deleted", n.deleted)
	n.ExpectNoOrphans()
}

// The guest of a ready Node is shut down after core has drained the Node.
func TestTerminateShutdown(t *testing.T) {
	t.Parallel()
	n := newTerminating(t, testenv.Settings(func(s *instance.Settings) { s.ShutdownTimeout = 10 * time.Second }))
	powerOffs := func() []int {
		const path = "/nodes/{node}/qemu/{vmid}/status/"
		return []int{n.Sim.CountRequests("POST", path+"shutdown"), n.Sim.CountRequests("POST", path+"stop")}
	}
	n.Expect(n.Kube.Delete(t.Context(), n.claim)).To(Succeed())
	n.until("drained", func() bool {
		return testenv.Reload(n.Env, n.claim).StatusConditions().Get(karpv1.ConditionTypeDrained) != nil
	})
	n.Expect(powerOffs()).To(Equal([]int{0, 0}), "pods are evicted first")
	n.until("deleted", n.deleted)
	n.Expect(powerOffs()).To(Equal([]int{1, 0}))
	n.ExpectNoOrphans()
}
