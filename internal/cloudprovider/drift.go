// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package cloudprovider

import (
	"context"
	"fmt"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/cloudprovider"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
)

// IsDrifted compares what a Claim was created from with what it would be created from
// now. It returns the reason of the drift, or none.
func (c *CloudProvider) IsDrifted(ctx context.Context, claim *karpv1.NodeClaim) (cloudprovider.DriftReason, error) {
	class, err := c.nodeClass(ctx, claim.Spec.NodeClassRef.Name)
	if apierrors.IsNotFound(err) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("resolving the NodeClass: %w", err)
	}
	if instance.LaunchedByOther(claim) {
		// A replacement would not delete its VM, which must be adopted first.
		return "", nil
	}
	if c.deps.VMs.IsUnavailable(claim) {
		// Its VM could not be deleted, and its Host may be in service.
		return "", nil
	}
	if c.hasNodeClassChanged(claim, class) {
		return v1alpha1.DriftNodeClass, nil
	}
	if c.deps.VMs.MachineDrift(claim, class) != "" {
		return v1alpha1.DriftMachine, nil
	}
	if c.deps.VMs.ImageDrift(claim, class) != "" {
		return v1alpha1.DriftImage, nil
	}
	if c.hasBootDataChanged(ctx, claim, class) {
		return v1alpha1.DriftBootData, nil
	}
	return c.hostDrift(claim), nil
}

// hasNodeClassChanged reports whether the Claim was launched with another NodeClass. It
// returns false while no Node can be launched with its kubelet configuration: Karpenter
// deletes drifted Nodes without a replacement if they are empty or if their pods fit on
// other Nodes.
func (c *CloudProvider) hasNodeClassChanged(claim *karpv1.NodeClaim, class *v1alpha1.ProxmoxNodeClass) bool {
	// Hashes of two versions are not comparable: a new release must not replace every Node.
	if claim.Annotations[v1alpha1.AnnotationNodeClassHashVersion] != v1alpha1.HashVersion ||
		claim.Annotations[v1alpha1.AnnotationNodeClassHash] == "" || claim.Annotations[v1alpha1.AnnotationNodeClassHash] == class.Hash() {
		return false
	}
	// The condition may be that of the last generation.
	return c.deps.Types.CheckKubelet(class) == nil && !class.StatusConditions().Get(v1alpha1.ConditionKubeletConfigurationValid).IsFalse()
}

// hasBootDataChanged reports whether the boot data of a Claim's class changed since its
// launch. The hash in the class's status may be older than the Claim, so a difference is
// confirmed by reading the Secrets. While they cannot be read, nothing has changed; the
// class reports it.
func (c *CloudProvider) hasBootDataChanged(ctx context.Context, claim *karpv1.NodeClaim, class *v1alpha1.ProxmoxNodeClass) bool {
	created, current := claim.Annotations[v1alpha1.AnnotationBootDataHash], class.Status.BootDataHash
	if !class.Spec.MetadataOptions.ReplacesOnChange() || !strings.HasPrefix(created, v1alpha1.BootDataHashPrefix) || current == "" || created == current {
		return false
	}
	current, err := c.deps.BootDataHash(ctx, class)
	return err == nil && created != current
}

// hostDrift returns the reason to replace Nodes on a Host that an administrator took out
// of service, or that stays offline. Unlike a repair, drift respects disruption budgets.
func (c *CloudProvider) hostDrift(claim *karpv1.NodeClaim) cloudprovider.DriftReason {
	host, ok := c.deps.VMs.HostOf(claim)
	if !ok {
		return ""
	}
	// After a restart the maintenance may not be readable yet. Its last known state is
	// recorded on the Claim.
	recorded := host.Has(inventory.MaintenanceUnknown) && claim.Annotations[v1alpha1.AnnotationHostMaintenanceSince] != ""
	if (host.Has(inventory.InMaintenance) || recorded) && c.deps.DrainMaintenance {
		return v1alpha1.DriftHostInMaintenance
	}
	if c.deps.HostDriftAfter == 0 {
		return ""
	}
	if host.Has(inventory.Excluded) {
		return v1alpha1.DriftHostExcluded
	}
	if offline, is := host.Condition(inventory.Offline); is && c.deps.Clock.Since(offline.Since) >= c.deps.HostDriftAfter {
		return v1alpha1.DriftHostOffline
	}
	return ""
}
