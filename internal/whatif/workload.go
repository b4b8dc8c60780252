// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package whatif

import (
	"fmt"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	podutils "sigs.k8s.io/karpenter/pkg/utils/pod"
)

// workload is an object of a manifest that creates pods, or a pod.
type workload struct {
	kind     string
	meta     metav1.ObjectMeta
	replicas *int32
	selector *metav1.LabelSelector
	template corev1.PodTemplateSpec
}

// workloadOf returns the workload of an object. It returns false for other objects.
func workloadOf(object client.Object) (workload, bool) {
	switch o := object.(type) {
	case *appsv1.Deployment:
		return workload{"Deployment", o.ObjectMeta, o.Spec.Replicas, o.Spec.Selector, o.Spec.Template}, true
	case *appsv1.StatefulSet:
		return workload{"StatefulSet", o.ObjectMeta, o.Spec.Replicas, o.Spec.Selector, o.Spec.Template}, true
	case *appsv1.ReplicaSet:
		return workload{"ReplicaSet", o.ObjectMeta, o.Spec.Replicas, o.Spec.Selector, o.Spec.Template}, true
	case *batchv1.Job:
		return jobWorkload(o), true
	case *corev1.Pod:
		template := corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: o.Labels, Annotations: o.Annotations}, Spec: o.Spec}
		return workload{kind: "Pod", meta: o.ObjectMeta, template: template}, true
	}
	return workload{}, false
}

// jobWorkload returns the workload of a Job: the pods that run at the same time; none if it is
// suspended.
func jobWorkload(job *batchv1.Job) workload {
	name := map[string]string{batchv1.JobNameLabel: job.Name} // the API server adds it
	template := *job.Spec.Template.DeepCopy()
	template.Labels = labels.Merge(template.Labels, name)
	replicas := job.Spec.Parallelism
	if completions := job.Spec.Completions; completions != nil && *completions < ptr.Deref(replicas, 1) {
		replicas = completions
	}
	if ptr.Deref(job.Spec.Suspend, false) {
		replicas = new(int32(0))
	}
	return workload{"Job", job.ObjectMeta, replicas, &metav1.LabelSelector{MatchLabels: name}, template}
}

// newPods returns the pods that a workload adds to those that exist, as pending pods. It
// fails if the manifest is invalid.
func (w workload) newPods(existing []client.Object) ([]*corev1.Pod, error) {
	namespace := w.meta.Namespace
	if w.meta.Name == "" {
		return nil, fmt.Errorf("%s: %w", w.kind, field.Required(field.NewPath("metadata", "name"), "the pods are named after it"))
	}
	missing := int(ptr.Deref(w.replicas, 1))
	isPod := w.kind == "Pod"
	if !isPod {
		selector, err := metav1.LabelSelectorAsSelector(w.selector)
		if err != nil {
			return nil, fmt.Errorf("%s %s: %w", w.kind, w.meta.Name, field.Invalid(field.NewPath("spec", "selector"), w.selector, err.Error()))
		}
		if !selector.Matches(labels.Set(w.template.Labels)) {
			return nil, fmt.Errorf("%s %s: %w", w.kind, w.meta.Name, field.Invalid(field.NewPath("spec", "template", "metadata", "labels"), w.template.Labels, "must match spec.selector"))
		}
		missing -= countPods(existing, namespace, selector)
	}
	var pods []*corev1.Pod
	taken := podNames(existing, namespace)
	for n := 1; len(pods) < missing; n++ {
		name := w.meta.Name
		if !isPod {
			name = fmt.Sprintf("%s-%d", w.meta.Name, n)
		}
		if taken[name] && isPod {
			break
		} else if taken[name] {
			continue // a StatefulSet has pods with such names
		}
		pod := &corev1.Pod{ObjectMeta: *w.template.ObjectMeta.DeepCopy(), Spec: *w.template.Spec.DeepCopy()}
		pod.Namespace, pod.Name, pod.UID = namespace, name, types.UID("planned-"+namespace+"-"+name)
		pod.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: w.meta.Name, UID: types.UID("planned-" + namespace + "-" + w.meta.Name), Controller: new(true)}}
		pods = append(pods, asPending(pod))
	}
	return pods, nil
}

// podNames returns the names of the pods in a namespace.
func podNames(existing []client.Object, namespace string) map[string]bool {
	names := map[string]bool{}
	for _, object := range existing {
		if pod, ok := object.(*corev1.Pod); ok && pod.Namespace == namespace {
			names[pod.Name] = true
		}
	}
	return names
}

// countPods returns the number of pods that a workload has already.
func countPods(existing []client.Object, namespace string, selector labels.Selector) (n int) {
	for _, object := range existing {
		if pod, ok := object.(*corev1.Pod); ok && pod.Namespace == namespace && podutils.IsActive(pod) && selector.Matches(labels.Set(pod.Labels)) {
			n++
		}
	}
	return n
}

// asPending returns the pod as one that the Kubernetes scheduler found no Node for, without its
// generic ephemeral volumes: Kubernetes creates their PersistentVolumeClaims with the pod.
func asPending(pod *corev1.Pod) *corev1.Pod {
	pod = pod.DeepCopy()
	pod.Spec.NodeName = ""
	pod.Spec.Volumes = slices.DeleteFunc(pod.Spec.Volumes, func(v corev1.Volume) bool { return v.Ephemeral != nil })
	pod.Status = corev1.PodStatus{Phase: corev1.PodPending, Conditions: []corev1.PodCondition{
		{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable},
	}}
	return pod
}
