// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Package adoption adopts VMs that another controller created if an administrator added our
// ownership mark to their notes, and explains how to do that for the others. A VM without the
// mark is not changed, and its Claim is kept.
package adoption

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/events"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
)

const (
	// retryInterval is how often a VM that was not adopted is read.
	retryInterval = time.Minute
	// eventInterval is how often the same event is repeated.
	eventInterval = 15 * time.Minute
)

// Controller adopts VMs.
type Controller struct {
	adopter  *instance.Adopter
	recorder events.Recorder
}

// NewController returns a Controller.
func NewController(adopter *instance.Adopter, recorder events.Recorder) *Controller {
	return &Controller{adopter: adopter, recorder: recorder}
}

// isLaunchedByOther reports whether another controller launched a Claim of our
// NodeClasses. Claims that are being deleted are included: only an adopted VM is deleted
// with its Claim.
func isLaunchedByOther(o client.Object) bool {
	claim, ok := o.(*karpv1.NodeClaim)
	return ok && instance.IsOurs(o) && instance.LaunchedByOther(claim)
}

// Register registers the Controller.
func (c *Controller) Register(_ context.Context, m manager.Manager) error {
	return ctrl.NewControllerManagedBy(m).
		Named("nodeclaim.adoption.proxmox").
		For(&karpv1.NodeClaim{}, builder.WithPredicates(predicate.NewPredicateFuncs(isLaunchedByOther))).
		Complete(reconcile.AsReconciler(m.GetClient(), c))
}

// Reconcile adopts the VM of a Claim if its notes have the ownership mark.
func (c *Controller) Reconcile(ctx context.Context, claim *karpv1.NodeClaim) (reconcile.Result, error) {
	if !isLaunchedByOther(claim) {
		return reconcile.Result{}, nil
	}
	adopted, err := c.adopter.Adopt(ctx, claim)
	blocked, isBlocked := errors.AsType[*instance.BlockedError](err)
	switch {
	case errors.Is(err, instance.ErrClaimBusy):
		return reconcile.Result{RequeueAfter: time.Second}, nil
	case isBlocked:
		log.FromContext(ctx).V(1).Info("VM is not adopted", "reason", blocked.Reason, "message", blocked.Message)
		c.recorder.Publish(newEvent(claim, corev1.EventTypeWarning, blocked.Reason, blocked.Message))
		return reconcile.Result{RequeueAfter: retryInterval}, nil
	case err != nil:
		return reconcile.Result{}, fmt.Errorf("adopting the VM of NodeClaim %s: %w", claim.Name, err)
	case !adopted:
		return reconcile.Result{RequeueAfter: retryInterval}, nil
	}
	if id, err := v1alpha1.ParseProviderID(claim.Status.ProviderID); err == nil {
		log.FromContext(ctx).Info("adopted VM of another controller", "vmid", id.VMID, "region", id.Region)
	}
	c.recorder.Publish(newEvent(claim, corev1.EventTypeNormal, v1alpha1.EventVMAdopted,
		fmt.Sprintf("%s has the ownership mark and is deleted with its NodeClaim", claim.Status.ProviderID)))
	return reconcile.Result{}, nil
}

func newEvent(claim *karpv1.NodeClaim, kind, reason, message string) events.Event {
	return events.Event{
		InvolvedObject: claim, Type: kind, Reason: reason, Message: message,
		DedupeValues: []string{string(claim.UID), reason, message}, DedupeTimeout: eventInterval,
	}
}
