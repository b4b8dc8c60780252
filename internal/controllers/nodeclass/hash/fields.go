// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package hash

import (
	"context"
	"fmt"

	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	nodeclaimutils "sigs.k8s.io/karpenter/pkg/utils/nodeclaim"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
)

// recordFields records the fields of the class on NodeClaims without them, which another
// release launched. If the class changed since their launch, its old values are unknown.
func (c *Controller) recordFields(ctx context.Context, class *v1alpha1.ProxmoxNodeClass) error {
	claims := &karpv1.NodeClaimList{}
	if err := c.kube.List(ctx, claims, nodeclaimutils.ForNodeClass(class), client.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("listing NodeClaims of NodeClass %s: %w", class.Name, err)
	}
	hash := class.Hash()
	for i := range claims.Items {
		stored := &claims.Items[i]
		if _, recorded := stored.Annotations[v1alpha1.AnnotationNodeClassFields]; recorded ||
			stored.Annotations[v1alpha1.AnnotationNodeClassHash] != hash || stored.Annotations[v1alpha1.AnnotationNodeClassHashVersion] != v1alpha1.HashVersion {
			continue
		}
		claim := stored.DeepCopy()
		claim.Annotations[v1alpha1.AnnotationNodeClassFields] = class.EncodeHashedFields()
		if err := c.kube.Patch(ctx, claim, client.MergeFrom(stored)); client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("recording the fields of NodeClaim %s: %w", claim.Name, err)
		}
	}
	return nil
}
