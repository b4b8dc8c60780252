// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Package termination keeps ProxmoxTemplates and ProxmoxUnmanagedTemplates while Claims
// use them, and a ProxmoxTemplate until its Templates and images are deleted.
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
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/events"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/template/build"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/watch"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/template"
)

const (
	// eventInterval is how often the event for a waiting template is repeated.
	eventInterval = 10 * time.Minute
	// recheckInterval is how often the deletion of Templates is checked.
	recheckInterval = 5 * time.Second
)

// Controller manages the finalizers of one kind.
type Controller[T client.Object] struct {
	kube     client.Client
	recorder events.Recorder
	kind     T
	name     string
	// cleanup deletes what was created for a template and returns what remains.
	cleanup func(ctx context.Context, t T, observed build.Observed) ([]string, error)
}

// NewManaged returns a Controller for ProxmoxTemplates.
func NewManaged(kube client.Client, templates *template.Provider, recorder events.Recorder) *Controller[*v1alpha1.ProxmoxTemplate] {
	return &Controller[*v1alpha1.ProxmoxTemplate]{
		kube: kube, recorder: recorder, kind: &v1alpha1.ProxmoxTemplate{}, name: v1alpha1.ProxmoxTemplateKind,
		cleanup: func(ctx context.Context, t *v1alpha1.ProxmoxTemplate, observed build.Observed) ([]string, error) {
			desired := template.NewDesired(t, observed.Classes)
			templates.CancelSuperseded(desired)
			remaining := templates.Remaining(desired)
			if len(remaining) > 0 {
				return remaining, nil
			}
			remaining, err := templates.Cleanup(ctx, desired, build.ListUsage(kube, templates, t))
			if err == nil && len(remaining) == 0 {
				templates.Evict(desired.UID)
			}
			return remaining, err
		},
	}
}

// NewUnmanaged returns a Controller for ProxmoxUnmanagedTemplates.
func NewUnmanaged(kube client.Client, recorder events.Recorder) *Controller[*v1alpha1.ProxmoxUnmanagedTemplate] {
	return &Controller[*v1alpha1.ProxmoxUnmanagedTemplate]{
		kube: kube, recorder: recorder, kind: &v1alpha1.ProxmoxUnmanagedTemplate{}, name: v1alpha1.ProxmoxUnmanagedTemplateKind,
		cleanup: func(context.Context, *v1alpha1.ProxmoxUnmanagedTemplate, build.Observed) ([]string, error) {
			return nil, nil
		},
	}
}

// Register adds the Controller to the manager.
func (c *Controller[T]) Register(_ context.Context, m manager.Manager) error {
	return ctrl.NewControllerManagedBy(m).
		Named(strings.ToLower(strings.TrimPrefix(c.name, "Proxmox"))+".termination.proxmox").
		For(c.kind).
		Watches(&karpv1.NodeClaim{}, handler.EnqueueRequestsFromMapFunc(c.templateOf), builder.WithPredicates(watch.Deletions())).
		Complete(reconcile.AsReconciler(m.GetClient(), c))
}

// templateOf maps a Claim to the template of its class, which waits for its last Claim.
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

// Reconcile adds the finalizer. It removes the finalizer of a deleted template when no
// Claim uses the template and nothing that was created for it remains.
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
	observed, err := build.Observe(ctx, c.kube)
	if err != nil {
		return reconcile.Result{}, err
	}
	if users := observed.ClaimsUsing(c.name, t.GetName()); len(users) > 0 {
		c.recorder.Publish(waitingEvent(t, v1alpha1.EventWaitingOnNodeClaimTermination,
			fmt.Sprintf("template is in use by NodeClaims (%d), for example %s; it is deleted when they are gone", len(users), users[0])))
		return reconcile.Result{RequeueAfter: eventInterval}, nil
	}
	remaining, err := c.cleanup(ctx, t, observed)
	if err != nil {
		if ctx.Err() == nil {
			failed := waitingEvent(t, v1alpha1.EventWaitingOnTemplateDeletion, "deleting templates and images failed and is retried: "+strings.ReplaceAll(err.Error(), "\n", "; "))
			failed.Type = corev1.EventTypeWarning
			c.recorder.Publish(failed)
		}
		return reconcile.Result{}, err
	}
	if len(remaining) > 0 {
		c.recorder.Publish(waitingEvent(t, v1alpha1.EventWaitingOnTemplateDeletion, "waiting for templates to be deleted: "+strings.Join(remaining, "; ")))
		return reconcile.Result{RequeueAfter: recheckInterval}, nil
	}
	controllerutil.RemoveFinalizer(t, v1alpha1.TerminationFinalizer)
	return c.patch(ctx, t, stored)
}

// patch writes the object with an optimistic lock, because the patch replaces the whole
// list of finalizers.
func (c *Controller[T]) patch(ctx context.Context, t T, stored client.Object) (reconcile.Result, error) {
	err := c.kube.Patch(ctx, t, client.MergeFromWithOptions(stored, client.MergeFromWithOptimisticLock{}))
	if apierrors.IsConflict(err) {
		// Another controller wrote first: retry with the new object.
		return reconcile.Result{RequeueAfter: time.Second}, nil
	}
	return reconcile.Result{}, client.IgnoreNotFound(err)
}

func waitingEvent(t client.Object, reason, message string) events.Event {
	return events.Event{
		InvolvedObject: t,
		Type:           corev1.EventTypeNormal,
		Reason:         reason,
		Message:        message,
		DedupeValues:   []string{string(t.GetUID()), message},
		DedupeTimeout:  eventInterval,
	}
}
