// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package cloudprovider

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/cloudprovider"
	"sigs.k8s.io/karpenter/pkg/scheduling"
	"sigs.k8s.io/karpenter/pkg/utils/resources"

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
// a NodePool or a standalone Claim that names instance types, and for pods that do.
func (c *CloudProvider) needsFixedSize(ctx context.Context, claim *karpv1.NodeClaim, class *v1alpha1.ProxmoxNodeClass, pool *karpv1.NodePool) (bool, error) {
	if pool == nil {
		return instancetype.AreNamed(claim.Spec.Requirements), nil
	}
	if pool.Spec.Replicas != nil || instancetype.AreNamed(pool.Spec.Template.Spec.Requirements) {
		return true, nil
	}
	requirements := scheduling.NewNodeSelectorRequirementsWithMinValues(claim.Spec.Requirements...)
	listed := requirements.Get(corev1.LabelInstanceTypeStable)
	delete(requirements, corev1.LabelInstanceTypeStable)
	allListed := !slices.ContainsFunc(c.deps.Types.List(class, pool.Name), func(it *cloudprovider.InstanceType) bool {
		return !listed.Has(it.Name) && requirements.IsCompatible(it.Requirements, scheduling.AllowUndefinedWellKnownLabels) &&
			resources.Fits(claim.Spec.Resources.Requests, it.Allocatable()) && it.Offerings.Available().HasCompatible(requirements)
	})
	if allListed {
		return false, nil
	}
	// Core left types out. When it replaces a Node, these are the more expensive ones.
	pods := &corev1.PodList{}
	if err := c.deps.Kube.List(ctx, pods, client.UnsafeDisableDeepCopy); err != nil {
		return false, fmt.Errorf("listing pods: %w", err)
	}
	return slices.ContainsFunc(pods.Items, func(pod corev1.Pod) bool {
		selected := scheduling.NewStrictPodRequirements(&pod)
		return selected.Has(corev1.LabelInstanceTypeStable) && selected.Get(corev1.LabelInstanceTypeStable).Operator() == corev1.NodeSelectorOpIn &&
			slices.ContainsFunc(selected.Get(corev1.LabelInstanceTypeStable).Values(), listed.Has)
	}), nil
}
