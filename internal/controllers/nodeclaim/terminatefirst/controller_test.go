// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package terminatefirst_test

import (
	"context"
	"maps"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	corecloudprovider "sigs.k8s.io/karpenter/pkg/cloudprovider"
	"sigs.k8s.io/karpenter/pkg/controllers/nodeoverlay"
	"sigs.k8s.io/karpenter/pkg/controllers/state"
	coreoptions "sigs.k8s.io/karpenter/pkg/operator/options"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/cloudprovider"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/nodeclaim/terminatefirst"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instancetype"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

// fullEnv is a Host without free capacity, and drifted Nodes on it with a pod each.
type fullEnv struct {
	*testenv.Env
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

func newFullEnv(t *testing.T, o options) *fullEnv {
	t.Helper()
	if o.cores == 0 {
		o.cores = 4
	}
	w := &fullEnv{Env: testenv.New(t, testenv.NoPolling(), testenv.Hosts(max(1, o.hosts)), testenv.Scenario(func(s *pvesim.Scenario) {
		for n := range s.Hosts {
			s.Hosts[n].Cores = o.cores
		}
	}))}
	w.ctx = coreoptions.ToContext(t.Context(), &coreoptions.Options{
		PreferencePolicy: coreoptions.PreferencePolicyRespect, MinValuesPolicy: coreoptions.MinValuesPolicyStrict, IgnoreDRARequests: true,
	})
	w.class = w.Class(func(class *v1alpha1.ProxmoxNodeClass) {
		if o.class != nil {
			o.class(class)
		}
	})
	pool := w.Pool(w.class, func(p *karpv1.NodePool) {
		p.Annotations = map[string]string{v1alpha1.AnnotationDriftTerminateFirst: "true"}
		p.Spec.Disruption.Budgets = []karpv1.Budget{{Nodes: "1"}}
		if o.pool != nil {
			o.pool(p)
		}
	})
	for _, condition := range []string{karpv1.ConditionTypeValidationSucceeded, karpv1.ConditionTypeNodeClassReady} {
		pool.StatusConditions().SetTrue(condition)
	}
	w.Expect(w.Kube.Status().Update(t.Context(), pool)).To(Succeed())
	w.provider = cloudprovider.New(cloudprovider.Deps{
		Kube: w.Kube, VMs: w.Instances.VMs, Planner: w.Instances.Planner, Deleter: w.Instances.Deleter,
		Types: w.Types, Recorder: w.Events, Clock: w.Clock, Overlays: nodeoverlay.NewInstanceTypeStore(),
	})
	w.cluster = state.NewCluster(w.Clock, w.Kube, w.provider)
	w.restart()
	return w
}

// restart replaces the controller.
func (w *fullEnv) restart() {
	w.controller = terminatefirst.NewController(terminatefirst.Deps{
		Kube: w.Kube, Cluster: w.cluster, Inventory: w.Inventory, Types: w.Types, Recorder: w.Events, Clock: w.Clock,
		CloudProvider: func(types *instancetype.Provider) corecloudprovider.CloudProvider { return w.provider.WithTypes(types) },
	})
}

// addNode does what core, the kubelet and the scheduler do. The Node drifted some time ago.
func (w *fullEnv) addNode(name string, ago time.Duration, o options) drifted {
	w.T.Helper()
	claim := w.Claim(name, w.class)
	created, err := w.provider.Create(w.ctx, claim)
	w.Expect(err).NotTo(HaveOccurred())
	testenv.Reload(w.Env, claim)
	maps.Copy(claim.Labels, created.Labels)
	w.Expect(w.Kube.Update(w.ctx, claim)).To(Succeed())
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: claim.Name, Labels: maps.Clone(claim.Labels)}, Spec: corev1.NodeSpec{ProviderID: created.Status.ProviderID}}
	maps.Copy(node.Labels, map[string]string{karpv1.NodeRegisteredLabelKey: "true", karpv1.NodeInitializedLabelKey: "true", corev1.LabelHostname: node.Name})
	if o.node != nil {
		o.node(node)
	}
	w.Create(node)
	node.Status.Capacity, node.Status.Allocatable = created.Status.Capacity, created.Status.Allocatable
	node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	w.Expect(w.Kube.Status().Update(w.ctx, node)).To(Succeed())

	claim.Status = created.Status
	claim.Status.NodeName = node.Name
	for _, condition := range []string{karpv1.ConditionTypeLaunched, karpv1.ConditionTypeRegistered, karpv1.ConditionTypeInitialized} {
		claim.StatusConditions().SetTrue(condition)
	}
	claim.StatusConditions().SetTrueWithReason(karpv1.ConditionTypeDrifted, "NodeClassDrift", "NodeClassDrift")
	for i := range claim.Status.Conditions {
		claim.Status.Conditions[i].LastTransitionTime = metav1.NewTime(time.Now().Add(-ago))
	}
	w.Expect(w.Kube.Status().Update(w.ctx, claim)).To(Succeed())
	w.cluster.UpdateNodeClaim(claim)
	pod := w.addPod(name, node.Name, o.pod)
	w.Expect(w.cluster.UpdateNode(w.ctx, node)).To(Succeed())
	return drifted{claim: claim, node: node, pod: pod}
}

