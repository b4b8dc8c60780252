// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package cloudprovider_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
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
	"sigs.k8s.io/karpenter/pkg/controllers/nodeclaim/lifecycle"
	"sigs.k8s.io/karpenter/pkg/controllers/state"
	coreoptions "sigs.k8s.io/karpenter/pkg/operator/options"
	"sigs.k8s.io/karpenter/pkg/state/nodepoolhealth"
	nodeutils "sigs.k8s.io/karpenter/pkg/utils/node"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/cloudprovider"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
)

// unreadyToleration is how long a Node may be not ready before core repairs it.
const unreadyToleration = 10 * time.Minute

// terminating is a Node on a VM, with core's controllers that repair, drain and delete it.
type terminating struct {
	*testenv.Env
	ctx   context.Context
	claim *karpv1.NodeClaim
	node  *corev1.Node

	repair      *legacyrepair.Controller
	termination *termination.Controller
	queue       *terminator.Queue
	lifecycle   *lifecycle.Controller
}

// newTerminating returns a registered Node with a pod of a Deployment and one of a
// StatefulSet.
func newTerminating(t *testing.T, options ...testenv.Option) *terminating {
	t.Helper()
	w := testenv.New(t, options...)
	w.ResetForeignGuests()
	class := w.Class()
	w.Pool(class)
	n := &terminating{Env: w, ctx: coreoptions.ToContext(t.Context(), &coreoptions.Options{IgnoreDRARequests: true})}
	n.claim = w.Launched("a", class, func(c *karpv1.NodeClaim) { c.Finalizers = []string{karpv1.TerminationFinalizer} })
	n.node = &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: n.claim.Name, Finalizers: []string{karpv1.TerminationFinalizer}, Labels: map[string]string{
			karpv1.NodePoolLabelKey: w.Named("pool"), v1alpha1.LabelNodeClass: class.Name, karpv1.NodeRegisteredLabelKey: "true",
		}},
		Spec: corev1.NodeSpec{ProviderID: n.claim.Status.ProviderID},
	}
	w.Create(n.node)
	n.setReady(corev1.ConditionTrue)
	for _, condition := range []string{karpv1.ConditionTypeLaunched, karpv1.ConditionTypeRegistered, karpv1.ConditionTypeInitialized} {
		n.claim.StatusConditions().SetTrue(condition)
	}
	n.claim.Status.NodeName = n.node.Name
	w.Expect(w.Kube.Status().Update(t.Context(), n.claim)).To(Succeed())
	n.pod("web", "ReplicaSet")
	n.pod("database", "StatefulSet")
	n.startCore()
	t.Cleanup(func() {
		// Objects with a finalizer would stay in the shared API server.
		for _, o := range []client.Object{n.claim, n.node} {
			_ = w.Kube.Patch(context.WithoutCancel(t.Context()), o, client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"finalizers":null}}`)))
		}
	})
	return n
}

// startCore starts core's controllers with the current Process.
func (n *terminating) startCore() {
	cp := provider(n.Env, func(d *cloudprovider.Deps) { d.Repair.Unready = unreadyToleration })
	n.repair = legacyrepair.NewController(n.Kube, cp, n.Clock, n.Events)
	n.queue = terminator.NewQueue(n.Clock, n.Kube, n.Events)
	n.termination = termination.NewController(n.Clock, n.Kube, cp, terminator.NewTerminator(n.Clock, n.Kube, n.queue, n.Events), n.Events)
	n.lifecycle = lifecycle.NewController(n.Clock, n.Kube, cp, n.Events, state.NewCluster(n.Clock, n.Kube, cp), nodepoolhealth.NewState(), nil)
}

func (n *terminating) pod(name, owner string) {
	n.T.Helper()
	n.Create(&corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: n.Name, Name: name, OwnerReferences: []metav1.OwnerReference{
			{APIVersion: appsv1.SchemeGroupVersion.String(), Kind: owner, Name: name, UID: n.claim.UID, Controller: new(true)},
		}},
		Spec: corev1.PodSpec{NodeName: n.node.Name, Containers: []corev1.Container{{Name: "c", Image: "i"}}},
	})
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
	pods, err := nodeutils.GetPods(n.ctx, n.Kube, n.node.Name)
	n.Expect(err).NotTo(HaveOccurred())
	for _, pod := range pods {
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

// until reconciles until a condition is met. A minute passes between two rounds.
func (n *terminating) until(what string, met func() bool) {
	n.T.Helper()
	var errs []error
	n.Eventually(func() bool {
		errs = n.reconcile()
		n.Clock.Advance(time.Minute)
		return met()
	}).WithTimeout(5*time.Minute).WithPolling(10*time.Millisecond).Should(BeTrue(), func() string { return fmt.Sprintf("%s; errors of core's controllers: %v", what, errs) })
}

// hasEvent returns whether there is an event with a reason.
func (n *terminating) hasEvent(reason string) func() bool {
	return func() bool { return len(n.Events.Messages(reason)) > 0 }
}

// expectDrained checks that core drained the Node, and that the claim and the VM still
// exist.
func (n *terminating) expectDrained() {
	n.T.Helper()
	testenv.Reload(n.Env, n.node)
	n.Expect(n.node.Spec.Taints).To(ContainElement(HaveField("Key", karpv1.DisruptedTaintKey)))
	pods, err := nodeutils.GetPods(n.ctx, n.Kube, n.node.Name)
	n.Expect(err).NotTo(HaveOccurred())
	n.Expect(pods).To(HaveLen(2))
	for _, pod := range pods {
		n.Expect(pod.DeletionTimestamp).NotTo(BeNil(), "pod %s is evicted", pod.Name)
	}
	n.Expect(testenv.Reload(n.Env, n.claim).StatusConditions().Get(karpv1.ConditionTypeDrained).IsTrue()).To(BeTrue())
	n.Expect(n.claim.DeletionTimestamp).NotTo(BeNil())
}

func (n *terminating) deleted() bool { return n.IsDeleted(n.claim) && n.IsDeleted(n.node) }

// The Host of a Node loses power. Core repairs the Node: it drains it although no config
// can be read, also by a controller that was restarted, and the claim waits for the Host.
func TestTerminateHostDown(t *testing.T) {
	t.Parallel()
	for name, how := range map[string]string{"refused": "refused", "noroute": "noroute", "timeout": "timeout", "restarted": "refused"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newTerminating(t, testenv.Hosts(2))
			host := n.Intent(n.claim).Host
			n.Expect(n.Sim.HostDown(host, how)).To(Succeed())
			if name == "restarted" {
				n.Restart(true)
				n.startCore()
			}
			n.setReady(corev1.ConditionUnknown)
			n.Clock.Advance(unreadyToleration)
			n.until("waits for the host", n.hasEvent(v1alpha1.EventHostUnreachable))
			n.expectDrained()

			n.Expect(n.Sim.HostUp(host)).To(Succeed())
			n.until("deleted with its host back", n.deleted)
			n.ExpectNoOrphans()
		})
	}
}

// The whole Cluster is unreachable, also for a controller that was restarted and has no
// Snapshot.
func TestTerminateClusterDown(t *testing.T) {
	t.Parallel()
	for name, restarted := range map[string]bool{"last_snapshot": false, "restarted": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newTerminating(t)
			reconnect := n.Disconnect()
			if restarted {
				n.Restart(false)
				n.startCore()
			}
			n.setReady(corev1.ConditionUnknown)
			n.Clock.Advance(unreadyToleration)
			n.until("waits for the cluster", n.hasEvent(v1alpha1.EventHostUnreachable))
			n.expectDrained()

			reconnect()
			n.until("deleted with its cluster back", n.deleted)
			n.ExpectNoOrphans()
		})
	}
}

// An administrator removes the Host with "pvecm delnode". Proxmox still lists its guests.
func TestTerminateHostRemoved(t *testing.T) {
	t.Parallel()
	n := newTerminating(t, testenv.Hosts(2))
	in := n.Intent(n.claim)
	n.Expect(n.Sim.HostDown(in.Host, "noroute")).To(Succeed())
	n.Expect(n.Sim.RemoveHost(in.Host)).To(Succeed())
	n.setReady(corev1.ConditionUnknown)
	n.Clock.Advance(unreadyToleration)
	n.until("waits for the host", n.hasEvent(v1alpha1.EventHostUnreachable))
	n.Expect(n.deleted()).To(BeFalse(), "the host may have been removed by mistake")
	n.expectDrained()
	n.Clock.Advance(24 * time.Hour)
	n.reconcile()
	n.Expect(n.deleted()).To(BeFalse(), "it may have been a member in the meantime")

	n.until("deleted without its host", n.deleted)
	n.Expect(n.Events.Messages(v1alpha1.EventVMAbandoned)).To(ContainElement(And(
		ContainSubstring("VM %d", in.VMID), ContainSubstring("/etc/pve/nodes/%s/qemu-server/%d.conf", in.Host, in.VMID), ContainSubstring("pvesm list STORAGE --vmid %d", in.VMID))))
	n.ExpectNoTokens()
}

// An administrator declares a Host as fenced. The claim waits no longer for it.
func TestTerminateHostFenced(t *testing.T) {
	t.Parallel()
	n := newTerminating(t, testenv.Hosts(2))
	in := n.Intent(n.claim)
	n.Expect(n.Sim.HostDown(in.Host, "noroute")).To(Succeed())
	n.setReady(corev1.ConditionUnknown)
	n.Annotate(n.claim, map[string]string{v1alpha1.AnnotationHostFenced: "pve9"})
	n.Clock.Advance(unreadyToleration)
	n.until("waits for the host", n.hasEvent(v1alpha1.EventHostUnreachable))
	n.expectDrained()
	n.Clock.Advance(24 * time.Hour)
	n.reconcile()
	n.Expect(n.deleted()).To(BeFalse(), "the annotation names another host")

	n.Expect(n.Events.Messages(v1alpha1.EventHostUnreachable)).To(ContainElement(And(
		ContainSubstring("kubectl proxmox fence %s/%s", testenv.Region, in.Host),
		ContainSubstring("kubectl annotate nodeclaim %s %s=%s", n.claim.Name, v1alpha1.AnnotationHostFenced, in.Host))))
	n.Annotate(testenv.Reload(n.Env, n.claim), map[string]string{v1alpha1.AnnotationHostFenced: in.Host})
	n.until("deleted without its VM", n.deleted)
	n.Expect(n.Events.Messages(v1alpha1.EventVMAbandoned)).To(ContainElement(And(ContainSubstring("VM %d", in.VMID), ContainSubstring("fenced"))))
	n.ExpectNoTokens()
}

// The only Host of a Cluster is fenced, and the controller was restarted.
func TestTerminateClusterFenced(t *testing.T) {
	t.Parallel()
	n := newTerminating(t)
	n.Disconnect()
	n.Restart(false)
	n.startCore()
	n.setReady(corev1.ConditionUnknown)
	n.Annotate(n.claim, map[string]string{v1alpha1.AnnotationHostFenced: "pve1"})
	n.Clock.Advance(unreadyToleration)
	n.until("deleted without its VM", n.deleted)
	n.Expect(n.Events.Messages(v1alpha1.EventVMAbandoned)).NotTo(BeEmpty())
}

// The annotation has no effect on a Host that is online: its VM is deleted as usual.
func TestTerminateOnlineHostFenced(t *testing.T) {
	t.Parallel()
	n := newTerminating(t)
	n.Annotate(n.claim, map[string]string{v1alpha1.AnnotationHostFenced: "pve1"})
	n.Expect(n.Kube.Delete(t.Context(), n.claim)).To(Succeed())
	n.until("deleted", n.deleted)
	n.Expect(n.Events.Messages(v1alpha1.EventVMAbandoned)).To(BeEmpty())
	n.ExpectNoOrphans()
}

// The region of a claim is no longer in the cloud config. The Node is drained, and the
// claim is deleted only after an administrator gave up its VM.
func TestTerminateRegionNotConfigured(t *testing.T) {
	t.Parallel()
	n := newTerminating(t, testenv.OtherHosts(1))
	delete(n.Clients, testenv.Region)
	n.Restart(true)
	n.startCore()
	n.setReady(corev1.ConditionUnknown)
	n.Clock.Advance(unreadyToleration)
	n.until("waits for the region", n.hasEvent(v1alpha1.EventRegionNotConfigured))
	n.expectDrained()
	in := n.Intent(n.claim)
	n.Expect(n.Events.Messages(v1alpha1.EventRegionNotConfigured)[0]).To(And(
		ContainSubstring(testenv.Region), ContainSubstring("VM %d", in.VMID), ContainSubstring(in.Host), ContainSubstring(v1alpha1.AnnotationHostFenced)))

	n.Annotate(testenv.Reload(n.Env, n.claim), map[string]string{v1alpha1.AnnotationHostFenced: in.Host})
	n.until("deleted without its VM", n.deleted)
	n.Expect(n.Events.Messages(v1alpha1.EventVMAbandoned)).To(ContainElement(ContainSubstring("VM %d", in.VMID)))
	n.Expect(n.VMs()).To(HaveLen(1), "it is not touched")
}

// The guest of a ready Node is shut down after core has drained the Node. A guest whose
// kubelet does not report is stopped: it would not answer.
func TestTerminateShutdown(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		ready corev1.ConditionStatus
		call  string
	}{
		"ready":     {corev1.ConditionTrue, "shutdown"},
		"not_ready": {corev1.ConditionUnknown, "stop"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newTerminating(t, testenv.Settings(func(s *instance.Settings) { s.ShutdownTimeout = 10 * time.Second }))
			n.setReady(test.ready)
			n.Sim.ResetRequests()
			n.Expect(n.Kube.Delete(t.Context(), n.claim)).To(Succeed())
			n.until("drained", func() bool {
				return testenv.Reload(n.Env, n.claim).StatusConditions().Get(karpv1.ConditionTypeDrained) != nil
			})
			n.Expect(n.powerOffs()).To(BeEmpty(), "pods are evicted first")
			n.until("deleted", n.deleted)
			n.Expect(n.powerOffs()).To(Equal([]string{test.call}))
			n.ExpectNoOrphans()
		})
	}
}

// powerOffs returns the requests that ended the guest.
func (n *terminating) powerOffs() []string {
	var calls []string
	for _, r := range n.Sim.Requests() {
		if call, ok := strings.CutPrefix(r.Template, "/nodes/{node}/qemu/{vmid}/status/"); ok && r.Method == http.MethodPost {
			calls = append(calls, call)
		}
	}
	return calls
}
