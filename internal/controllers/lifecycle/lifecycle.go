// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Package lifecycle reconciles objects of the kinds of this provider: it sets their status, and
// keeps a deleted object until no Claim uses it and nothing that was created for it remains.
package lifecycle

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/awslabs/operatorpkg/status"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/karpenter/pkg/events"
	"sigs.k8s.io/karpenter/pkg/utils/result"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/watch"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/event"
)

const (
	// cleanupInterval is how often a deletion is continued.
	cleanupInterval = 5 * time.Second
)

// Reconciler reconciles the objects of one kind.
type Reconciler[T status.Object] struct {
	Kube     client.Client
	Recorder events.Recorder
	// Kind is the name of the kind in events.
	Kind string
	// Users returns the names of the Claims that use an object.
	Users func(context.Context, T) ([]string, error)
	// Cleanup deletes what was created for a deleted object, and returns what remains; nil if
	// nothing is created.
	Cleanup func(context.Context, T) (remaining []string, err error)
	// Annotate sets the annotations of an object; nil if there are none.
	Annotate func(context.Context, T) error
	// SetStatus sets the status of an object, and returns when it is to be set again; 0 for
	// after a change.
	SetStatus func(context.Context, T) (time.Duration, error)
}

// Reconcile writes the finalizer, the annotations and the status of an object. It removes the
// finalizer of a deleted object that is not used any more.
func (r Reconciler[T]) Reconcile(ctx context.Context, object T) (reconcile.Result, error) {
	stored, _ := object.DeepCopyObject().(client.Object)
	waiting, err := r.reconcileMetadata(ctx, object)
	if err != nil {
		return reconcile.Result{}, err
	}
	if !equality.Semantic.DeepEqual(stored, client.Object(object)) {
		// The patch replaces the whole list of finalizers, hence the optimistic lock.
		if retry, err := written(r.Kube.Patch(ctx, object, client.MergeFromWithOptions(stored, client.MergeFromWithOptimisticLock{}))); err != nil || !retry.IsZero() {
			return retry, err
		}
	}
	if !controllerutil.ContainsFinalizer(object, v1alpha1.TerminationFinalizer) {
		return reconcile.Result{}, nil
	}
	stored, _ = object.DeepCopyObject().(client.Object)
	after, err := r.SetStatus(ctx, object)
	if err != nil {
		return reconcile.Result{}, err
	}
	if !equality.Semantic.DeepEqual(stored, client.Object(object)) {
		// It replaces the whole list of conditions.
		if retry, err := written(r.Kube.Status().Patch(ctx, object, client.MergeFromWithOptions(stored, client.MergeFromWithOptimisticLock{}))); err != nil || !retry.IsZero() {
			return retry, err
		}
	}
	return reconcile.Result{RequeueAfter: result.Min(reconcile.Result{RequeueAfter: waiting}, reconcile.Result{RequeueAfter: after}).RequeueAfter}, nil
}

// written returns the result of a patch. After a conflict, the next reconcile has the new object.
func written(err error) (reconcile.Result, error) {
	if apierrors.IsConflict(err) {
		return reconcile.Result{RequeueAfter: watch.Soon}, nil
	}
	return reconcile.Result{}, client.IgnoreNotFound(err)
}

// reconcileMetadata sets finalizer and annotations. It returns when to continue a deletion.
func (r Reconciler[T]) reconcileMetadata(ctx context.Context, object T) (time.Duration, error) {
	if object.GetDeletionTimestamp().IsZero() {
		controllerutil.AddFinalizer(object, v1alpha1.TerminationFinalizer)
		if r.Annotate == nil {
			return 0, nil
		}
		return 0, r.Annotate(ctx, object)
	}
	if !controllerutil.ContainsFinalizer(object, v1alpha1.TerminationFinalizer) {
		return 0, nil
	}
	users, err := r.Users(ctx, object)
	if err != nil {
		return 0, err
	}
	if len(users) > 0 {
		message := fmt.Sprintf("%s is in use by NodeClaims (%d), for example %s; it is deleted when they are gone", r.Kind, len(users), users[0])
		r.Recorder.Publish(event.Lasting(event.Normal(object, v1alpha1.EventWaitingOnNodeClaimTermination, message, message)))
		return event.Interval, nil
	}
	var remaining []string
	if r.Cleanup != nil {
		remaining, err = r.Cleanup(ctx, object)
	}
	if err != nil && ctx.Err() == nil {
		message := "deleting templates and images failed and is retried: " + strings.ReplaceAll(err.Error(), "\n", "; ")
		r.Recorder.Publish(event.Lasting(event.Warning(object, v1alpha1.EventWaitingOnTemplateDeletion, message, message)))
	}
	if err != nil {
		return 0, err
	}
	if len(remaining) > 0 {
		message := "waiting for templates to be deleted: " + strings.Join(remaining, "; ")
		r.Recorder.Publish(event.Lasting(event.Normal(object, v1alpha1.EventWaitingOnTemplateDeletion, message, message)))
		return cleanupInterval, nil
	}
	controllerutil.RemoveFinalizer(object, v1alpha1.TerminationFinalizer)
	return 0, nil
}