// addPod creates a pod of a ReplicaSet; without a Node it is pending.
func (w *fullEnv) addPod(name, node string, change func(*corev1.Pod)) *corev1.Pod {
	w.T.Helper()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.Name, Name: name, OwnerReferences: []metav1.OwnerReference{
			{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "app", UID: "app", Controller: new(true)},
		}},
		Spec: corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{
			Name: "c", Image: "example.com/none",
			Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")}},
		}}},
	}
	if change != nil {
		change(pod)
	}
	w.Create(pod)
	pod.Status.Phase = corev1.PodRunning
	if node == "" {
		pod.Status.Phase = corev1.PodPending
		pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable}}
	}
	w.Expect(w.Kube.Status().Update(w.ctx, pod)).To(Succeed())
	return pod
}

// removeNode does what core and the kubelet do after the drain of a Node.
func (w *fullEnv) removeNode(d drifted) {
	w.T.Helper()
	w.Expect(w.Kube.Delete(w.ctx, d.node)).To(Succeed())
	w.Expect(w.Kube.Delete(w.ctx, d.pod, client.GracePeriodSeconds(0))).To(Succeed())
	w.cluster.DeleteNodeClaim(d.claim.Name)
	w.cluster.DeleteNode(d.node.Name)
}

func (w *fullEnv) reconcile() {
	w.T.Helper()
	w.Expect(w.cluster.Synced(w.ctx)).To(BeTrue())
	result, err := w.controller.Reconcile(w.ctx)
	w.Expect(err).NotTo(HaveOccurred())
	w.Expect(result.RequeueAfter).To(BeNumerically(">", 0))
}

func TestReconcileFullHost(t *testing.T) {
	t.Parallel()
	w := newFullEnv(t, options{})
	n := w.addNode("a", 0, options{})
	w.reconcile()
	w.Expect(w.IsDeleted(n.claim)).To(BeFalse(), "core has not had time to replace it")
	w.Clock.Advance(2 * time.Minute)
	w.reconcile()
	w.Expect(w.IsDeleted(n.claim)).To(BeTrue())
	w.Expect(w.Events.Reasons(n.claim)).To(ContainElement(v1alpha1.EventDriftTerminatingFirst))
	w.Expect(w.Events.Reasons(n.node)).To(ContainElement(v1alpha1.EventDriftTerminatingFirst))
	w.Expect(testenv.Reload(w.Env, n.node).Spec.Taints).To(ContainElement(karpv1.DisruptedNoScheduleTaint), "no new pods are scheduled to it")
}

// The hosts have capacity, but it is the reserve for a failed host.
func TestReconcileReserve(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		violated string // settings that violate the reserve also without the Node
		want     bool
	}{
		"fits_after_the_deletion": {want: true},
		"violated_anyway":         {violated: `{"*": {"pve1": {"reservedmemory": "63Gi"}}}`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newFullEnv(t, options{hosts: 2, cores: 6, class: func(class *v1alpha1.ProxmoxNodeClass) {
				class.Spec.PlacementStrategy.Reserve = v1alpha1.ReserveLargestHost
			}})
			n := w.addNode("a", 2*time.Minute, options{})
			if c.violated != "" {
				settings, err := inventory.ParseSettings([]byte(c.violated))
				w.Expect(err).NotTo(HaveOccurred())
				w.Inventory.SetSettings(settings)
			}
			w.reconcile()
			w.Expect(w.IsDeleted(n.claim)).To(Equal(c.want))
		})
	}
}

