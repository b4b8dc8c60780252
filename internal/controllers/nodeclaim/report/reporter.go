// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package report

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
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
