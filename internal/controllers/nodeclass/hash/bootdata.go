// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package hash

import (
	"context"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	nodeclaimutils "sigs.k8s.io/karpenter/pkg/utils/nodeclaim"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
)

// recordBootData sets the hash of the boot data on launched NodeClaims without one. They
// were launched before the class replaced Nodes on a change, or by another release. If
// the class does not replace Nodes any more, it removes the hashes, so enabling it later
// does not replace all Nodes for past changes.
func (c *Controller) recordBootData(ctx context.Context, class *v1alpha1.ProxmoxNodeClass) error {
	replaces := class.Spec.MetadataOptions.ReplacesOnChange()
	if replaces && class.Status.BootDataHash == "" {
		return nil // not evaluated yet
	}
	claims := &karpv1.NodeClaimList{}
	if err := c.kube.List(ctx, claims, nodeclaimutils.ForNodeClass(class), client.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("listing NodeClaims of NodeClass %s: %w", class.Name, err)
	}
	for i := range claims.Items {
		stored := &claims.Items[i]
		_, recorded := stored.Annotations[v1alpha1.AnnotationBootDataHash]
		if replaces && !lacksBootDataHash(stored) || !replaces && !recorded {
			continue
		}
		claim := stored.DeepCopy()
		if replaces {
			claim.Annotations[v1alpha1.AnnotationBootDataHash] = class.Status.BootDataHash
		} else {
			delete(claim.Annotations, v1alpha1.AnnotationBootDataHash)
		}
		if err := c.kube.Patch(ctx, claim, client.MergeFrom(stored)); client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("recording the boot data hash of NodeClaim %s: %w", claim.Name, err)
		}
	}
	return nil
}

// lacksBootDataHash reports whether a launched NodeClaim has no hash of this release. A
// launch in progress records its own.
func lacksBootDataHash(claim *karpv1.NodeClaim) bool {
	return claim.Annotations[v1alpha1.AnnotationLaunchCompleted] != "" &&
		!strings.HasPrefix(claim.Annotations[v1alpha1.AnnotationBootDataHash], v1alpha1.BootDataHashPrefix)
}

// classOf returns the class of a NodeClaim whose hash must be recorded.
func (c *Controller) classOf(ctx context.Context, o client.Object) []reconcile.Request {
	claim, ok := o.(*karpv1.NodeClaim)
	if !ok || claim.Spec.NodeClassRef == nil || claim.Spec.NodeClassRef.Group != v1alpha1.Group || !lacksBootDataHash(claim) {
		return nil
	}
	class := &v1alpha1.ProxmoxNodeClass{}
	name := types.NamespacedName{Name: claim.Spec.NodeClassRef.Name}
	if err := c.kube.Get(ctx, name, class); err != nil || !class.Spec.MetadataOptions.ReplacesOnChange() {
		return nil
	}
	return []reconcile.Request{{NamespacedName: name}}
}
