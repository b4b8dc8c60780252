// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package controllers_test

import (
	"cmp"
	"context"
	"maps"
	"testing"
	"time"

	"github.com/awslabs/operatorpkg/reconciler"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	corecloudprovider "sigs.k8s.io/karpenter/pkg/cloudprovider"
	"sigs.k8s.io/karpenter/pkg/controllers/state"
	coreoptions "sigs.k8s.io/karpenter/pkg/operator/options"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/cloudprovider"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/nodeclaim/terminatefirst"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instancetype"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/declared"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/scheduler"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
)

// options are what differs in a test: the cores of the Hosts, of which two are not
// available, the number of Hosts, and changes of the objects.
type options struct {
	cores int
	hosts int
	class func(*v1alpha1.ProxmoxNodeClass)
	pool  func(*karpv1.NodePool)
	node  func(*corev1.Node)
	pod   func(*corev1.Pod)
}

// fullEnv is a Host without free capacity, and drifted Nodes on it with a pod each.
type fullEnv struct {
	*testenv.Env
	options
	ctx        context.Context
	cluster    *state.Cluster
	provider   *cloudprovider.CloudProvider
	controller *terminatefirst.Controller
	class      *v1alpha1.ProxmoxNodeClass
}

// drifted is a drifted Node with a pod.
type drifted struct {
	claim *karpv1.NodeClaim
	node  *corev1.Node
	pod   *corev1.Pod
}

// change applies a change that may be nil.
func change[T any](object T, change func(T)) {
	if change != nil {
		change(object)
	}
}

func newFullEnv(t *testing.T, o options) *fullEnv {
	t.Helper()
	w := &fullEnv{options: o, Env: testenv.NewUnsimulated(t, testenv.NoPolling(), testenv.Hosts(cmp.Or(o.hosts, 1)), testenv.Cores(cmp.Or(o.cores, 4)))}
	w.ctx = coreoptions.ToContext(t.Context(), &coreoptions.Options{
		PreferencePolicy: coreoptions.PreferencePolicyRespect, MinValuesPolicy: coreoptions.MinValuesPolicyStrict, IgnoreDRARequests: true,
	})
	w.class = w.Class(func(class *v1alpha1.ProxmoxNodeClass) { change(class, o.class) })
	pool := w.Pool(w.class, func(p *karpv1.NodePool) {
		p.Annotations = map[string]string{v1alpha1.AnnotationDriftTerminateFirst: "true"}
		p.Spec.Disruption.Budgets = []karpv1.Budget{{Nodes: "1"}}
		change(p, o.pool)
	})
	testenv.ModifyStatus(w.Env, pool, func(p *karpv1.NodePool) {
		p.StatusConditions().SetTrue(karpv1.ConditionTypeValidationSucceeded)
		p.StatusConditions().SetTrue(karpv1.ConditionTypeNodeClassReady)
	})
	w.provider = w.CloudProvider()
	w.cluster = state.NewCluster(w.Clock, w.Kube, w.provider)
	w.restart()
	return w
}

// restart replaces the controller.
func (w *fullEnv) restart() {
	w.controller = terminatefirst.NewController(terminatefirst.Deps{
		Deps: scheduler.Deps{Kube: w.Kube, Cluster: w.cluster, Recorder: w.Events, Clock: w.Clock}, Inventory: w.Inventory, Types: w.Types,
		CloudProvider: func(types *instancetype.Provider) corecloudprovider.CloudProvider { return w.provider.WithTypes(types) },
	})
}

