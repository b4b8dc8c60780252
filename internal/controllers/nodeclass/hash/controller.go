// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Package hash writes the drift hash of NodeClasses to an annotation, and migrates the
// hashes of NodeClaims to a new hash version without drifting them. It also records the
// hash of the boot data on NodeClaims that were launched before the class replaced Nodes
// when its boot data changes.
package hash

import (
	"context"
	"fmt"
	"maps"

	"github.com/awslabs/operatorpkg/status"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	nodeclaimutils "sigs.k8s.io/karpenter/pkg/utils/nodeclaim"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
)

// Controller maintains hashes.
type Controller struct{ kube client.Client }

// NewController returns a Controller.
func NewController(kube client.Client) *Controller { return &Controller{kube: kube} }

// Register registers the Controller with a manager.
func (c *Controller) Register(_ context.Context, m manager.Manager) error {
	return ctrl.NewControllerManagedBy(m).
		Named("nodeclass.hash.proxmox").
		For(&v1alpha1.ProxmoxNodeClass{}).
		Watches(&karpv1.NodeClaim{}, handler.EnqueueRequestsFromMapFunc(c.classOf)).
		Complete(reconcile.AsReconciler(m.GetClient(), c))
}

// Reconcile writes the hash of one NodeClass.
func (c *Controller) Reconcile(ctx context.Context, class *v1alpha1.ProxmoxNodeClass) (reconcile.Result, error) {
	if err := c.updateClaims(ctx, class); err != nil {
		return reconcile.Result{}, err
	}
	stored := class.DeepCopy()
	metav1.SetMetaDataAnnotation(&class.ObjectMeta, v1alpha1.AnnotationNodeClassHash, class.Hash())
	metav1.SetMetaDataAnnotation(&class.ObjectMeta, v1alpha1.AnnotationNodeClassHashVersion, v1alpha1.HashVersion)
	if maps.Equal(stored.Annotations, class.Annotations) {
		return reconcile.Result{}, nil
	}
	if err := c.kube.Patch(ctx, class, client.MergeFrom(stored)); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(fmt.Errorf("writing hash: %w", err))
	}
	return reconcile.Result{}, nil
}

// updateClaims updates what NodeClaims record about their class.
func (c *Controller) updateClaims(ctx context.Context, class *v1alpha1.ProxmoxNodeClass) error {
	claims := &karpv1.NodeClaimList{}
	if err := c.kube.List(ctx, claims, nodeclaimutils.ForNodeClass(class), client.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("listing NodeClaims of NodeClass %s: %w", class.Name, err)
	}
	hash := class.Hash()
	for i := range claims.Items {
		stored := &claims.Items[i]
		annotations := maps.Clone(stored.Annotations)
		migrate(class, hash, stored, annotations)
		recordBootData(class, stored, annotations)
		if maps.Equal(annotations, stored.Annotations) {
			continue
		}
		claim := stored.DeepCopy()
		claim.Annotations = annotations
		if err := c.kube.Patch(ctx, claim, client.MergeFrom(stored)); client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("updating the annotations of NodeClaim %s: %w", claim.Name, err)
		}
	}
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
