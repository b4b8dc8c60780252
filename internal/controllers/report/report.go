// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Package report emits events on Claims and their Nodes, once per change. What was reported
// is recorded in an annotation of the Claim, so a restart of the controller repeats nothing.
package report

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
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
// whether the state is new, which the caller then publishes. It returns an error, which Result
// handles, if the Claim is older than the stored one: the state may have been recorded already.
func (r Reporter) Record(ctx context.Context, claim *karpv1.NodeClaim, annotation, state string) (changed bool, err error) {
	if claim.Annotations[annotation] == state {
		return false, nil
	}
	before, recorded := claim.Annotations[annotation]
	stored := claim.DeepCopy()
	if state == "" {
		delete(claim.Annotations, annotation)
	} else {
		metav1.SetMetaDataAnnotation(&claim.ObjectMeta, annotation, state)
	}
	patch := client.MergeFromWithOptions(stored, client.MergeFromWithOptimisticLock{})
	if recorded {
		// Another change of the Claim is not a conflict.
		if patch, err = replaceAnnotation(claim, annotation, before, state); err != nil {
			return false, err
		}
	}
	if err := r.Kube.Patch(ctx, claim, patch); err != nil {
		return false, fmt.Errorf("writing annotation %s of NodeClaim %s: %w", annotation, claim.Name, err)
	}
	return true, nil
}

// replaceAnnotation returns a patch that changes an annotation of the Claim from one value to another;
// an empty one removes it. The API server refuses it as invalid if the annotation has another value.
func replaceAnnotation(claim *karpv1.NodeClaim, annotation, before, after string) (client.Patch, error) {
	path := "/metadata/annotations/" + strings.ReplaceAll(annotation, "/", "~1")
	change := map[string]any{"op": "replace", "path": path, "value": after}
	if after == "" {
		change = map[string]any{"op": "remove", "path": path}
	}
	content, err := json.Marshal([]map[string]any{
		{"op": "test", "path": "/metadata/uid", "value": claim.UID},
		{"op": "test", "path": path, "value": before},
		change,
	})
	if err != nil {
		return nil, fmt.Errorf("encoding the change of annotation %s: %w", annotation, err)
	}
	return client.RawPatch(types.JSONPatchType, content), nil
}

// Result returns the result of a reconcile after Record: a Claim that changed since it was
// read is reconciled again, and one that does not exist any more is ignored.
func Result(err error) (reconcile.Result, error) {
	if apierrors.IsConflict(err) || apierrors.IsInvalid(err) {
		return reconcile.Result{RequeueAfter: time.Second}, nil
	}
	return reconcile.Result{}, client.IgnoreNotFound(err)
}
