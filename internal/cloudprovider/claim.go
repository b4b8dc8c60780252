// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package cloudprovider

import (
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/scheduling"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/placement"
)

// plannedClaim returns the result of Create: core stores its labels and annotations, and then its
// providerID, image, capacity and allocatable. A parked Claim has no capacity and allocatable until
// it is launched: core would plan pods for it that fit on other Nodes.
func (c *CloudProvider) plannedClaim(claim *karpv1.NodeClaim, class *v1alpha1.ProxmoxNodeClass, in instance.Intent) (*karpv1.NodeClaim, error) {
	out := &karpv1.NodeClaim{}
	out.Name = claim.Name
	out.Annotations = in.Annotations(class)
	if !in.IsUnplaceable() {
		if err := c.setNodeProperties(out, claim, class, in); err != nil {
			return nil, err
		}
	}
	out.Status.ProviderID = in.ProviderID()
	out.Status.ImageID = in.ImageID
	return out, nil
}

// setNodeProperties sets labels and resources of the Node that the Claim will become.
func (c *CloudProvider) setNodeProperties(out, claim *karpv1.NodeClaim, class *v1alpha1.ProxmoxNodeClass, in instance.Intent) error {
	out.Labels = c.deps.Types.Labels(class, in.InstanceType, placement.Zone{Region: in.Region, Host: in.Host})
	if out.Labels == nil {
		out.Labels = map[string]string{} // the type was removed from the catalog since the VM was planned
	}
	maps.Copy(out.Labels, in.Labels())
	if in.Parked {
		return nil
	}
	resources, err := c.deps.Planner.NodeResources(claim, class, in.InstanceType)
	if err != nil {
		return err
	}
	if resources == nil { // without capacity, the Claim would wait for it
		c.deps.Planner.Release(string(claim.UID))
		return fmt.Errorf("instance type %s, which was planned for NodeClaim %s, is not in the catalog any more", in.InstanceType, claim.Name)
	}
	out.Status.Capacity, out.Status.Allocatable = resources.Capacity, resources.Allocatable
	return nil
}

// withoutAssumedSpot removes a requirement that core adds. When core replaces a Node by a
// cheaper one, and the NodePool does not restrict the capacity type, core assumes that
// only spot is cheaper and requests only spot. Each instance type has one capacity type, so
// those that core lists are cheaper anyway. If all of them are spot, a pod requires it.
func (c *CloudProvider) withoutAssumedSpot(claim *karpv1.NodeClaim, pool *karpv1.NodePool) *karpv1.NodeClaim {
	if pool == nil {
		return claim
	}
	allowed := scheduling.NewNodeSelectorRequirementsWithMinValues(pool.Spec.Template.Spec.Requirements...)
	requested := scheduling.NewNodeSelectorRequirementsWithMinValues(claim.Spec.Requirements...)
	isOnDemand := func(name string) bool { return c.deps.Types.CapacityType(name) == karpv1.CapacityTypeOnDemand }
	if requested.Get(karpv1.CapacityTypeLabelKey).Has(karpv1.CapacityTypeOnDemand) || !allowed.Get(karpv1.CapacityTypeLabelKey).Has(karpv1.CapacityTypeOnDemand) ||
		!slices.ContainsFunc(requested.Get(corev1.LabelInstanceTypeStable).Values(), isOnDemand) {
		return claim
	}
	out := claim.DeepCopy()
	out.Spec.Requirements = slices.DeleteFunc(out.Spec.Requirements, func(r karpv1.NodeSelectorRequirementWithMinValues) bool {
		return r.Key == karpv1.CapacityTypeLabelKey
	})
	return out
}

// vmClaim returns a VM as a NodeClaim.
func vmClaim(vm instance.VM) *karpv1.NodeClaim {
	out := &karpv1.NodeClaim{}
	out.Name = vm.Claim
	out.UID = types.UID(vm.ClaimUID)
	out.Labels = map[string]string{
		corev1.LabelTopologyRegion: vm.Region,
		corev1.LabelTopologyZone:   vm.Host,
	}
	out.Status.ProviderID = vm.ProviderID()
	return out
}
