// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"context"
	"fmt"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// appNamespace is the namespace of the Deployments.
const appNamespace = metav1.NamespaceDefault

// Deployment returns a Deployment whose pods request one CPU each and have no termination
// grace period. Its pods have the label app with its name.
func Deployment(name string, replicas int32) *appsv1.Deployment {
	labels := map[string]string{"app": name}
	noGrace := int64(0)
	d := &appsv1.Deployment{}
	d.Name, d.Namespace = name, appNamespace
	d.Spec.Replicas = &replicas
	d.Spec.Selector = &metav1.LabelSelector{MatchLabels: labels}
	d.Spec.Template.Labels = labels
	d.Spec.Template.Spec = corev1.PodSpec{
		TerminationGracePeriodSeconds: &noGrace,
		Containers: []corev1.Container{{
			Name: "app", Image: "registry.k8s.io/pause:3.10",
			Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{
				corev1.ResourceCPU: resource.MustParse("1"), corev1.ResourceMemory: resource.MustParse("512Mi"),
			}},
		}},
	}
	return d
}

// Scale changes the replicas of a Deployment.
func Scale(ctx context.Context, kube client.Client, name string, replicas int32) error {
	d := &appsv1.Deployment{}
	d.Name, d.Namespace = name, appNamespace
	patch := fmt.Appendf(nil, `{"spec":{"replicas":%d}}`, replicas)
	if err := kube.Patch(ctx, d, client.RawPatch(types.MergePatchType, patch)); err != nil {
		return fmt.Errorf("scaling %s: %w", name, err)
	}
	return nil
}

// Pods returns the pods of a Deployment that are not being deleted.
func Pods(ctx context.Context, kube client.Client, name string) ([]corev1.Pod, error) {
	list := &corev1.PodList{}
	if err := kube.List(ctx, list, client.InNamespace(appNamespace), client.MatchingLabels{"app": name}); err != nil {
		return nil, fmt.Errorf("listing pods of %s: %w", name, err)
	}
	return slices.DeleteFunc(list.Items, func(pod corev1.Pod) bool { return !pod.DeletionTimestamp.IsZero() }), nil
}

// PodReady reports whether a pod is ready.
func PodReady(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// NodeReady reports whether a Node is ready.
func NodeReady(node *corev1.Node) bool {
	return slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
}
