// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Package report emits events on Claims and their Nodes, once per change. What was reported
// is recorded in an annotation of the Claim, so a restart of the controller repeats nothing.
package report

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/events"
)

// Reporter emits events on Claims and their Nodes.
type Reporter struct {
	Kube     client.Client
	Recorder events.Recorder
}

// Publish emits an event on a Claim and, once it has one, its Node.
func (r Reporter) Publish(ctx context.Context, claim *karpv1.NodeClaim, kind, reason, message string) {
	event := events.Event{InvolvedObject: claim, Type: kind, Reason: reason, Message: message, DedupeValues: []string{string(claim.UID), message}}
	r.Recorder.Publish(event)
	node := &corev1.Node{}
	if claim.Status.NodeName == "" || r.Kube.Get(ctx, client.ObjectKey{Name: claim.Status.NodeName}, node) != nil {
		return
	}
	event.InvolvedObject, event.DedupeValues = node, []string{string(node.UID), message}
	r.Recorder.Publish(event)
}

// Record writes a state to an annotation of a Claim; an empty state removes it. It returns
// whether the state is new, which the caller then publishes. It returns a conflict if the
// Claim is older than the stored one: the state may have been recorded already.
func (r Reporter) Record(ctx context.Context, claim *karpv1.NodeClaim, annotation, state string) (changed bool, err error) {
	if claim.Annotations[annotation] == state {
		return false, nil
	}
	stored := claim.DeepCopy()
	if state == "" {
		delete(claim.Annotations, annotation)
	} else {
		metav1.SetMetaDataAnnotation(&claim.ObjectMeta, annotation, state)
	}
	if err := r.Kube.Patch(ctx, claim, client.MergeFromWithOptions(stored, client.MergeFromWithOptimisticLock{})); err != nil {
		return false, fmt.Errorf("writing annotation %s of NodeClaim %s: %w", annotation, claim.Name, err)
	}
	return true, nil
}

// Result returns the result of a reconcile after Record: a Claim that changed since it was
// read is reconciled again, and one that does not exist any more is ignored.
func Result(err error) (reconcile.Result, error) {
	if apierrors.IsConflict(err) {
		return reconcile.Result{RequeueAfter: time.Second}, nil
	}
	return reconcile.Result{}, client.IgnoreNotFound(err)
}
