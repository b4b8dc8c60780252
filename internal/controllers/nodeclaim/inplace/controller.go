// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Package inplace applies changes of a NodeClass to running VMs that need no
// replacement: tags, security groups, resource pool, HA.
package inplace

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/events"
	nodeclaimutils "sigs.k8s.io/karpenter/pkg/utils/nodeclaim"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
)

const (
	// busyRetryInterval is the delay after another operation on the Claim.
	busyRetryInterval = time.Second
	// unknownRetryInterval is the delay while the configuration of the VM was not read.
	unknownRetryInterval = 10 * time.Second
)

// Controller updates VMs in place.
type Controller struct {
	kube     client.Client
	updater  *instance.Updater
	recorder events.Recorder
}

// NewController returns a Controller.
func NewController(kube client.Client, updater *instance.Updater, recorder events.Recorder) *Controller {
	return &Controller{kube: kube, updater: updater, recorder: recorder}
}

// isUpdatable reports whether a Claim's VM was launched and is not being deleted.
func (c *Controller) isUpdatable(o client.Object) bool {
	claim, ok := o.(*karpv1.NodeClaim)
	return ok && claim.DeletionTimestamp.IsZero() && c.updater.IsLaunched(claim)
}

// Register registers the Controller.
func (c *Controller) Register(_ context.Context, m manager.Manager) error {
	return ctrl.NewControllerManagedBy(m).
		Named("nodeclaim.inplace.proxmox").
		For(&karpv1.NodeClaim{}, builder.WithPredicates(predicate.NewPredicateFuncs(c.isUpdatable))).
		Watches(&v1alpha1.ProxmoxNodeClass{}, handler.EnqueueRequestsFromMapFunc(c.classClaims), builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		WithOptions(controller.Options{MaxConcurrentReconciles: 10}).
		Complete(reconcile.AsReconciler(m.GetClient(), c))
}

func (c *Controller) classClaims(ctx context.Context, class client.Object) []reconcile.Request {
	claims := &karpv1.NodeClaimList{}
	nodeClass, ok := class.(*v1alpha1.ProxmoxNodeClass)
	if !ok || c.kube.List(ctx, claims, nodeclaimutils.ForNodeClass(nodeClass)) != nil {
		return nil
	}
	out := make([]reconcile.Request, 0, len(claims.Items))
	for _, claim := range claims.Items {
		out = append(out, reconcile.Request{NamespacedName: types.NamespacedName{Name: claim.Name}})
	}
	return out
}

// Reconcile updates the VM of a Claim if its NodeClass changed.
func (c *Controller) Reconcile(ctx context.Context, claim *karpv1.NodeClaim) (reconcile.Result, error) {
	if !c.isUpdatable(claim) {
		return reconcile.Result{}, nil
	}
	class := &v1alpha1.ProxmoxNodeClass{}
	if err := c.kube.Get(ctx, types.NamespacedName{Name: claim.Spec.NodeClassRef.Name}, class); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	switch needs, known := c.updater.NeedsUpdate(claim, class); {
	case !known:
		return reconcile.Result{RequeueAfter: unknownRetryInterval}, nil
	case !needs:
		return reconcile.Result{}, nil
	}
	err := c.updater.UpdateInPlace(ctx, claim, class)
	if errors.Is(err, instance.ErrClaimBusy) {
		return reconcile.Result{RequeueAfter: busyRetryInterval}, nil
	}
	if err != nil {
		c.recorder.Publish(updateFailedEvent(claim, err))
		return reconcile.Result{}, fmt.Errorf("updating the VM of NodeClaim %s in place: %w", claim.Name, err)
	}
	if id, err := v1alpha1.ParseProviderID(claim.Status.ProviderID); err == nil {
		log.FromContext(ctx).Info("updated VM in place", "vmid", id.VMID, "region", id.Region)
	}
	return reconcile.Result{}, nil
}

func updateFailedEvent(claim *karpv1.NodeClaim, err error) events.Event {
	return events.Event{
		InvolvedObject: claim,
		Type:           corev1.EventTypeWarning,
		Reason:         v1alpha1.EventInPlaceUpdateFailed,
		Message:        err.Error(),
		DedupeValues:   []string{string(claim.UID), err.Error()},
	}
}
