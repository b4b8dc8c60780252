// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package controllers_test

import (
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/controllers/state"
	coreoptions "sigs.k8s.io/karpenter/pkg/operator/options"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/pod/explain"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/scheduler"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
)

const noHostFits = "NoHostFits"

// decisions are the same for every pod.
type decisions struct{ tried, placed time.Time }

func (d decisions) PodSchedulingDecisionTime(types.NamespacedName) time.Time { return d.tried }
func (d decisions) PodSchedulingSuccessTime(types.NamespacedName) time.Time  { return d.placed }

// anySize allows every instance type in a NodePool.
func anySize(pool *karpv1.NodePool) {
	pool.Spec.Template.Spec.Requirements = []karpv1.NodeSelectorRequirementWithMinValues{{
		Key: corev1.LabelOSStable, Operator: corev1.NodeSelectorOpIn, Values: []string{string(corev1.Linux)},
	}}
}

// unschedulable means that core has tried and found no node.
var unschedulable = decisions{tried: time.Now()}

func reconcilePod(w *testenv.Env, pod *corev1.Pod, core decisions) time.Duration {
	w.T.Helper()
	return testenv.Reconcile(w, explain.NewController(w.Kube, w.Instances.Planner, w.Events, core), pod).RequeueAfter
}

func TestExplainReconcileInsufficientCapacity(t *testing.T) {
	testenv.With(testenv.NoPolling(), testenv.Hosts(2)).Test(t, func(w *testenv.Env, _ *testenv.Process) {
		w.Pool(w.Class(), anySize)
		pod := w.PendingPod("app", "15") // 16 cores are sufficient, but another guest uses two of them

		w.Expect(reconcilePod(w, pod, decisions{})).To(BeNumerically(">", 0))
		w.Expect(w.Events.Messages(noHostFits)).To(BeEmpty(), "core has not tried yet")
		w.Expect(reconcilePod(w, pod, decisions{tried: time.Now(), placed: time.Now()})).To(BeNumerically(">", 0))
		w.Expect(w.Events.Messages(noHostFits)).To(BeEmpty(), "a Node is being launched")

		w.Expect(reconcilePod(w, pod, unschedulable)).To(BeNumerically(">", 0), "it is checked again")
		w.Expect(w.Events.Reasons(pod)).To(Equal([]string{noHostFits}))
		w.Expect(w.Events.Messages(noHostFits)).To(HaveExactElements(And(
			ContainSubstring("nodepool "+w.Named("pool")), ContainSubstring("pve1"), ContainSubstring("pve2"), ContainSubstring("CPU"),
		)))
	})
}

func TestReconcilePodLargerThanAnyType(t *testing.T) {
	testenv.With(testenv.NoPolling()).Test(t, func(w *testenv.Env, _ *testenv.Process) {
		w.Pool(w.Class(), anySize)
		reconcilePod(w, w.PendingPod("app", "100"), unschedulable)
		w.Expect(w.Events.Messages(noHostFits)).To(HaveExactElements(And(
			ContainSubstring(`large enough for {"cpu":"100","pods":"1"}`),
			ContainSubstring("the largest are c1.16VCPU-32GB and m1.16VCPU-128GB;"), ContainSubstring("--instance-types-file"),
		)))
	})
}

func TestReconcileOtherReasons(t *testing.T) {
	t.Parallel()
	taint := corev1.Taint{Key: "team", Value: "blue", Effect: corev1.TaintEffectNoSchedule}
	for name, test := range map[string]struct {
		cpu  string
		pool func(*karpv1.NodePool)
		pod  func(*corev1.Pod)
		ends bool
	}{
		"capacity_available":      {cpu: "1"},
		"pool_with_taint":         {cpu: "15", pool: func(p *karpv1.NodePool) { p.Spec.Template.Spec.Taints = []corev1.Taint{taint} }},
		"pod_for_another_pool":    {cpu: "15", pod: func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{karpv1.NodePoolLabelKey: "other"} }},
		"static_pool":             {cpu: "15", pool: func(p *karpv1.NodePool) { p.Spec.Replicas = new(int64(1)) }},
		"unmatched_node_selector": {cpu: "15", pod: func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{"team": "red"} }},
		"scheduled_pod":           {cpu: "15", pod: func(p *corev1.Pod) { p.Spec.NodeName = "somewhere" }, ends: true},
	} {
		testenv.With(testenv.NoPolling()).Subtest(t, name, func(w *testenv.Env, _ *testenv.Process) {
			w.Pool(w.Class(), anySize, func(p *karpv1.NodePool) { change(p, test.pool) })
			pod := w.PendingPod("app", test.cpu, func(p *corev1.Pod) { change(p, test.pod) })
			w.Expect(reconcilePod(w, pod, unschedulable) > 0).To(Equal(!test.ends), "it is checked again")
			w.Expect(w.Events.Messages(noHostFits)).To(BeEmpty())
		})
	}
}

