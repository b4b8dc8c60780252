// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Package bootstrapcleanup takes back what a guest needed only to join: once its Node is
// initialized, the boot drive is detached and deleted and the join token revoked.
package bootstrapcleanup

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/awslabs/operatorpkg/status"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// busyPause is how soon a Claim is tried again that somebody else has.
const busyPause = 500 * time.Millisecond

// awayPause is how often a Host that is away is asked.
const awayPause = 30 * time.Second

// Controller takes boot drives back.
type Controller struct{ instances *instance.Provider }

// NewController makes the Controller.
func NewController(instances *instance.Provider) *Controller {
	return &Controller{instances: instances}
}

// due tells whether a Claim's guest has joined and its boot drive is still there. It
// reads conditions only: the object is the cache's own.
func due(o client.Object) bool {
	claim, ok := o.(*karpv1.NodeClaim)
	return ok && claim.DeletionTimestamp.IsZero() &&
		claim.Annotations[v1alpha1.AnnotationLaunchCompleted] != "" &&
		claim.Annotations[v1alpha1.AnnotationBootDataStatus] != v1alpha1.BootDataInitialized &&
		claim.StatusConditions(status.WithObservedOnly()).Get(karpv1.ConditionTypeInitialized).IsTrue()
}

// Register the Controller.
func (c *Controller) Register(_ context.Context, m manager.Manager) error {
	return ctrl.NewControllerManagedBy(m).
		Named("nodeclaim.handover.proxmox").
		For(&karpv1.NodeClaim{}, builder.WithPredicates(predicate.NewPredicateFuncs(due))).
		WithOptions(controller.Options{MaxConcurrentReconciles: 50}).
		Complete(reconcile.AsReconciler(m.GetClient(), c))
}

// Reconcile takes one Claim's boot drive and token back.
func (c *Controller) Reconcile(ctx context.Context, claim *karpv1.NodeClaim) (reconcile.Result, error) {
	if !due(claim) {
		return reconcile.Result{}, nil
	}
	err := c.instances.CleanupBootDrive(ctx, claim)
	if errors.Is(err, instance.ErrClaimBusy) {
		return reconcile.Result{RequeueAfter: busyPause}, nil
	}
	if errors.Is(err, proxmox.ErrHostUnreachable) || errors.Is(err, proxmox.ErrUnreachable) {
		// The inventory tells that the Host is away; the drive can wait for it.
		return reconcile.Result{RequeueAfter: awayPause}, nil
	}
	if err != nil {
		return reconcile.Result{}, fmt.Errorf("taking back the boot drive of nodeclaim %s, %w", claim.Name, err)
	}
	return reconcile.Result{}, nil
}
