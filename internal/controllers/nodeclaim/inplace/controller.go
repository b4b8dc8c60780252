// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Package inplace writes changes of a NodeClass to running VMs that need no
// replacement: tags, security groups, resource pool.
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

// busyPause is how soon a Claim is tried again that somebody else has.
const busyPause = time.Second

// Controller updates VMs in place.
type Controller struct {
	kube      client.Client
	instances *instance.Provider
	recorder  events.Recorder
}

// NewController makes the Controller.
func NewController(kube client.Client, instances *instance.Provider, recorder events.Recorder) *Controller {
	return &Controller{kube: kube, instances: instances, recorder: recorder}
}

// settled tells whether a Claim's VM can be changed: launched, and not going.
func settled(o client.Object) bool {
	return o.GetAnnotations()[v1alpha1.AnnotationLaunchCompleted] != "" && o.GetDeletionTimestamp().IsZero()
}

// Register the Controller.
func (c *Controller) Register(_ context.Context, m manager.Manager) error {
	return ctrl.NewControllerManagedBy(m).
		Named("nodeclaim.inplace.proxmox").
		For(&karpv1.NodeClaim{}, builder.WithPredicates(predicate.NewPredicateFuncs(settled))).
		Watches(&v1alpha1.ProxmoxNodeClass{}, handler.EnqueueRequestsFromMapFunc(c.claimsOf), builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		WithOptions(controller.Options{MaxConcurrentReconciles: 10}).
		Complete(reconcile.AsReconciler(m.GetClient(), c))
}

func (c *Controller) claimsOf(ctx context.Context, class client.Object) []reconcile.Request {
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

// Reconcile brings one VM up to its NodeClass.
func (c *Controller) Reconcile(ctx context.Context, claim *karpv1.NodeClaim) (reconcile.Result, error) {
	if !settled(claim) {
		return reconcile.Result{}, nil
	}
	class := &v1alpha1.ProxmoxNodeClass{}
	if err := c.kube.Get(ctx, types.NamespacedName{Name: claim.Spec.NodeClassRef.Name}, class); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	if have, ok := claim.Annotations[v1alpha1.AnnotationInPlaceUpdateHash]; !ok || have == class.InPlaceHash() {
		return reconcile.Result{}, nil
	}
	err := c.instances.UpdateInPlace(ctx, claim, class)
	if errors.Is(err, instance.ErrClaimBusy) {
		return reconcile.Result{RequeueAfter: busyPause}, nil
	}
	if err != nil {
		c.recorder.Publish(failed(claim, err))
		return reconcile.Result{}, fmt.Errorf("updating the VM of nodeclaim %s in place, %w", claim.Name, err)
	}
	log.FromContext(ctx).Info("updated a VM in place", "provider-id", claim.Status.ProviderID)
	return reconcile.Result{}, nil
}

func failed(claim *karpv1.NodeClaim, err error) events.Event {
	return events.Event{
		InvolvedObject: claim,
		Type:           corev1.EventTypeWarning,
		Reason:         "InPlaceUpdateFailed",
		Message:        err.Error(),
		DedupeValues:   []string{string(claim.UID), err.Error()},
	}
}
