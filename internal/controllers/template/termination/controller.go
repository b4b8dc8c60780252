// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Package termination keeps templates of both kinds as long as Claims use them, and a
// ProxmoxTemplate until all that was made for it in Proxmox is gone.
package termination

import (
	"context"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/events"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/template/build"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/template"
)

const (
	// reminder is how often a template that waits for its Claims says so.
	reminder = 10 * time.Minute
	// recheck is how often the removal of Templates is looked at.
	recheck = 5 * time.Second
)

// Controller guards the templates of one kind.
type Controller[T client.Object] struct {
	kube     client.Client
	recorder events.Recorder
	kind     T
	name     string
	// cleared tells what is still to be removed, nil where nothing was made.
	cleared func(ctx context.Context, t T, world build.Observed) ([]string, error)
}

// NewManaged guards ProxmoxTemplates.
func NewManaged(kube client.Client, templates *template.Provider, recorder events.Recorder) *Controller[*v1alpha1.ProxmoxTemplate] {
	return &Controller[*v1alpha1.ProxmoxTemplate]{
		kube: kube, recorder: recorder, kind: &v1alpha1.ProxmoxTemplate{}, name: v1alpha1.ProxmoxTemplateKind,
		cleared: func(ctx context.Context, t *v1alpha1.ProxmoxTemplate, world build.Observed) ([]string, error) {
			wish := template.NewDesired(t, world.Classes)
			templates.CancelSuperseded(wish)
			remains := templates.Remaining(wish)
			if len(remains) > 0 {
				return remains, nil
			}
			remains, err := templates.Cleanup(ctx, wish, world.Usage(t))
			if err == nil && len(remains) == 0 {
				templates.Evict(wish.UID)
			}
			return remains, err
		},
	}
}

// NewUnmanaged guards ProxmoxUnmanagedTemplates.
func NewUnmanaged(kube client.Client, recorder events.Recorder) *Controller[*v1alpha1.ProxmoxUnmanagedTemplate] {
	return &Controller[*v1alpha1.ProxmoxUnmanagedTemplate]{
		kube: kube, recorder: recorder, kind: &v1alpha1.ProxmoxUnmanagedTemplate{}, name: v1alpha1.ProxmoxUnmanagedTemplateKind,
		cleared: func(context.Context, *v1alpha1.ProxmoxUnmanagedTemplate, build.Observed) ([]string, error) {
			return nil, nil
		},
	}
}

// Register the Controller.
func (c *Controller[T]) Register(_ context.Context, m manager.Manager) error {
	return ctrl.NewControllerManagedBy(m).
		Named(strings.ToLower(strings.TrimPrefix(c.name, "Proxmox"))+".termination.proxmox").
		For(c.kind).
		Watches(&karpv1.NodeClaim{}, handler.EnqueueRequestsFromMapFunc(c.templateOf)).
		Complete(reconcile.AsReconciler(m.GetClient(), c))
}

// templateOf lets a template follow the Claims of its classes: the last one's end is
// what it waits for.
func (c *Controller[T]) templateOf(ctx context.Context, o client.Object) []reconcile.Request {
	claim, ok := o.(*karpv1.NodeClaim)
	if !ok || claim.Spec.NodeClassRef == nil || claim.Spec.NodeClassRef.Kind != v1alpha1.ProxmoxNodeClassKind {
		return nil
	}
	class := &v1alpha1.ProxmoxNodeClass{}
	if err := c.kube.Get(ctx, types.NamespacedName{Name: claim.Spec.NodeClassRef.Name}, class); err != nil || class.Spec.InstanceTemplateRef.Kind != c.name {
		return nil
	}
	return []reconcile.Request{{NamespacedName: types.NamespacedName{Name: class.Spec.InstanceTemplateRef.Name}}}
}

// Reconcile sets the finalizer, and takes it off once nothing uses the template and
// nothing is left of it.
func (c *Controller[T]) Reconcile(ctx context.Context, t T) (reconcile.Result, error) {
	stored, _ := t.DeepCopyObject().(client.Object)
	if t.GetDeletionTimestamp().IsZero() {
		if !controllerutil.AddFinalizer(t, v1alpha1.TerminationFinalizer) {
			return reconcile.Result{}, nil
		}
		return c.patch(ctx, t, stored)
	}
	if !controllerutil.ContainsFinalizer(t, v1alpha1.TerminationFinalizer) {
		return reconcile.Result{}, nil
	}
	world, err := build.Observe(ctx, c.kube)
	if err != nil {
		return reconcile.Result{}, err
	}
	if users := world.ClaimsUsing(c.name, t.GetName()); len(users) > 0 {
		c.recorder.Publish(waiting(t, "WaitingOnNodeClaimTermination",
			fmt.Sprintf("%d nodeclaims still use this template, for example %s; it goes when they are gone", len(users), users[0])))
		return reconcile.Result{RequeueAfter: reminder}, nil
	}
	remains, err := c.cleared(ctx, t, world)
	if err != nil {
		return reconcile.Result{}, err
	}
	if len(remains) > 0 {
		c.recorder.Publish(waiting(t, "WaitingOnTemplateDeletion", "still to be removed: "+strings.Join(remains, "; ")))
		return reconcile.Result{RequeueAfter: recheck}, nil
	}
	controllerutil.RemoveFinalizer(t, v1alpha1.TerminationFinalizer)
	return c.patch(ctx, t, stored)
}

// patch with an optimistic lock: the list of finalizers is written whole.
func (c *Controller[T]) patch(ctx context.Context, t T, stored client.Object) (reconcile.Result, error) {
	err := c.kube.Patch(ctx, t, client.MergeFromWithOptions(stored, client.MergeFromWithOptimisticLock{}))
	if apierrors.IsConflict(err) {
		// Another controller wrote first; the object is looked at again.
		return reconcile.Result{RequeueAfter: time.Second}, nil
	}
	return reconcile.Result{}, client.IgnoreNotFound(err)
}

func waiting(t client.Object, reason, message string) events.Event {
	return events.Event{
		InvolvedObject: t,
		Type:           corev1.EventTypeNormal,
		Reason:         reason,
		Message:        message,
		DedupeValues:   []string{string(t.GetUID()), message},
		DedupeTimeout:  reminder,
	}
}
