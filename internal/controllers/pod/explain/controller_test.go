// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package explain_test

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/pod/explain"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
)

const noHostFits = "NoHostFits"

// decisions are what core thinks of every pod.
type decisions struct{ tried, placed time.Time }

func (d decisions) PodSchedulingDecisionTime(types.NamespacedName) time.Time { return d.tried }
func (d decisions) PodSchedulingSuccessTime(types.NamespacedName) time.Time  { return d.placed }

// anySize lets a pool have every instance type.
func anySize(pool *karpv1.NodePool) {
	pool.Spec.Template.Spec.Requirements = []karpv1.NodeSelectorRequirementWithMinValues{{
		Key: corev1.LabelOSStable, Operator: corev1.NodeSelectorOpIn, Values: []string{string(corev1.Linux)},
	}}
}

// refused: core has tried, and found no place.
var refused = decisions{tried: time.Now()}

// waitingPod is one that the scheduler found no Node for.
func waitingPod(w *testenv.Env, cpu string, changes ...func(*corev1.Pod)) *corev1.Pod {
	w.T.Helper()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.Name, Name: "app"},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{
			Name: "c", Image: "example.com/none",
			Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)}},
		}}},
	}
	for _, change := range changes {
		change(pod)
	}
	w.Create(pod)
	pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable}}
	w.Expect(w.Kube.Status().Update(w.T.Context(), pod)).To(Succeed())
	return pod
}

func look(w *testenv.Env, pod *corev1.Pod, core decisions) time.Duration {
	w.T.Helper()
	result, err := explain.NewController(w.Kube, w.Instances.Planner, w.Events, core).Reconcile(w.T.Context(), testenv.Reload(w, pod))
	w.Expect(err).NotTo(HaveOccurred())
	return result.RequeueAfter
}

func TestAPodThatFitsNowhereIsToldWhyHostByHost(t *testing.T) {
	t.Parallel()
	w := testenv.New(t, testenv.NoPolling(), testenv.Hosts(2))
	w.Pool(w.Class(), anySize)
	pod := waitingPod(w, "15") // 16 cores are large enough, but somebody has two of them

	w.Expect(look(w, pod, decisions{})).To(BeNumerically(">", 0))
	w.Expect(w.Events.Messages(noHostFits)).To(BeEmpty(), "core has not tried yet")
	w.Expect(look(w, pod, decisions{tried: time.Now(), placed: time.Now()})).To(BeNumerically(">", 0))
	w.Expect(w.Events.Messages(noHostFits)).To(BeEmpty(), "a Node is on its way")

	w.Expect(look(w, pod, refused)).To(BeNumerically(">", 0), "looked at again")
	w.Expect(w.Events.Reasons(pod)).To(Equal([]string{noHostFits}))
	w.Expect(w.Events.Messages(noHostFits)).To(HaveExactElements(And(
		ContainSubstring("nodepool "+w.Named("pool")), ContainSubstring("pve1"), ContainSubstring("pve2"), ContainSubstring("CPU"),
	)))
}

func TestAPodThatIsLargerThanAnySizeIsToldSo(t *testing.T) {
	t.Parallel()
	w := testenv.New(t, testenv.NoPolling())
	w.Pool(w.Class(), anySize)
	look(w, waitingPod(w, "100"), refused)
	w.Expect(w.Events.Messages(noHostFits)).To(HaveExactElements(And(
		ContainSubstring(`large enough for {"cpu":"100","pods":"1"}`), ContainSubstring("those with the most are c1.16VCPU-32GB and m1.16VCPU-128GB;"), ContainSubstring("--instance-types-file"),
	)))
}

func TestNothingIsSaidWhereItIsNotRoomThatLacks(t *testing.T) {
	t.Parallel()
	taint := corev1.Taint{Key: "team", Value: "blue", Effect: corev1.TaintEffectNoSchedule}
	for name, test := range map[string]struct {
		cpu  string
		pool func(*karpv1.NodePool)
		pod  func(*corev1.Pod)
	}{
		"there is room":                        {cpu: "1"},
		"the pool is not for the pod":          {cpu: "15", pool: func(p *karpv1.NodePool) { p.Spec.Template.Spec.Taints = []corev1.Taint{taint} }},
		"the pod is for another pool":          {cpu: "15", pod: func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{karpv1.NodePoolLabelKey: "other"} }},
		"the pool is static":                   {cpu: "15", pool: func(p *karpv1.NodePool) { p.Spec.Replicas = new(int64(1)) }},
		"the pod wants what the pool does not": {cpu: "15", pod: func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{"team": "red"} }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := testenv.New(t, testenv.NoPolling())
			w.Pool(w.Class(), anySize, func(p *karpv1.NodePool) {
				if test.pool != nil {
					test.pool(p)
				}
			})
			pod := waitingPod(w, test.cpu, func(p *corev1.Pod) {
				if test.pod != nil {
					test.pod(p)
				}
			})
			w.Expect(look(w, pod, refused)).To(BeNumerically(">", 0))
			w.Expect(w.Events.Messages(noHostFits)).To(BeEmpty())
		})
	}
}

func TestAPodThatHasItsNodeIsLeftAlone(t *testing.T) {
	t.Parallel()
	w := testenv.New(t, testenv.NoPolling())
	w.Pool(w.Class(), anySize)
	pod := waitingPod(w, "15", func(p *corev1.Pod) { p.Spec.NodeName = "somewhere" })
	w.Expect(look(w, pod, refused)).To(BeZero())
	w.Expect(w.Events.Messages(noHostFits)).To(BeEmpty())
}
