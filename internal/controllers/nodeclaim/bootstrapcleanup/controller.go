// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Package bootstrapcleanup deletes what a guest needed only to join: once its Node is
// initialized, the boot drive is detached and deleted, and the join token is revoked.
package bootstrapcleanup

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/awslabs/operatorpkg/status"
	corev1 "k8s.io/api/core/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/events"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance/deletion"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

const (
	// busyRetryInterval is the delay after another operation on the Claim.
	busyRetryInterval = 500 * time.Millisecond
	// unreachableRetryInterval is the delay after an unreachable Host.
	unreachableRetryInterval = 30 * time.Second
	// unknownRetryInterval is the delay while the configuration of the VM was not read.
	unknownRetryInterval = 10 * time.Second
	// eventInterval is how often the event of a Claim is repeated.
	eventInterval = 15 * time.Minute
)

// Controller deletes boot drives and join tokens of joined guests.
type Controller struct {
	deleter  *deletion.Deleter
	recorder events.Recorder
}

// NewController returns a Controller.
func NewController(deleter *deletion.Deleter, recorder events.Recorder) *Controller {
	return &Controller{deleter: deleter, recorder: recorder}
}

// hasJoined reports whether a Claim's guest has joined, and this controller made its boot data. It must
// not change the object, which belongs to the cache.
func hasJoined(o client.Object) bool {
	claim, ok := o.(*karpv1.NodeClaim)
	return ok && claim.DeletionTimestamp.IsZero() && claim.Annotations[v1alpha1.AnnotationLaunchedBy] == v1alpha1.LaunchedByVersion &&
		claim.StatusConditions(status.WithObservedOnly()).Get(karpv1.ConditionTypeInitialized).IsTrue()
}

// Register registers the Controller.
func (c *Controller) Register(_ context.Context, m manager.Manager) error {
	return ctrl.NewControllerManagedBy(m).
		Named("nodeclaim.bootstrapcleanup.proxmox").
		For(&karpv1.NodeClaim{}, builder.WithPredicates(predicate.NewPredicateFuncs(hasJoined))).
		WithOptions(controller.Options{MaxConcurrentReconciles: 50}).
		Complete(reconcile.AsReconciler(m.GetClient(), c))
}

// Reconcile deletes the boot drive and join token of a Claim.
func (c *Controller) Reconcile(ctx context.Context, claim *karpv1.NodeClaim) (reconcile.Result, error) {
	if !hasJoined(claim) {
		return reconcile.Result{}, nil
	}
	err := c.deleter.CleanupBootDrive(ctx, claim)
	if errors.Is(err, instance.ErrClaimBusy) {
		return reconcile.Result{RequeueAfter: busyRetryInterval}, nil
	}
	if errors.Is(err, instance.ErrNotPolled) {
		return reconcile.Result{RequeueAfter: unknownRetryInterval}, nil
	}
	if errors.Is(err, proxmox.ErrHostUnreachable) || errors.Is(err, proxmox.ErrUnreachable) || errors.Is(err, proxmox.ErrNoTime) {
		// The inventory reports the Host.
		return reconcile.Result{RequeueAfter: unreachableRetryInterval}, nil
	}
	if err != nil {
		c.report(claim, err)
		return reconcile.Result{}, fmt.Errorf("deleting the boot drive of NodeClaim %s: %w", claim.Name, err)
	}
	return reconcile.Result{}, nil
}

// report emits an event if the boot drive cannot be deleted without a change by a user. If the VM
// does not exist, it was migrated, or the Claim is replaced.
func (c *Controller) report(claim *karpv1.NodeClaim, err error) {
	failure, ok := errors.AsType[*deletion.BootDriveError](err)
	if !ok || proxmox.IsTransient(failure) || errors.Is(failure, proxmox.ErrNotFound) {
		return
	}
	c.recorder.Publish(events.Event{
		InvolvedObject: claim, Type: corev1.EventTypeWarning, Reason: v1alpha1.EventBootDriveNotDeleted, Message: failure.Error(),
		// The message may contain the ID of a task, which is another one after each retry.
		DedupeValues: []string{string(claim.UID)}, DedupeTimeout: eventInterval,
	})
}
