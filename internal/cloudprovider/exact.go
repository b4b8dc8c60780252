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
	autoscalingv1beta1 "sigs.k8s.io/karpenter/pkg/apis/autoscaling/v1beta1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/scheduling"
	"sigs.k8s.io/karpenter/pkg/utils/apps"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instancetype"
)

// refreshNodes reads the sizes and labels of existing Nodes from their Claims, every few minutes.
func (c *CloudProvider) refreshNodes(ctx context.Context) error {
	return c.deps.Types.RefreshNodes(func() ([]karpv1.NodeClaim, error) {
		claims := &karpv1.NodeClaimList{}
		if err := c.deps.Kube.List(ctx, claims, client.UnsafeDisableDeepCopy); err != nil {
			return nil, fmt.Errorf("listing NodeClaims: %w", err)
		}
		return claims.Items, nil
	})
}

// needsFixedSize reports whether a Claim must get one of the instance types that it lists: a
// VM of exact size has another instance type. That is the case for a static NodePool, for
// a NodePool or a standalone Claim that names instance types, and for pods that do. It is also
// the case if a DaemonSet does: core added the requests of those that run on the listed types.
func (c *CloudProvider) needsFixedSize(ctx context.Context, claim *karpv1.NodeClaim, class *v1alpha1.ProxmoxNodeClass, pool *karpv1.NodePool) (bool, error) {
	if !c.deps.Types.HasExactSizes(class) {
		return true, nil
	}
	if pool == nil {
		return instancetype.AreNamed(claim.Spec.Requirements), nil
	}
	template := pool.Spec.Template
	if pool.Spec.Replicas != nil || instancetype.AreNamed(template.Spec.Requirements) || hasKey(template.Labels, instancetype.IsTypeLabel) {
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
	for i := range daemonSets.Items {
		if selectsTypes(&daemonSets.Items[i].Spec.Template.Spec, listed.Values()) {
			return true, nil
		}
	}
	pods := &corev1.PodList{}
	if err := c.deps.Kube.List(ctx, pods, client.UnsafeDisableDeepCopy); err != nil {
		return false, fmt.Errorf("listing pods: %w", err)
	}
	for i := range pods.Items {
		if mayRestrict(&pods.Items[i].Spec, listed) {
			return true, nil
		}
	}
	return c.bufferMayRestrict(ctx, listed)
}

// bufferMayRestrict reports whether a Claim may list its instance types because of a CapacityBuffer.
// Its pods exist only in core's memory.
func (c *CloudProvider) bufferMayRestrict(ctx context.Context, listed *scheduling.Requirement) (bool, error) {
	if !c.deps.CapacityBuffers {
		return false, nil
	}
	buffers := &autoscalingv1beta1.CapacityBufferList{}
	if err := c.deps.Kube.List(ctx, buffers, client.UnsafeDisableDeepCopy); err != nil {
		return false, fmt.Errorf("listing CapacityBuffers: %w", err)
	}
	for i := range buffers.Items {
		buffer, err := apps.ResolveCapacityBuffer(ctx, c.deps.Kube, &buffers.Items[i])
		if err != nil {
			continue // core does not use it either, and reports why
		}
		if mayRestrict(&buffer.PodTemplateSpec.Spec, listed) {
			return true, nil
		}
	}
	return false, nil
}

// mayRestrict reports whether a Claim may list its instance types because of a pod: the pod
// selects or prefers all of them. Core may have left out others that the pod selects.
func mayRestrict(spec *corev1.PodSpec, listed *scheduling.Requirement) bool {
	selectsAll := func(values []string) bool {
		return listed.Len() <= len(values) && !slices.ContainsFunc(listed.Values(), func(name string) bool { return !slices.Contains(values, name) })
	}
	for key, value := range spec.NodeSelector {
		if instancetype.IsTypeLabel(key) {
			return selectsAll([]string{value})
		}
	}
	// Core tries the terms one by one.
	return slices.ContainsFunc(slices.Concat(requiredTerms(spec), preferredTerms(spec)), func(term corev1.NodeSelectorTerm) bool {
		return slices.ContainsFunc(term.MatchExpressions, func(r corev1.NodeSelectorRequirement) bool {
			return instancetype.IsTypeLabel(r.Key) && r.Operator == corev1.NodeSelectorOpIn && selectsAll(r.Values)
		})
	})
}

// selectsTypes reports whether the pods of a DaemonSet may run on Nodes of some of the listed types
// only, or not on the Node of exact size that replaces them. Types of two architectures differ
// in many labels.
func selectsTypes(spec *corev1.PodSpec, listed []string) bool {
	mixed := instancetype.AreMixed(listed)
	isType := func(key string) bool {
		switch key = cmp.Or(karpv1.NormalizedLabels[key], key); key {
		case corev1.LabelInstanceTypeStable, v1alpha1.LabelInstanceFamily, v1alpha1.LabelInstanceCPU, v1alpha1.LabelInstanceMemory:
			return true
		}
		return mixed && key != corev1.LabelOSStable
	}
	return hasKey(spec.NodeSelector, isType) || slices.ContainsFunc(requiredTerms(spec), func(term corev1.NodeSelectorTerm) bool {
		return slices.ContainsFunc(term.MatchExpressions, func(r corev1.NodeSelectorRequirement) bool { return isType(r.Key) })
	})
}

// hasKey reports whether the key of a label matches.
func hasKey(labels map[string]string, match func(string) bool) bool {
	for key := range labels {
		if match(key) {
			return true
		}
	}
	return false
}

// requiredTerms returns the terms of the required node affinity.
func requiredTerms(spec *corev1.PodSpec) []corev1.NodeSelectorTerm {
	if spec.Affinity == nil || spec.Affinity.NodeAffinity == nil || spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return nil
	}
	return spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
}

// preferredTerms returns the terms of the preferred node affinity. Core treats them as required
// until it finds that the pod cannot be scheduled.
func preferredTerms(spec *corev1.PodSpec) (terms []corev1.NodeSelectorTerm) {
	if spec.Affinity == nil || spec.Affinity.NodeAffinity == nil {
		return nil
	}
	for _, term := range spec.Affinity.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution {
		terms = append(terms, term.Preference)
	}
	return terms
}
