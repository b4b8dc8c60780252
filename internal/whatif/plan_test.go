// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package whatif

import (
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
)

// Core does not schedule some pods. They run on an existing Node that fits, unless their
// PersistentVolumeClaim is invalid.
func TestPlanRejectedPod(t *testing.T) {
	t.Parallel()
	resources := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("2"), corev1.ResourcePods: resource.MustParse("10")}
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "existing", Labels: map[string]string{corev1.LabelHostname: "existing"}},
		Status:     corev1.NodeStatus{Capacity: resources, Allocatable: resources, Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}},
	}
	hostname := func(name string) corev1.PodSpec {
		return corev1.PodSpec{NodeSelector: map[string]string{corev1.LabelHostname: name}}
	}
	volume := func(source corev1.VolumeSource) corev1.PodSpec {
		return corev1.PodSpec{Volumes: []corev1.Volume{{Name: "data", VolumeSource: source}}}
	}
	term := func(term corev1.NodeSelectorTerm) *corev1.Affinity {
		return &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{term}}}}
	}
	field := func(node string) corev1.PodSpec {
		return corev1.PodSpec{Affinity: term(corev1.NodeSelectorTerm{MatchFields: []corev1.NodeSelectorRequirement{{Key: metav1.ObjectNameField, Operator: corev1.NodeSelectorOpIn, Values: []string{node}}}})}
	}
	ephemeral := volume(corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{}})
	missing := volume(corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "absent"}})
	avoiding := *missing.DeepCopy()
	avoiding.Affinity = term(corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: karpv1.NodePoolLabelKey, Operator: corev1.NodeSelectorOpDoesNotExist}}})
	ignored := func(cause string) any {
		return And(HavePrefix("Karpenter ignores the pod: "), ContainSubstring(cause))
	}
	for name, test := range map[string]struct {
		spec   corev1.PodSpec
		cpu    string
		reason any // nil if the pod fits
	}{
		"hostname":                    {hostname("existing"), "1", nil},
		"hostname_of_small_node":      {hostname("existing"), "3", ignored("using label kubernetes.io/hostname is not allowed")},
		"hostname_of_no_node":         {hostname("absent"), "1", ignored("using label kubernetes.io/hostname is not allowed")},
		"node_name":                   {field("existing"), "1", nil},
		"name_of_small_node":          {field("existing"), "3", ignored("matchFields is not supported")},
		"name_of_no_node":             {field("absent"), "1", ignored("matchFields is not supported")},
		"ephemeral_volume":            {ephemeral, "1", nil},
		"ephemeral_volume_small_node": {ephemeral, "3", Equal("no existing node fits, and no dynamic NodePool is ready to create one")},
		"missing_claim":               {missing, "1", ignored(`"absent" not found`)},
		"missing_claim_other_nodes":   {avoiding, "1", ignored(`"absent" not found`)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := NewWithT(t)
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "app"}, Spec: test.spec}
			pod.Spec.Containers = []corev1.Container{{Name: "c", Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(test.cpu)}}}}
			plan, err := (&State{Objects: []client.Object{node}}).Plan(t.Context(), Change{Objects: []client.Object{pod}})
			g.Expect(err).NotTo(HaveOccurred())
			if test.reason == nil {
				g.Expect(plan.Unschedulable).To(BeEmpty())
			} else {
				g.Expect(plan.Unschedulable).To(ConsistOf(And(HaveField("Pod", "shop/app"), HaveField("Reason", test.reason))))
			}
		})
	}
}
