// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Package termination keeps a deleted NodeClass until no NodeClaim uses it. Without its
// NodeClass a Node could neither drift nor be reconciled.
package termination

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/events"
	nodeclaimutils "sigs.k8s.io/karpenter/pkg/utils/nodeclaim"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/watch"
)

// eventInterval is how often the event about remaining NodeClaims is repeated.
const eventInterval = 10 * time.Minute

// Controller maintains the finalizer of NodeClasses.
type Controller struct {
	kube     client.Client
	recorder events.Recorder
}

// NewController returns a Controller.
func NewController(kube client.Client, recorder events.Recorder) *Controller {
	return &Controller{kube: kube, recorder: recorder}
}

// Register registers the Controller with a manager.
func (c *Controller) Register(_ context.Context, m manager.Manager) error {
	return ctrl.NewControllerManagedBy(m).
		Named("nodeclass.termination.proxmox").
		For(&v1alpha1.ProxmoxNodeClass{}).
		Watches(&karpv1.NodeClaim{}, handler.EnqueueRequestsFromMapFunc(requestsForClass), builder.WithPredicates(watch.Deletions())).
		Complete(reconcile.AsReconciler(m.GetClient(), c))
}

// requestsForClass requests a reconcile of the NodeClass of a NodeClaim, since the
// deletion waits for the last NodeClaim.
func requestsForClass(_ context.Context, o client.Object) []reconcile.Request {
	claim, ok := o.(*karpv1.NodeClaim)
	if !ok || claim.Spec.NodeClassRef == nil || claim.Spec.NodeClassRef.Kind != v1alpha1.ProxmoxNodeClassKind {
		return nil
	}
	return []reconcile.Request{{NamespacedName: types.NamespacedName{Name: claim.Spec.NodeClassRef.Name}}}
}

// Reconcile adds the finalizer, and removes it after deletion once no NodeClaim uses the
// class.
func (c *Controller) Reconcile(ctx context.Context, class *v1alpha1.ProxmoxNodeClass) (reconcile.Result, error) {
	stored := class.DeepCopy()
	if class.DeletionTimestamp.IsZero() {
		if !controllerutil.AddFinalizer(class, v1alpha1.TerminationFinalizer) {
			return reconcile.Result{}, nil
		}
		return c.patch(ctx, class, stored)
	}
	if !controllerutil.ContainsFinalizer(class, v1alpha1.TerminationFinalizer) {
		return reconcile.Result{}, nil
	}
	claims := &karpv1.NodeClaimList{}
	if err := c.kube.List(ctx, claims, nodeclaimutils.ForNodeClass(class), client.UnsafeDisableDeepCopy); err != nil {
		return reconcile.Result{}, fmt.Errorf("listing NodeClaims of NodeClass %s: %w", class.Name, err)
	}
	if len(claims.Items) > 0 {
		c.recorder.Publish(inUseEvent(class, claims.Items))
		return reconcile.Result{RequeueAfter: eventInterval}, nil
	}
	controllerutil.RemoveFinalizer(class, v1alpha1.TerminationFinalizer)
	return c.patch(ctx, class, stored)
}

// patch uses an optimistic lock, because it replaces the whole list of finalizers.
func (c *Controller) patch(ctx context.Context, class, stored *v1alpha1.ProxmoxNodeClass) (reconcile.Result, error) {
	err := c.kube.Patch(ctx, class, client.MergeFromWithOptions(stored, client.MergeFromWithOptimisticLock{}))
	if apierrors.IsConflict(err) {
		// Another controller wrote first: retry with the new object.
		return reconcile.Result{RequeueAfter: time.Second}, nil
	}
	return reconcile.Result{}, client.IgnoreNotFound(err)
}

func inUseEvent(class *v1alpha1.ProxmoxNodeClass, claims []karpv1.NodeClaim) events.Event {
	return events.Event{
		InvolvedObject: class,
		Type:           corev1.EventTypeNormal,
		Reason:         v1alpha1.EventWaitingOnNodeClaimTermination,
		Message:        fmt.Sprintf("NodeClass is in use by NodeClaims (%d), for example %s; it is deleted when they are gone", len(claims), claims[0].Name),
		DedupeValues:   []string{string(class.UID)},
		DedupeTimeout:  eventInterval,
	}
}
