// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package cloudprovider

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/scheduling"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instancetype"
)

// refreshSizes reads the sizes of existing Nodes from their Claims, every few minutes.
func (c *CloudProvider) refreshSizes(ctx context.Context) error {
	return c.deps.Types.RefreshSizes(func() ([]string, error) {
		claims := &karpv1.NodeClaimList{}
		if err := c.deps.Kube.List(ctx, claims, client.UnsafeDisableDeepCopy); err != nil {
			return nil, fmt.Errorf("listing NodeClaims: %w", err)
		}
		var names []string
		for i := range claims.Items {
			names = append(names, claims.Items[i].Labels[corev1.LabelInstanceTypeStable])
		}
		return names, nil
	})
}

// needsFixedSize reports whether a Claim must get one of the instance types that it lists: a
// VM of exact size has another instance type. That is the case for a static NodePool, for
// a NodePool or a standalone Claim that names instance types, and for pods that do. It is also
// the case if a DaemonSet does: core added the requests of those that run on the listed types.
func (c *CloudProvider) needsFixedSize(ctx context.Context, claim *karpv1.NodeClaim, pool *karpv1.NodePool) (bool, error) {
	if pool == nil {
		return instancetype.AreNamed(claim.Spec.Requirements), nil
	}
	if pool.Spec.Replicas != nil || instancetype.AreNamed(pool.Spec.Template.Spec.Requirements) {
		return true, nil
	}
	requirements := scheduling.NewNodeSelectorRequirementsWithMinValues(claim.Spec.Requirements...)
	listed := requirements.Get(corev1.LabelInstanceTypeStable)
	if listed.Operator() != corev1.NodeSelectorOpIn {
		return false, nil
	}
	daemonSets := &appsv1.DaemonSetList{}
	if err := c.deps.Kube.List(ctx, daemonSets, client.UnsafeDisableDeepCopy); err != nil {
		return false, fmt.Errorf("listing DaemonSets: %w", err)
	}
	if slices.ContainsFunc(daemonSets.Items, func(d appsv1.DaemonSet) bool { return selectsTypes(d.Spec.Template.Spec) }) {
		return true, nil
	}
	pods := &corev1.PodList{}
	if err := c.deps.Kube.List(ctx, pods, client.UnsafeDisableDeepCopy); err != nil {
		return false, fmt.Errorf("listing pods: %w", err)
	}
	return slices.ContainsFunc(pods.Items, func(pod corev1.Pod) bool { return mayRestrict(&pod, listed) }), nil
}

// mayRestrict reports whether a Claim may list its instance types because of a pod: the pod
// selects all of them. Core may have left out others that the pod selects.
func mayRestrict(pod *corev1.Pod, listed *scheduling.Requirement) bool {
	selectsAll := func(values []string) bool {
		return listed.Len() <= len(values) && !slices.ContainsFunc(listed.Values(), func(name string) bool { return !slices.Contains(values, name) })
	}
	for key, value := range pod.Spec.NodeSelector {
		if isInstanceType(key) {
			return selectsAll([]string{value})
		}
	}
	// Core tries the terms one by one.
	return slices.ContainsFunc(requiredTerms(pod.Spec), func(term corev1.NodeSelectorTerm) bool {
		return slices.ContainsFunc(term.MatchExpressions, func(r corev1.NodeSelectorRequirement) bool {
			return isInstanceType(r.Key) && r.Operator == corev1.NodeSelectorOpIn && selectsAll(r.Values)
		})
	})
}

// selectsTypes reports whether pods run only on Nodes of some instance types or families.
func selectsTypes(spec corev1.PodSpec) bool {
	isType := func(key string) bool { return isInstanceType(key) || key == v1alpha1.LabelInstanceFamily }
	for key := range spec.NodeSelector {
		if isType(key) {
			return true
		}
	}
	return slices.ContainsFunc(requiredTerms(spec), func(term corev1.NodeSelectorTerm) bool {
		return slices.ContainsFunc(term.MatchExpressions, func(r corev1.NodeSelectorRequirement) bool { return isType(r.Key) })
	})
}

// requiredTerms returns the terms of the required node affinity.
func requiredTerms(spec corev1.PodSpec) []corev1.NodeSelectorTerm {
	if spec.Affinity == nil || spec.Affinity.NodeAffinity == nil || spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return nil
	}
	return spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
}

// isInstanceType reports whether core treats a label as that of the instance type.
func isInstanceType(key string) bool {
	return cmp.Or(karpv1.NormalizedLabels[key], key) == corev1.LabelInstanceTypeStable
}