// addNode does what core, the kubelet and the scheduler do. The Node drifted some time ago.
func (w *fullEnv) addNode(name string, ago time.Duration) drifted {
	w.T.Helper()
	claim := w.Created(name, w.class)
	node := w.Node(claim)
	testenv.Modify(w.Env, node, func(n *corev1.Node) {
		n.Labels = maps.Clone(claim.Labels)
		maps.Copy(n.Labels, map[string]string{karpv1.NodeRegisteredLabelKey: "true", karpv1.NodeInitializedLabelKey: "true", corev1.LabelHostname: n.Name})
		change(n, w.node)
	})
	testenv.ModifyStatus(w.Env, node, func(n *corev1.Node) {
		n.Status.Capacity, n.Status.Allocatable = claim.Status.Capacity, claim.Status.Allocatable
		n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	})
	testenv.ModifyStatus(w.Env, claim, func(c *karpv1.NodeClaim) {
		c.StatusConditions().SetTrue(karpv1.ConditionTypeRegistered)
		c.StatusConditions().SetTrue(karpv1.ConditionTypeInitialized)
		c.StatusConditions().SetTrueWithReason(karpv1.ConditionTypeDrifted, "NodeClassDrift", "NodeClassDrift")
		for i := range c.Status.Conditions {
			c.Status.Conditions[i].LastTransitionTime = metav1.NewTime(time.Now().Add(-ago))
		}
	})
	w.cluster.UpdateNodeClaim(claim)
	pod := w.addPod(name, func(p *corev1.Pod) {
		p.Spec.NodeName = node.Name
		change(p, w.pod)
	})
	w.Expect(w.cluster.UpdateNode(w.ctx, node)).To(Succeed())
	return drifted{claim: claim, node: node, pod: pod}
}

// addPod creates a pod of a ReplicaSet; without a Node it is pending.
func (w *fullEnv) addPod(name string, changes ...func(*corev1.Pod)) *corev1.Pod {
	w.T.Helper()
	return w.PendingPod(name, "1", append([]func(*corev1.Pod){func(p *corev1.Pod) {
		p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "app", UID: "app", Controller: new(true)}}
	}}, changes...)...)
}

// removeNode does what core and the kubelet do after the drain of a Node.
func (w *fullEnv) removeNode(d drifted) {
	w.T.Helper()
	w.Expect(w.Kube.Delete(w.ctx, d.node)).To(Succeed())
	w.Expect(w.Kube.Delete(w.ctx, d.pod)).To(Succeed())
	w.cluster.DeleteNodeClaim(d.claim.Name)
	w.cluster.DeleteNode(d.node.Name)
}

// terminates reconciles, and reports whether a Node is deleted.
func (w *fullEnv) terminates(d drifted) bool {
	w.T.Helper()
	w.Expect(w.cluster.Synced(w.ctx)).To(BeTrue())
	w.Expect(w.controller.Reconcile(w.ctx)).To(Equal(reconciler.Result{RequeueAfter: 15 * time.Second}))
	return w.IsDeleted(d.claim)
}

func TestReconcileFullHost(t *testing.T) {
	t.Parallel()
	for name, o := range map[string]options{"full": {}, "reserving": reserving} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newFullEnv(t, o)
			n := w.addNode("a", 0)
			w.Expect(w.terminates(n)).To(BeFalse(), "core has not had time to replace it")
			w.Clock.Advance(2 * time.Minute)
			w.Expect(w.terminates(n)).To(BeTrue())
			for _, object := range []client.Object{n.claim, n.node} {
				w.Expect(w.Events.Reasons(object)).To(ContainElement(v1alpha1.EventDriftTerminatingFirst))
			}
			w.Expect(testenv.Reload(w.Env, n.node).Spec.Taints).To(ContainElement(karpv1.DisruptedNoScheduleTaint), "no new pods are scheduled to it")
		})
	}
}

// The hosts have capacity, but it is the reserve for a failed host.
var reserving = options{hosts: 2, cores: 6, class: func(class *v1alpha1.ProxmoxNodeClass) {
	class.Spec.PlacementStrategy.Reserve = v1alpha1.ReserveLargestHost
}}

