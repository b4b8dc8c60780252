// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package cloudprovider_test

import (
	"slices"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	autoscalingv1beta1 "sigs.k8s.io/karpenter/pkg/apis/autoscaling/v1beta1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/controllers/nodeclaim/disruption"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

func withExactSizes(class *v1alpha1.ProxmoxNodeClass, _ *karpv1.NodePool) {
	class.Spec.VMSize.Policy = v1alpha1.VMSizeExact
}

// TestScheduleExactSize lets core's scheduler select instance types for pods, and checks the size
// of the VM that they get, and that the pods fit there.
func TestScheduleExactSize(t *testing.T) {
	t.Parallel()
	const exact = "e1.3VCPU-1GB"
	isLarge := corev1.NodeSelectorRequirement{Key: corev1.LabelInstanceTypeStable, Operator: corev1.NodeSelectorOpIn, Values: []string{"c1.8VCPU-16GB"}}
	types := []string{"c1.4VCPU-8GB", "c1.8VCPU-16GB"}
	for name, c := range map[string]struct {
		requires []karpv1.NodeSelectorRequirementWithMinValues
		// label is the one that the NodePool has for the instance type c1.4VCPU-8GB.
		label string
		max   v1alpha1.VMSize
		pod   func(*corev1.Pod)
		// daemonSet is the requirement of a DaemonSet that needs one CPU.
		daemonSet *corev1.NodeSelectorRequirement
		want      string
		cpus      int
	}{
		"what_the_pod_needs": {want: exact, cpus: 3},
		"pod_names_a_type": {
			pod: func(p *corev1.Pod) {
				p.Spec.NodeSelector = map[string]string{corev1.LabelInstanceTypeStable: "c1.8VCPU-16GB"}
			},
			want: "c1.8VCPU-16GB", cpus: 8,
		},
		"pod_names_a_type_with_an_old_label": {
			pod: func(p *corev1.Pod) {
				p.Spec.NodeSelector = map[string]string{corev1.LabelInstanceType: "c1.8VCPU-16GB"}
			},
			want: "c1.8VCPU-16GB", cpus: 8,
		},
		"pod_names_the_only_type_that_fits": {
			max: v1alpha1.VMSize{CPU: 4, Memory: "8Gi"},
			pod: func(p *corev1.Pod) {
				p.Spec.NodeSelector = map[string]string{corev1.LabelInstanceTypeStable: "c1.4VCPU-8GB"}
			},
			want: "c1.4VCPU-8GB", cpus: 4,
		},
		"pod_names_a_type_in_a_later_term": {
			pod: func(p *corev1.Pod) {
				missing := isLarge
				missing.Values = []string{"missing"}
				p.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
					NodeSelectorTerms: []corev1.NodeSelectorTerm{
						{MatchExpressions: []corev1.NodeSelectorRequirement{missing}}, {MatchExpressions: []corev1.NodeSelectorRequirement{isLarge}},
					},
				}}}
			},
			want: "c1.8VCPU-16GB", cpus: 8,
		},
		"pod_prefers_a_type": {
			pod: func(p *corev1.Pod) {
				p.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{PreferredDuringSchedulingIgnoredDuringExecution: []corev1.PreferredSchedulingTerm{
					{Weight: 1, Preference: corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{isLarge}}},
				}}}
			},
			want: "c1.8VCPU-16GB", cpus: 8,
		},
		"DaemonSet_excludes_a_type": {
			daemonSet: &corev1.NodeSelectorRequirement{Key: corev1.LabelInstanceTypeStable, Operator: corev1.NodeSelectorOpNotIn, Values: []string{"c1.1VCPU-2GB"}},
			want:      "c1.4VCPU-8GB", cpus: 4,
		},
		"DaemonSet_for_small_Nodes": {
			daemonSet: &corev1.NodeSelectorRequirement{Key: v1alpha1.LabelInstanceCPU, Operator: corev1.NodeSelectorOpLt, Values: []string{"4"}},
			want:      "c1.4VCPU-8GB", cpus: 4,
		},
		"DaemonSet_for_all_Nodes": {
			daemonSet: &corev1.NodeSelectorRequirement{Key: corev1.LabelArchStable, Operator: corev1.NodeSelectorOpIn, Values: []string{karpv1.ArchitectureAmd64}},
			want:      "e1.4VCPU-1GB", cpus: 4,
		},
		"NodePool_names_types": {
			requires: []karpv1.NodeSelectorRequirementWithMinValues{{Key: corev1.LabelInstanceTypeStable, Operator: corev1.NodeSelectorOpIn, Values: types}},
			want:     "c1.4VCPU-8GB", cpus: 4,
		},
		"NodePool_names_types_with_an_old_label": {
			requires: []karpv1.NodeSelectorRequirementWithMinValues{{Key: corev1.LabelInstanceType, Operator: corev1.NodeSelectorOpIn, Values: types}},
			want:     "c1.4VCPU-8GB", cpus: 4,
		},
		"NodePool_has_the_label_of_a_type": {label: corev1.LabelInstanceTypeStable, want: "c1.4VCPU-8GB", cpus: 4},
		"NodePool_needs_a_choice_of_types": {
			requires: []karpv1.NodeSelectorRequirementWithMinValues{
				{Key: corev1.LabelInstanceTypeStable, Operator: corev1.NodeSelectorOpExists, MinValues: new(4)},
			},
			want: exact, cpus: 3,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			k := newKarpenter(t, testenv.NoPolling())
			k.readyPool(withExactSizes, func(class *v1alpha1.ProxmoxNodeClass, p *karpv1.NodePool) {
				class.Spec.VMSize.Max, p.Spec.Template.Spec.Requirements = c.max, c.requires
				if c.label != "" {
					p.Spec.Template.Labels = map[string]string{c.label: "c1.4VCPU-8GB"}
				}
			})
			if c.daemonSet != nil {
				k.agent(*c.daemonSet, "1")
			}
			k.pending("pod", "2500m", func(p *corev1.Pod) {
				if c.pod != nil {
					c.pod(p)
				}
			})
			claims := k.launchPending()
			k.Expect(claims).To(HaveLen(1))
			k.Expect(claims[0].Labels).To(HaveKeyWithValue(corev1.LabelInstanceTypeStable, c.want))
			k.Expect(k.Intent(claims[0]).Cores).To(Equal(c.cpus))
			k.Expect(claims[0].Status.Capacity.Cpu().Value()).To(BeEquivalentTo(c.cpus))
			k.expectScheduled(claims)
		})
	}
}

