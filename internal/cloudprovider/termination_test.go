// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package cloudprovider_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/controllers/node/legacyrepair"
	"sigs.k8s.io/karpenter/pkg/controllers/node/termination"
	"sigs.k8s.io/karpenter/pkg/controllers/node/termination/terminator"
	nodeutils "sigs.k8s.io/karpenter/pkg/utils/node"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
)

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
	for name, test := range map[string]struct {
		// fail makes the VM unreachable, and returns what ends the wait.
		fail  func(n *terminating) (end func())
		event string
	}{
		"host_down": {func(n *terminating) func() {
			host := n.Intent(n.claim).Host
			n.Expect(n.Sim.HostDown(host, "timeout")).To(Succeed())
			return func() { n.Expect(n.Sim.HostUp(host)).To(Succeed()) }
		}, v1alpha1.EventHostUnreachable},
		"cluster_down_and_restarted": {func(n *terminating) func() {
			reconnect := n.Disconnect()
			n.Restart(false)
			return reconnect
		}, v1alpha1.EventHostUnreachable},
		"region_not_configured": {func(n *terminating) func() {
			configured := n.Clients[testenv.Region]
			delete(n.Clients, testenv.Region)
			n.Restart(true)
			return func() {
				n.Clients[testenv.Region] = configured
				n.Restart(true)
			}
		}, v1alpha1.EventRegionNotConfigured},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newTerminating(t, testenv.Hosts(2), testenv.OtherHosts(1))
			end := test.fail(n)
			n.startCore()
			n.setReady(corev1.ConditionUnknown)
			n.Clock.Advance(unreadyToleration)
			n.until("waits", func() bool { return len(n.Events.Messages(test.event)) > 0 })
			n.Expect(testenv.Reload(n.Env, n.node).Spec.Taints).To(ContainElement(HaveField("Key", karpv1.DisruptedTaintKey)))
			n.Expect(n.pods()).To(And(HaveLen(2), HaveEach(HaveField("DeletionTimestamp", Not(BeNil())))), "evicted")
			n.Expect(testenv.Reload(n.Env, n.claim).StatusConditions().Get(karpv1.ConditionTypeDrained).IsTrue()).To(BeTrue())
			n.Expect(n.claim.DeletionTimestamp).NotTo(BeNil())

			end()
			n.startCore()
			n.until("deleted", n.deleted)
			n.ExpectNoOrphans()
		})
	}
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