func TestReconcileNotTerminated(t *testing.T) {
	t.Parallel()
	for name, o := range map[string]options{
		"capacity_for_both": {cores: 8},
		"not_enabled":       {pool: func(p *karpv1.NodePool) { delete(p.Annotations, v1alpha1.AnnotationDriftTerminateFirst) }},
		"disabled":          {pool: func(p *karpv1.NodePool) { p.Annotations[v1alpha1.AnnotationDriftTerminateFirst] = "false" }},
		"budget_exhausted": {pool: func(p *karpv1.NodePool) {
			p.Spec.Disruption.Budgets = []karpv1.Budget{{Nodes: "0", Reasons: []karpv1.DisruptionReason{karpv1.DisruptionReasonDrifted}}}
		}},
		"node_do_not_disrupt": {node: func(n *corev1.Node) { n.Annotations = map[string]string{karpv1.DoNotDisruptAnnotationKey: "true"} }},
		"pod_do_not_disrupt":  {pod: func(p *corev1.Pod) { p.Annotations = map[string]string{karpv1.DoNotDisruptAnnotationKey: "true"} }},
		"pod_fits_no_new_node": {pod: func(p *corev1.Pod) {
			p.Spec.NodeSelector = map[string]string{corev1.LabelTopologyZone: "pve9"}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newFullEnv(t, o)
			n := w.addNode("a", 2*time.Minute, o)
			w.reconcile()
			w.Expect(w.IsDeleted(n.claim)).To(BeFalse())
			w.Expect(testenv.Reload(w.Env, n.node).Spec.Taints).NotTo(ContainElement(karpv1.DisruptedNoScheduleTaint))
		})
	}
}

func TestReconcileInvalidAnnotation(t *testing.T) {
	t.Parallel()
	w := newFullEnv(t, options{pool: func(p *karpv1.NodePool) { p.Annotations[v1alpha1.AnnotationDriftTerminateFirst] = "yes" }})
	n := w.addNode("a", 2*time.Minute, options{})
	w.reconcile()
	w.Expect(w.IsDeleted(n.claim)).To(BeFalse())
	w.Expect(w.Events.Messages(v1alpha1.EventInvalidDriftTerminateFirst)).To(ConsistOf(And(ContainSubstring(`"yes"`), ContainSubstring("want true or false"))))
}

// The capacity that becomes free is on a Host that accepts no VMs.
func TestReconcileUnusableHost(t *testing.T) {
	t.Parallel()
	w := newFullEnv(t, options{})
	n := w.addNode("a", 2*time.Minute, options{})
	w.Inventory.SetMaintenance(inventory.Maintenance{{Region: testenv.Region, Host: "pve1"}: ""})
	w.reconcile()
	w.Expect(w.IsDeleted(n.claim)).To(BeFalse())
}

// The next Node must not be deleted before the pods of the first one run again.
func TestReconcilePendingPods(t *testing.T) {
	t.Parallel()
	w := newFullEnv(t, options{cores: 6})
	first, second := w.addNode("a", 3*time.Minute, options{}), w.addNode("b", 2*time.Minute, options{})
	w.reconcile()
	w.Expect(w.IsDeleted(first.claim)).To(BeTrue())
	w.reconcile()
	w.Expect(w.IsDeleted(second.claim)).To(BeFalse(), "the disruption budget is one Node")

	w.removeNode(first)
	evicted := w.addPod("evicted", "", nil)
	w.reconcile()
	w.Expect(w.IsDeleted(second.claim)).To(BeFalse(), "the pod of the first Node is pending")
	w.restart()
	w.reconcile()
	w.Expect(w.IsDeleted(second.claim)).To(BeFalse(), "an earlier process may have deleted its Node")
	w.Clock.Advance(time.Hour)
	w.reconcile()
	w.Expect(w.IsDeleted(second.claim)).To(BeFalse(), "another guest may use the capacity")
	w.Expect(w.Kube.Delete(t.Context(), evicted, client.GracePeriodSeconds(0))).To(Succeed())
	w.reconcile()
	w.Expect(w.IsDeleted(second.claim)).To(BeTrue())
}

// A pod that no Node can run does not block the replacement of Nodes, also after a restart.
func TestReconcileUnrelatedPendingPod(t *testing.T) {
	t.Parallel()
	for name, restart := range map[string]bool{"same_process": false, "restarted": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newFullEnv(t, options{cores: 6})
			first, second := w.addNode("a", 3*time.Minute, options{}), w.addNode("b", 2*time.Minute, options{})
			stick := func(pod *corev1.Pod) {
				pod.OwnerReferences[0].UID = "stuck"
				pod.Spec.NodeSelector = map[string]string{corev1.LabelTopologyZone: "none"}
			}
			if restart {
				w.addPod("stuck-before", "", stick)
				w.restart()
			}
			w.reconcile()
			w.Expect(w.IsDeleted(first.claim)).To(BeTrue())
			w.removeNode(first)
			w.addPod("stuck", "", stick)
			if restart {
				w.restart()
			}
			w.reconcile()
			w.Expect(w.IsDeleted(second.claim)).To(BeTrue())
		})
	}
}