// The event is repeated after minutes, so the first one must not be about a class that is
// not checked yet.
func TestReconcileUncheckedClass(t *testing.T) {
	testenv.With(testenv.NoPolling()).Test(t, func(w *testenv.Env, _ *testenv.Process) {
		class := w.Class()
		w.Pool(class, anySize)
		other := w.Class(func(c *v1alpha1.ProxmoxNodeClass) { c.Name = w.Named("other") })
		w.Pool(other, anySize, func(p *karpv1.NodePool) { p.Name = w.Named("other") })
		pod := w.PendingPod("app", "15")
		checked := class.Status.Conditions
		class.Status.Conditions = nil
		w.Expect(w.Kube.Status().Update(w.Context(), class)).To(Succeed())
		w.Expect(reconcilePod(w, pod, unschedulable)).To(BeNumerically(">", 0))
		w.Expect(w.Events.Messages(noHostFits)).To(BeEmpty())
		class.Status.Conditions = checked
		w.Expect(w.Kube.Status().Update(w.Context(), class)).To(Succeed())
		reconcilePod(w, pod, unschedulable)
		w.Expect(w.Events.Messages(noHostFits)).To(HaveLen(1))
	})
}

// Core ignores a NodePool without a class, and counts its pods as tried.
func TestReconcileMissingClass(t *testing.T) {
	t.Parallel()
	w := testenv.NewWithAPIServer(t, testenv.NoPolling())
	w.Pool(w.Class(), func(p *karpv1.NodePool) { p.Spec.Template.Spec.NodeClassRef.Name = "absent" })
	pod, cp := w.PendingPod("app", "1"), w.CloudProvider()
	cluster := state.NewCluster(w.Clock, w.Kube, cp)
	core := scheduler.New(scheduler.Deps{Kube: w.Kube, Recorder: w.Events, Cluster: cluster, Clock: w.Clock}, cp)
	ctx := coreoptions.ToContext(t.Context(), &coreoptions.Options{CPURequests: 1000, IgnoreDRARequests: true})
	w.Expect(core.Schedule(ctx)).Error().NotTo(HaveOccurred())
	testenv.Reconcile(w, explain.NewController(w.Kube, w.Instances.Planner, w.Events, cluster), pod)
	w.Expect(w.Events.Messages(noHostFits)).To(HaveExactElements("No node can be created for this pod: nodepool " + w.Named("pool") +
		": ProxmoxNodeClass absent does not exist; create it, or change spec.template.spec.nodeClassRef of the NodePool"))
}

func TestReconcileMisspelledValue(t *testing.T) {
	t.Parallel()
	for key, want := range map[string]string{
		corev1.LabelTopologyZone: "topology.kubernetes.io/zone In [typo] (valid values: pve1, pve2)",
		corev1.LabelInstanceTypeStable: "node.kubernetes.io/instance-type In [typo] (valid values: c1.16VCPU-32GB, c1.1VCPU-2GB, c1.2VCPU-4GB, c1.4VCPU-8GB, c1.8VCPU-16GB, " +
			"m1.16VCPU-128GB, m1.1VCPU-8GB, m1.2VCPU-16GB, m1.4VCPU-32GB, m1.8VCPU-64GB, s1.16VCPU-64GB, s1.1VCPU-4GB, s1.2VCPU-8GB, s1.4VCPU-16GB, s1.8VCPU-32GB, " +
			"t1.16VCPU-48GB, t1.1VCPU-3GB, t1.2VCPU-6GB, t1.4VCPU-12GB, t1.8VCPU-24GB)",
	} {
		testenv.With(testenv.NoPolling(), testenv.Hosts(2)).Subtest(t, strings.ReplaceAll(key, "/", "_"), func(w *testenv.Env, _ *testenv.Process) {
			w.Pool(w.Class(), anySize)
			pod := w.PendingPod("app", "1", func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{key: "typo"} })
			reconcilePod(w, pod, unschedulable)
			w.Expect(w.Events.Messages(noHostFits)).To(HaveExactElements(
				"No node can be created for this pod: nodepool " + w.Named("pool") + ": no host is allowed for this NodeClaim: no instance type has " + want))
		})
	}
}
