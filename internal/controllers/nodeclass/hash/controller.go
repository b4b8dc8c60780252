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
	if class.Annotations[v1alpha1.AnnotationNodeClassHashVersion] != v1alpha1.HashVersion {
		if err := c.migrateClaims(ctx, class); err != nil {
			return reconcile.Result{}, err
		}
	}
	if err := c.recordBootData(ctx, class); err != nil {
		return reconcile.Result{}, err
	}
	if err := c.recordFields(ctx, class); err != nil {
		return reconcile.Result{}, err
	}
	stored := class.DeepCopy()
	setHash(class, class.Hash())
	if annotationsEqual(stored, class) {
		return reconcile.Result{}, nil
	}
	if err := c.kube.Patch(ctx, class, client.MergeFrom(stored)); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(fmt.Errorf("writing hash: %w", err))
	}
	return reconcile.Result{}, nil
}

// migrateClaims sets the new hash on NodeClaims with another hash version. Drifted
// NodeClaims keep their old hash, so they stay drifted.
func (c *Controller) migrateClaims(ctx context.Context, class *v1alpha1.ProxmoxNodeClass) error {
	claims := &karpv1.NodeClaimList{}
	if err := c.kube.List(ctx, claims, nodeclaimutils.ForNodeClass(class)); err != nil {
		return fmt.Errorf("listing NodeClaims of NodeClass %s: %w", class.Name, err)
	}
	for i := range claims.Items {
		claim := &claims.Items[i]
		version, ok := claim.Annotations[v1alpha1.AnnotationNodeClassHashVersion]
		if !ok || version == v1alpha1.HashVersion {
			continue
		}
		stored := claim.DeepCopy()
		claim.Annotations[v1alpha1.AnnotationNodeClassHashVersion] = v1alpha1.HashVersion
		if claim.StatusConditions().Get(karpv1.ConditionTypeDrifted) == nil {
			claim.Annotations[v1alpha1.AnnotationNodeClassHash] = class.Hash()
		}
		if err := c.kube.Patch(ctx, claim, client.MergeFrom(stored)); client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("migrating hash of NodeClaim %s: %w", claim.Name, err)
		}
	}
	return nil
}

func setHash(o client.Object, hash string) {
	annotations := o.GetAnnotations()
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[v1alpha1.AnnotationNodeClassHash] = hash
	annotations[v1alpha1.AnnotationNodeClassHashVersion] = v1alpha1.HashVersion
	o.SetAnnotations(annotations)
}

func annotationsEqual(a, b client.Object) bool {
	x, y := a.GetAnnotations(), b.GetAnnotations()
	return x[v1alpha1.AnnotationNodeClassHash] == y[v1alpha1.AnnotationNodeClassHash] &&
		x[v1alpha1.AnnotationNodeClassHashVersion] == y[v1alpha1.AnnotationNodeClassHashVersion]
}
