// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package vmupdate

import (
	"context"
	"errors"
	"fmt"

	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/watch"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/event"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
)

// isLaunchedByOther reports whether another controller launched a Claim of our
// NodeClasses. Claims that are being deleted are included: only an adopted VM is deleted
// with its Claim.
func isLaunchedByOther(claim *karpv1.NodeClaim) bool {
	return instance.IsOurs(claim) && instance.LaunchedByOther(claim)
}

// adopt adopts the VM of a Claim if an administrator added the ownership mark to its notes, and
// reports how to do that otherwise. A VM without the mark is not changed, and its Claim is kept.
func (c *Controller) adopt(ctx context.Context, claim *karpv1.NodeClaim) (reconcile.Result, error) {
	adopted, err := c.adopter.Adopt(ctx, claim)
	blocked, isBlocked := errors.AsType[*instance.BlockedError](err)
	switch {
	case errors.Is(err, instance.ErrClaimBusy):
		return reconcile.Result{RequeueAfter: watch.Soon}, nil
	case isBlocked:
		log.FromContext(ctx).V(1).Info("VM is not adopted", "reason", blocked.Reason, "message", blocked.Message)
		c.recorder.Publish(event.Lasting(event.Warning(claim, blocked.Reason, blocked.Message, blocked.Message)))
		return reconcile.Result{RequeueAfter: watch.Again}, nil
	case err != nil:
		return reconcile.Result{}, fmt.Errorf("adopting the VM of NodeClaim %s: %w", claim.Name, err)
	case !adopted:
		return reconcile.Result{RequeueAfter: watch.Again}, nil
	}
	logVM(ctx, claim, "adopted VM of another controller")
	c.recorder.Publish(event.Normal(claim, v1alpha1.EventVMAdopted, claim.Status.ProviderID+" has the ownership mark and is deleted with its NodeClaim"))
	return reconcile.Result{}, nil
}