// agent creates a DaemonSet for some Nodes.
func (k *karpenter) agent(nodes corev1.NodeSelectorRequirement, cpu string) {
	k.T.Helper()
	labels := map[string]string{"app": "agent"}
	k.Create(&appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: k.Name, Name: "agent"}, Spec: appsv1.DaemonSetSpec{
		Selector: &metav1.LabelSelector{MatchLabels: labels},
		Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{
			Containers: []corev1.Container{{
				Name: "agent", Image: "agent", Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)}},
			}},
			Affinity: &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
				NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{nodes}}},
			}}},
		}},
	}})
}

// Core adds the smallest requests that DaemonSets have on any of the types. If they differ, those on the
// Node may be larger.
func TestScheduleExactSizeArchitectures(t *testing.T) {
	t.Parallel()
	k := newKarpenter(t, testenv.Hosts(2), withARM64())
	k.readyPool(withExactSizes)
	k.agent(corev1.NodeSelectorRequirement{Key: corev1.LabelArchStable, Operator: corev1.NodeSelectorOpIn, Values: []string{karpv1.ArchitectureAmd64}}, "1")
	k.PendingPod("pod", "2500m")
	claims := k.launchPending()
	k.Expect(claims).To(HaveLen(1))
	k.expectScheduled(claims)
}

