// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package cloudprovider

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/cloudprovider"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/placement"
)

// filledClaim is the answer to Create: core copies labels, annotations,
// providerID, image, capacity and allocatable from it.
func (c *CloudProvider) filledClaim(claim *karpv1.NodeClaim, class *v1alpha1.ProxmoxNodeClass, in instance.Intent) (*karpv1.NodeClaim, error) {
	out := &karpv1.NodeClaim{}
	out.Name = claim.Name
	out.Labels = c.types.Labels(class, in.InstanceType, placement.Zone{Region: in.Region, Host: in.Host})
	if out.Labels == nil {
		// The type has left the catalogue since the plan was made.
		out.Labels = map[string]string{
			corev1.LabelInstanceTypeStable: in.InstanceType, corev1.LabelTopologyRegion: in.Region, corev1.LabelTopologyZone: in.Host,
		}
	}
	out.Labels[karpv1.CapacityTypeLabelKey] = in.CapacityType
	if it, ok := c.types.Get(class, in.InstanceType); ok {
		its, err := c.overlay(claim, it)
		if err != nil {
			return nil, err
		}
		out.Status.Capacity = its.Capacity.DeepCopy()
		out.Status.Allocatable = its.Allocatable().DeepCopy()
	}
	out.Annotations = map[string]string{
		v1alpha1.AnnotationLaunchIntent:         in.Encode(),
		v1alpha1.AnnotationNodeClassHash:        class.Hash(),
		v1alpha1.AnnotationNodeClassHashVersion: v1alpha1.HashVersion,
		v1alpha1.AnnotationInPlaceUpdateHash:    class.InPlaceHash(),
	}
	out.Status.ProviderID = in.ProviderID()
	out.Status.ImageID = in.ImageID
	return out, nil
}

// overlay applies NodeOverlays, so that what we answer is what core planned with.
func (c *CloudProvider) overlay(claim *karpv1.NodeClaim, it *cloudprovider.InstanceType) (*cloudprovider.InstanceType, error) {
	pool, ok := claim.Labels[karpv1.NodePoolLabelKey]
	if !ok {
		return it, nil
	}
	overlaid, err := c.overlays.ApplyAll(pool, []*cloudprovider.InstanceType{it})
	if cloudprovider.IsUnevaluatedNodePoolError(err) {
		return it, nil
	}
	if err != nil {
		return nil, fmt.Errorf("applying node overlays, %w", err)
	}
	return overlaid[0], nil
}

// claimOf is a VM as Karpenter wants to see it.
func claimOf(vm instance.VM) *karpv1.NodeClaim {
	out := &karpv1.NodeClaim{}
	out.Name = vm.Name
	out.UID = types.UID(vm.ClaimUID)
	out.Labels = map[string]string{
		corev1.LabelTopologyRegion: vm.Region,
		corev1.LabelTopologyZone:   vm.Host,
	}
	out.Status.ProviderID = vm.ProviderID()
	return out
}
