// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Package adoption takes over VMs that another controller made, on an admin's explicit
// word, and says of the others how that is done. It never guesses: a VM that nobody
// hands over is left alone, and its Claim is kept.
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
	// pause between two looks at a Claim that nobody hands over, or whose VM does not fit.
	pause = time.Minute
	// reminder is how often the same is said about the same Claim.
	reminder = 15 * time.Minute
)

// Controller adopts.
type Controller struct {
	instances *instance.Provider
	recorder  events.Recorder
}

// NewController makes the Controller.
func NewController(instances *instance.Provider, recorder events.Recorder) *Controller {
	return &Controller{instances: instances, recorder: recorder}
}

// elsewhere tells whether another controller launched a Claim of ours. Claims that are
// going count: only an adopted VM goes with its Claim.
func elsewhere(o client.Object) bool {
	claim, ok := o.(*karpv1.NodeClaim)
	return ok && claim.Spec.NodeClassRef != nil && claim.Spec.NodeClassRef.Group == v1alpha1.Group && instance.LaunchedByOther(claim)
}

// Register the Controller.
func (c *Controller) Register(_ context.Context, m manager.Manager) error {
	return ctrl.NewControllerManagedBy(m).
		Named("nodeclaim.adoption.proxmox").
		For(&karpv1.NodeClaim{}, builder.WithPredicates(predicate.NewPredicateFuncs(elsewhere))).
		Complete(reconcile.AsReconciler(m.GetClient(), c))
}

// Reconcile adopts the VM of one Claim, if that was asked for.
func (c *Controller) Reconcile(ctx context.Context, claim *karpv1.NodeClaim) (reconcile.Result, error) {
	if !elsewhere(claim) {
		return reconcile.Result{}, nil
	}
	if claim.Annotations[v1alpha1.AnnotationAdopt] == "" {
		if todo := c.instances.UnadoptedMessage(claim); todo != "" {
			c.recorder.Publish(event(claim, corev1.EventTypeWarning, instance.BlockedNotAdopted, todo))
		}
		return reconcile.Result{RequeueAfter: pause}, nil
	}
	err := c.instances.Adopt(ctx, claim)
	_, refused := errors.AsType[*instance.AdoptionError](err)
	switch {
	case errors.Is(err, instance.ErrClaimBusy):
		return reconcile.Result{RequeueAfter: time.Second}, nil
	case refused:
		log.FromContext(ctx).Error(err, "leaving a VM alone that was to be adopted")
		c.recorder.Publish(event(claim, corev1.EventTypeWarning, "AdoptionRefused", err.Error()))
		return reconcile.Result{RequeueAfter: pause}, nil
	case err != nil:
		return reconcile.Result{}, fmt.Errorf("adopting the VM of nodeclaim %s, %w", claim.Name, err)
	}
	log.FromContext(ctx).Info("adopted a VM that another controller made", "provider-id", claim.Status.ProviderID)
	c.recorder.Publish(event(claim, corev1.EventTypeNormal, "VMAdopted",
		fmt.Sprintf("%s carries our ownership mark now, and is removed with its claim", claim.Status.ProviderID)))
	return reconcile.Result{}, nil
}

func event(claim *karpv1.NodeClaim, kind, reason, message string) events.Event {
	return events.Event{
		InvolvedObject: claim, Type: kind, Reason: reason, Message: message,
		DedupeValues: []string{string(claim.UID), reason, message}, DedupeTimeout: reminder,
	}
}
