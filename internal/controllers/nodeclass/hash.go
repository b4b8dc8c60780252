// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package hash

import (
	"context"
	"strings"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
)

// recordBootData sets the hash of the boot data on a launched NodeClaim without one. It was
// launched before the class replaced Nodes on a change, or by another release. If the class
// does not replace Nodes any more, it removes the hash, so enabling it later does not
// replace all Nodes for past changes.
func recordBootData(class *v1alpha1.ProxmoxNodeClass, claim *karpv1.NodeClaim, annotations map[string]string) {
	switch {
	case !class.Spec.MetadataOptions.ReplacesOnChange():
		delete(annotations, v1alpha1.AnnotationBootDataHash)
	case class.Status.BootDataHash == "": // not evaluated yet
	case lacksBootDataHash(claim):
		annotations[v1alpha1.AnnotationBootDataHash] = class.Status.BootDataHash
	}
}

// lacksBootDataHash reports whether a NodeClaim whose Node joined has no hash of this release. A
// launch in progress records its own.
func lacksBootDataHash(claim *karpv1.NodeClaim) bool {
	_, joined := instance.JoinedAt(claim)
	return joined && !strings.HasPrefix(claim.Annotations[v1alpha1.AnnotationBootDataHash], v1alpha1.BootDataHashPrefix)
}

// classOf returns the class of a NodeClaim whose hash must be recorded.
func (c *Controller) classOf(ctx context.Context, o client.Object) []reconcile.Request {
	claim, ok := o.(*karpv1.NodeClaim)
	if !ok || !instance.IsOurs(o) || !lacksBootDataHash(claim) {
		return nil
	}
	class := &v1alpha1.ProxmoxNodeClass{}
	name := types.NamespacedName{Name: claim.Spec.NodeClassRef.Name}
	if err := c.kube.Get(ctx, name, class); err != nil || !class.Spec.MetadataOptions.ReplacesOnChange() {
		return nil
	}
	return []reconcile.Request{{NamespacedName: name}}
}
