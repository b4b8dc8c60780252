// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package vmupdate

import (
	"context"
	"errors"
	"fmt"

	"github.com/awslabs/operatorpkg/status"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/watch"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/event"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance/deletion"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// hasJoined reports whether a Claim's guest has joined, and this controller made its boot data. It must
// not change the object, which belongs to the cache.
func hasJoined(claim *karpv1.NodeClaim) bool {
	return claim.DeletionTimestamp.IsZero() && claim.Annotations[v1alpha1.AnnotationLaunchedBy] == v1alpha1.LaunchedByVersion &&
		claim.StatusConditions(status.WithObservedOnly()).Get(karpv1.ConditionTypeInitialized).IsTrue()
}

// cleanUp deletes the boot drive and join token of a Claim.
func (c *Controller) cleanUp(ctx context.Context, claim *karpv1.NodeClaim) (reconcile.Result, error) {
	if !hasJoined(claim) {
		return reconcile.Result{}, nil
	}
	err := c.deleter.CleanupBootDrive(ctx, claim)
	switch {
	case errors.Is(err, instance.ErrClaimBusy):
		return reconcile.Result{RequeueAfter: watch.Soon}, nil
	case errors.Is(err, instance.ErrNotPolled):
		return reconcile.Result{RequeueAfter: watch.Again}, nil
	case errors.Is(err, proxmox.ErrHostUnreachable), errors.Is(err, proxmox.ErrUnreachable), errors.Is(err, proxmox.ErrNoTime):
		// The inventory reports the Host.
		return reconcile.Result{RequeueAfter: watch.Again}, nil
	case err != nil:
		c.reportCleanup(claim, err)
		return reconcile.Result{}, fmt.Errorf("deleting the boot drive of NodeClaim %s: %w", claim.Name, err)
	}
	return reconcile.Result{}, nil
}

// reportCleanup emits an event if the boot drive cannot be deleted without a change by a user. If the
// VM does not exist, it was migrated, or the Claim is replaced.
func (c *Controller) reportCleanup(claim *karpv1.NodeClaim, err error) {
	failure, ok := errors.AsType[*deletion.BootDriveError](err)
	if !ok || proxmox.IsTransient(failure) || errors.Is(failure, proxmox.ErrNotFound) {
		return
	}
	// The message may contain the ID of a task, which is another one after each retry.
	c.recorder.Publish(event.Lasting(event.Warning(claim, v1alpha1.EventBootDriveNotDeleted, failure.Error())))
}
