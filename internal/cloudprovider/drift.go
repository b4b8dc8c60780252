// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package cloudprovider

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/cloudprovider"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
)

// Why a Claim drifts.
const (
	// NodeClassDrift: a field of the NodeClass changed that a running VM cannot follow.
	NodeClassDrift cloudprovider.DriftReason = "NodeClassDrift"
	// ImageDrift: the Template on the Claim's Host is another one now.
	ImageDrift cloudprovider.DriftReason = "ImageDrift"
	// HostChanged: the VM was migrated, and its zone label is wrong.
	HostChanged cloudprovider.DriftReason = "HostChanged"
	// HostInMaintenance, HostOffline, HostExcluded: the VM's Host takes no VMs any more.
	HostInMaintenance cloudprovider.DriftReason = "HostInMaintenance"
	HostOffline       cloudprovider.DriftReason = "HostOffline"
	HostExcluded      cloudprovider.DriftReason = "HostExcluded"
)

// IsDrifted compares what a Claim was made from with what it would be made from now.
func (c *CloudProvider) IsDrifted(ctx context.Context, claim *karpv1.NodeClaim) (cloudprovider.DriftReason, error) {
	class, err := c.class(ctx, claim.Spec.NodeClassRef.Name)
	if apierrors.IsNotFound(err) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("resolving the nodeclass, %w", err)
	}
	if instance.LaunchedByOther(claim) {
		// Its VM would stay when its Node is replaced: first somebody has to hand it over.
		return "", nil
	}
	made, current := claim.Annotations[v1alpha1.AnnotationNodeClassHash], class.Hash()
	// Hashes of two versions cannot be compared: a new release must not replace
	// every Node.
	if claim.Annotations[v1alpha1.AnnotationNodeClassHashVersion] == v1alpha1.HashVersion && made != "" && made != current {
		return NodeClassDrift, nil
	}
	image, known := c.instances.CurrentImage(claim, class)
	if known && claim.Status.ImageID != "" && claim.Status.ImageID != image {
		return ImageDrift, nil
	}
	if since, moved := instance.MigratedSince(claim); moved && c.migratedDriftAfter > 0 && c.instances.Clock.Since(since) > c.migratedDriftAfter {
		return HostChanged, nil
	}
	return c.hostDrift(claim), nil
}

// hostDrift empties Hosts that an admin takes out of service, and those that do not
// come back: within the pool's disruption budgets, unlike a repair.
func (c *CloudProvider) hostDrift(claim *karpv1.NodeClaim) cloudprovider.DriftReason {
	if c.hostDriftAfter == 0 {
		return ""
	}
	host, ok := c.instances.HostOf(claim)
	if !ok {
		return ""
	}
	if host.OutOfService == inventory.Excluded {
		return HostExcluded
	}
	if host.OutOfServiceSince.IsZero() || c.instances.Clock.Since(host.OutOfServiceSince) < c.hostDriftAfter {
		return ""
	}
	if host.OutOfService == inventory.InMaintenance {
		return HostInMaintenance
	}
	return HostOffline
}