func TestReconcileNotTerminated(t *testing.T) {
	t.Parallel()
	annotate := func(value string) options {
		return options{pool: func(p *karpv1.NodePool) { p.Annotations[v1alpha1.AnnotationDriftTerminateFirst] = value }}
	}
	protected := func() map[string]string { return map[string]string{karpv1.DoNotDisruptAnnotationKey: "true"} }
	for name, test := range map[string]struct {
		options
		change  func(*fullEnv)
		message string
	}{
		"capacity_for_both":  {options: options{cores: 8}},
		"not_enabled":        {options: options{pool: func(p *karpv1.NodePool) { delete(p.Annotations, v1alpha1.AnnotationDriftTerminateFirst) }}},
		"disabled":           {options: annotate("false")},
		"invalid_annotation": {options: annotate("yes"), message: `is "yes", want true or false`},
		"budget_exhausted": {options: options{pool: func(p *karpv1.NodePool) {
			p.Spec.Disruption.Budgets = []karpv1.Budget{{Nodes: "0", Reasons: []karpv1.DisruptionReason{karpv1.DisruptionReasonDrifted}}}
		}}},
		"node_do_not_disrupt":  {options: options{node: func(n *corev1.Node) { n.Annotations = protected() }}},
		"pod_do_not_disrupt":   {options: options{pod: func(p *corev1.Pod) { p.Annotations = protected() }}},
		"pod_fits_no_new_node": {options: options{pod: inZone("pve9")}},
		// The capacity that becomes free is on a Host that accepts no VMs.
		"maintenance": {change: func(w *fullEnv) {
			w.Inventory.SetMaintenance(declared.Maintenance{{Region: testenv.Region, Host: "pve1"}: ""})
		}},
		"reserve_violated_anyway": {options: reserving, change: func(w *fullEnv) { w.ApplySettings(`{"*": {"pve1": {"reservedmemory": "63Gi"}}}`) }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newFullEnv(t, test.options)
			n := w.addNode("a", 2*time.Minute)
			change(w, test.change)
			w.Expect(w.terminates(n)).To(BeFalse())
			w.Expect(testenv.Reload(w.Env, n.node).Spec.Taints).NotTo(ContainElement(karpv1.DisruptedNoScheduleTaint))
			if test.message == "" {
				w.Expect(w.Events.Messages(v1alpha1.EventInvalidDriftTerminateFirst)).To(BeEmpty())
			} else {
				w.Expect(w.Events.Messages(v1alpha1.EventInvalidDriftTerminateFirst)).To(ConsistOf(ContainSubstring(test.message)))
			}
		})
	}
}

func inZone(zone string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{corev1.LabelTopologyZone: zone} }
}

// The next Node must not be deleted before the pods of the first one run again.
func TestReconcilePendingPods(t *testing.T) {
	t.Parallel()
	w := newFullEnv(t, options{cores: 6})
	first, second := w.addNode("a", 3*time.Minute), w.addNode("b", 2*time.Minute)
	w.Expect(w.terminates(first)).To(BeTrue())
	w.Expect(w.terminates(second)).To(BeFalse(), "the disruption budget is one Node")

	w.removeNode(first)
	evicted := w.addPod("evicted")
	w.Expect(w.terminates(second)).To(BeFalse(), "the pod of the first Node is pending")
	w.restart()
	w.Expect(w.terminates(second)).To(BeFalse(), "an earlier process may have deleted its Node")
	w.Clock.Advance(time.Hour)
	w.Expect(w.terminates(second)).To(BeFalse(), "another guest may use the capacity")
	w.Expect(w.Kube.Delete(t.Context(), evicted)).To(Succeed())
	w.Expect(w.terminates(second)).To(BeTrue())
}

// A pod that no Node can run does not block the replacement of Nodes, also after a restart.
func TestReconcileUnrelatedPendingPod(t *testing.T) {
	t.Parallel()
	for name, restart := range map[string]bool{"same_process": false, "restarted": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newFullEnv(t, options{cores: 6})
			first, second := w.addNode("a", 3*time.Minute), w.addNode("b", 2*time.Minute)
			stuck := func(name string) {
				w.addPod(name, inZone("none"), func(p *corev1.Pod) { p.OwnerReferences[0].UID = "stuck" })
				if restart {
					w.restart()
				}
			}
			if restart {
				stuck("before")
			}
			w.Expect(w.terminates(first)).To(BeTrue())
			w.removeNode(first)
			stuck("after")
			w.Expect(w.terminates(second)).To(BeTrue())
		})
	}
}
