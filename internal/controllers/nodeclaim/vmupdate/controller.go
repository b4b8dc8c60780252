// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Package vmupdate changes the VMs of Claims after their launch. It applies changes of a NodeClass
// that need no replacement: tags, security groups, resource pool, HA. It deletes what a guest
// needed to join: when its Node is initialized, the boot drive is detached and deleted, and the
// join token is revoked. And it adopts VMs that another controller launched.
package vmupdate

import (
	"context"
	"errors"
	"fmt"

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
	"sigs.k8s.io/karpenter/pkg/utils/result"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/watch"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/event"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance/deletion"
)

// Controller changes VMs of Claims.
type Controller struct {
	kube     client.Client
	updater  *instance.Updater
	adopter  *instance.Adopter
	deleter  *deletion.Deleter
	recorder events.Recorder
}

// NewController returns a Controller.
func NewController(kube client.Client, updater *instance.Updater, adopter *instance.Adopter, deleter *deletion.Deleter, recorder events.Recorder) *Controller {
	return &Controller{kube: kube, updater: updater, adopter: adopter, deleter: deleter, recorder: recorder}
}

// isUpdatable reports whether a Claim's VM was launched and is not being deleted.
func (c *Controller) isUpdatable(claim *karpv1.NodeClaim) bool {
	return claim.DeletionTimestamp.IsZero() && c.updater.IsLaunched(claim)
}

// Register registers the Controller.
func (c *Controller) Register(_ context.Context, m manager.Manager) error {
	relevant := predicate.NewPredicateFuncs(func(o client.Object) bool {
		claim, ok := o.(*karpv1.NodeClaim)
		return ok && (isLaunchedByOther(claim) || hasJoined(claim) || c.isUpdatable(claim))
	})
	return ctrl.NewControllerManagedBy(m).
		Named("nodeclaim.vmupdate.proxmox").
		For(&karpv1.NodeClaim{}, builder.WithPredicates(relevant)).
		Watches(&v1alpha1.ProxmoxNodeClass{}, handler.EnqueueRequestsFromMapFunc(c.classClaims), builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		WithOptions(controller.Options{MaxConcurrentReconciles: 50}).
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

// Reconcile adopts the VM of one Claim, or updates it and cleans up what its guest joined with.
func (c *Controller) Reconcile(ctx context.Context, claim *karpv1.NodeClaim) (reconcile.Result, error) {
	if isLaunchedByOther(claim) {
		return c.adopt(ctx, claim)
	}
	updated, updateErr := c.update(ctx, claim)
	cleanedUp, cleanupErr := c.cleanUp(ctx, claim)
	if err := errors.Join(updateErr, cleanupErr); err != nil {
		return reconcile.Result{}, err
	}
	return reconcile.Result{RequeueAfter: result.Min(updated, cleanedUp).RequeueAfter}, nil
}

// update updates the VM of a Claim if its NodeClass changed.
func (c *Controller) update(ctx context.Context, claim *karpv1.NodeClaim) (reconcile.Result, error) {
	if !c.isUpdatable(claim) {
		return reconcile.Result{}, nil
	}
	class := &v1alpha1.ProxmoxNodeClass{}
	if err := c.kube.Get(ctx, types.NamespacedName{Name: claim.Spec.NodeClassRef.Name}, class); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	switch needs, known := c.updater.NeedsUpdate(claim, class); {
	case !known:
		return reconcile.Result{RequeueAfter: watch.Again}, nil
	case !needs:
		return reconcile.Result{}, nil
	}
	err := c.updater.UpdateInPlace(ctx, claim, class)
	if errors.Is(err, instance.ErrClaimBusy) {
		return reconcile.Result{RequeueAfter: watch.Soon}, nil
	}
	if err != nil {
		c.recorder.Publish(event.Warning(claim, v1alpha1.EventInPlaceUpdateFailed, err.Error(), err.Error()))
		return reconcile.Result{}, fmt.Errorf("updating the VM of NodeClaim %s in place: %w", claim.Name, err)
	}
	logVM(ctx, claim, "updated VM in place")
	return reconcile.Result{}, nil
}

// logVM logs what was done with the VM of a Claim.
func logVM(ctx context.Context, claim *karpv1.NodeClaim, message string) {
	if id, err := v1alpha1.ParseProviderID(claim.Status.ProviderID); err == nil {
		log.FromContext(ctx).Info(message, "vmid", id.VMID, "region", id.Region)
	}
}
