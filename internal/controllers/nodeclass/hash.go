// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package nodeclass

import (
	"context"
	"fmt"
	"maps"
	"strings"

	"github.com/awslabs/operatorpkg/status"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
)

// writeHashes sets the drift hash of a NodeClass. Before, it updates what NodeClaims record about
// their class: it migrates their hashes to a new hash version without drifting them, and records
// the hash of the boot data.
func (c *Controller) writeHashes(ctx context.Context, class *v1alpha1.ProxmoxNodeClass) error {
	claims, err := c.claims(ctx, class)
	if err != nil {
		return err
	}
	hash := class.Hash()
	for i := range claims {
		stored := &claims[i]
		annotations := maps.Clone(stored.Annotations)
		migrate(class, hash, stored, annotations)
		recordBootData(class, stored, annotations)
		if maps.Equal(annotations, stored.Annotations) {
			continue
		}
		claim := stored.DeepCopy()
		claim.Annotations = annotations
		if err := c.Kube.Patch(ctx, claim, client.MergeFrom(stored)); client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("updating the annotations of NodeClaim %s: %w", claim.Name, err)
		}
	}
	metav1.SetMetaDataAnnotation(&class.ObjectMeta, v1alpha1.AnnotationNodeClassHash, hash)
	metav1.SetMetaDataAnnotation(&class.ObjectMeta, v1alpha1.AnnotationNodeClassHashVersion, v1alpha1.HashVersion)
	return nil
}

// migrate sets the new hash on a NodeClaim with another hash version. A drifted NodeClaim
// keeps its old hash, so it stays drifted.
func migrate(class *v1alpha1.ProxmoxNodeClass, hash string, claim *karpv1.NodeClaim, annotations map[string]string) {
	version, ok := annotations[v1alpha1.AnnotationNodeClassHashVersion]
	if !ok || version == v1alpha1.HashVersion || class.Annotations[v1alpha1.AnnotationNodeClassHashVersion] == v1alpha1.HashVersion {
		return
	}
	annotations[v1alpha1.AnnotationNodeClassHashVersion] = v1alpha1.HashVersion
	// The NodeClaim belongs to the cache, and must not get conditions that it does not have.
	if claim.StatusConditions(status.WithObservedOnly()).Get(karpv1.ConditionTypeDrifted) == nil {
		annotations[v1alpha1.AnnotationNodeClassHash] = hash
	}
}

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

// classToHash returns the class of a NodeClaim whose hash must be recorded.
func (c *Controller) classToHash(ctx context.Context, o client.Object) []reconcile.Request {
	if claim, ok := o.(*karpv1.NodeClaim); !ok || !lacksBootDataHash(claim) {
		return nil
	}
	requests, class := classOf(ctx, o), &v1alpha1.ProxmoxNodeClass{}
	if len(requests) == 0 || c.Kube.Get(ctx, requests[0].NamespacedName, class) != nil || !class.Spec.MetadataOptions.ReplacesOnChange() {
		return nil
	}
	return requests
}