// The pods of a CapacityBuffer exist only in core's memory.
func TestScheduleExactSizeBuffer(t *testing.T) {
	t.Parallel()
	k := newKarpenter(t, testenv.NoPolling())
	k.readyPool(withExactSizes)
	k.Create(&corev1.PodTemplate{ObjectMeta: metav1.ObjectMeta{Namespace: k.Name, Name: "reserve"}, Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{
		NodeSelector: map[string]string{corev1.LabelInstanceTypeStable: "c1.8VCPU-16GB"},
		Containers: []corev1.Container{{
			Name: "reserve", Image: "reserve", Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("2500m")}},
		}},
	}}})
	buffer := &autoscalingv1beta1.CapacityBuffer{ObjectMeta: metav1.ObjectMeta{Namespace: k.Name, Name: "reserve"}, Spec: autoscalingv1beta1.CapacityBufferSpec{
		PodTemplateRef: &autoscalingv1beta1.LocalObjectRef{Name: "reserve"}, Replicas: new(int32(1)),
	}}
	k.Create(buffer)
	buffer.Status.Replicas = new(int32(1))
	meta.SetStatusCondition(&buffer.Status.Conditions, metav1.Condition{Type: autoscalingv1beta1.ReadyForProvisioningCondition, Status: metav1.ConditionTrue, Reason: "Resolved"})
	k.Expect(k.Kube.Status().Update(k.ctx, buffer)).To(Succeed())
	claims := k.launchPending()
	k.Expect(claims).To(HaveLen(1))
	k.Expect(claims[0].Labels).To(HaveKeyWithValue(corev1.LabelInstanceTypeStable, "c1.8VCPU-16GB"))
	k.expectScheduled(claims)
}

// A pod gets a VM of the same size again on a full host, although no type of the catalog that is
// large enough fits there.
func TestScheduleExactSizeOnFullHost(t *testing.T) {
	t.Parallel()
	k := newKarpenter(t, testenv.NoPolling(), testenv.Scenario(func(s *pvesim.Scenario) {
		s.Hosts[0].Sockets, s.Hosts[0].Cores, s.Hosts[0].Threads = 1, 4, 1
		s.Guests = slices.DeleteFunc(s.Guests, func(g pvesim.Guest) bool { return g.VMID < 9000 })
	}))
	k.readyPool(withExactSizes)
	unlimited := func(p *corev1.Pod) { p.Spec.TopologySpreadConstraints = nil }
	k.pending("first", "2500m", unlimited)
	first := k.launchPending()[0]
	k.Expect(first.Labels).To(HaveKeyWithValue(corev1.LabelInstanceTypeStable, "e1.3VCPU-1GB"))
	k.Expect(k.Kube.Delete(k.ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: k.Name, Name: "first"}})).To(Succeed())
	k.pending("second", "500m", unlimited)
	k.Expect(k.launchPending()).To(HaveLen(1))
	k.Expect(k.Kube.Delete(k.ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: k.Name, Name: "second"}})).To(Succeed())

	k.Delete(first)
	k.Refresh()
	k.pending("third", "2500m", unlimited)
	again := k.launchPending()
	k.Expect(again).To(HaveLen(1))
	k.Expect(again[0].Labels).To(HaveKeyWithValue(corev1.LabelInstanceTypeStable, "e1.3VCPU-1GB"))
}

// TestExactSizeAfterRestart checks that core's drift controller finds the instance type of a Node of exact
// size after a restart, and after the class changed to the sizes of the catalog.
func TestExactSizeAfterRestart(t *testing.T) {
	t.Parallel()
	k := newKarpenter(t, testenv.NoPolling())
	class := k.readyPool(withExactSizes)
	k.pending("pod", "2500m")
	claim := k.launchPending()[0]
	class.Spec.VMSize.Policy = v1alpha1.VMSizeInstanceType
	k.Expect(k.Kube.Update(k.ctx, class)).To(Succeed())
	k.Restart(true)
	k.Clock.Advance(2 * time.Hour) // core checks the instance types of Nodes that are older than an hour
	_, err := disruption.NewController(k.Clock, k.Kube, provider(k.Env)).Reconcile(k.ctx, claim)
	k.Expect(err).NotTo(HaveOccurred())
	k.Expect(testenv.Reload(k.Env, claim).StatusConditions().Get(karpv1.ConditionTypeDrifted)).To(BeNil())
}
