// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Package termination keeps a NodeClass as long as Claims use it: torn away, it
// would leave Nodes that can neither drift nor be understood.
package termination

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/events"
	nodeclaimutils "sigs.k8s.io/karpenter/pkg/utils/nodeclaim"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
)

// reminder is how often a NodeClass that waits for its Claims says so.
const reminder = 10 * time.Minute

// Controller guards NodeClasses.
type Controller struct {
	kube     client.Client
	recorder events.Recorder
}

// NewController makes the Controller.
func NewController(kube client.Client, recorder events.Recorder) *Controller {
	return &Controller{kube: kube, recorder: recorder}
}

// Register the Controller.
func (c *Controller) Register(_ context.Context, m manager.Manager) error {
	return ctrl.NewControllerManagedBy(m).
		Named("nodeclass.termination.proxmox").
		For(&v1alpha1.ProxmoxNodeClass{}).
		Watches(&karpv1.NodeClaim{}, handler.EnqueueRequestsFromMapFunc(classOf)).
		Complete(reconcile.AsReconciler(m.GetClient(), c))
}

// classOf lets a class follow its Claims: the last one's end is what it waits for.
func classOf(_ context.Context, o client.Object) []reconcile.Request {
	claim, ok := o.(*karpv1.NodeClaim)
	if !ok || claim.Spec.NodeClassRef == nil || claim.Spec.NodeClassRef.Kind != v1alpha1.ProxmoxNodeClassKind {
		return nil
	}
	return []reconcile.Request{{NamespacedName: types.NamespacedName{Name: claim.Spec.NodeClassRef.Name}}}
}

// Reconcile sets the finalizer, and takes it off once nothing uses the class.
func (c *Controller) Reconcile(ctx context.Context, class *v1alpha1.ProxmoxNodeClass) (reconcile.Result, error) {
	stored := class.DeepCopy()
	if class.DeletionTimestamp.IsZero() {
		if !controllerutil.AddFinalizer(class, v1alpha1.TerminationFinalizer) {
			return reconcile.Result{}, nil
		}
		return reconcile.Result{}, c.patch(ctx, class, stored)
	}
	if !controllerutil.ContainsFinalizer(class, v1alpha1.TerminationFinalizer) {
		return reconcile.Result{}, nil
	}
	claims := &karpv1.NodeClaimList{}
	if err := c.kube.List(ctx, claims, nodeclaimutils.ForNodeClass(class)); err != nil {
		return reconcile.Result{}, fmt.Errorf("listing nodeclaims of nodeclass %s, %w", class.Name, err)
	}
	if len(claims.Items) > 0 {
		c.recorder.Publish(inUse(class, claims.Items))
		return reconcile.Result{RequeueAfter: reminder}, nil
	}
	controllerutil.RemoveFinalizer(class, v1alpha1.TerminationFinalizer)
	return reconcile.Result{}, c.patch(ctx, class, stored)
}

// patch with an optimistic lock: the list of finalizers is written whole.
func (c *Controller) patch(ctx context.Context, class, stored *v1alpha1.ProxmoxNodeClass) error {
	err := c.kube.Patch(ctx, class, client.MergeFromWithOptions(stored, client.MergeFromWithOptimisticLock{}))
	return client.IgnoreNotFound(err)
}

func inUse(class *v1alpha1.ProxmoxNodeClass, claims []karpv1.NodeClaim) events.Event {
	return events.Event{
		InvolvedObject: class,
		Type:           corev1.EventTypeNormal,
		Reason:         "WaitingOnNodeClaimTermination",
		Message:        fmt.Sprintf("%d nodeclaims still use this class, for example %s; it goes when they are gone", len(claims), claims[0].Name),
		DedupeValues:   []string{string(class.UID)},
		DedupeTimeout:  reminder,
	}
}
