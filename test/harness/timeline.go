// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/fleet"
)

// Milestone is a step on the way from a NodeClaim to a running pod.
type Milestone struct {
	Name string
	// After is the time since the NodeClaim was created.
	After time.Duration
}

// Timeline is the milestones of one Node in order.
type Timeline []Milestone

// ReadTimeline returns when the steps of a NodeClaim's launch happened, as far as they
// happened. The times of Kubernetes objects are whole seconds.
func ReadTimeline(ctx context.Context, kube client.Client, claim *karpv1.NodeClaim) (Timeline, error) {
	var line Timeline
	created := claim.CreationTimestamp.Time
	add := func(name string, at time.Time) {
		if !at.IsZero() {
			line = append(line, Milestone{name, max(at.Sub(created), 0)})
		}
	}
	history := &corev1.EventList{}
	if err := kube.List(ctx, history, client.MatchingFields{"involvedObject.uid": string(claim.UID), "reason": v1alpha1.EventVMLaunched}); err != nil {
		return nil, fmt.Errorf("listing events: %w", err)
	}
	add("VM powered on", fleet.LaunchTimes(history.Items)[claim.UID])
	requests := &certificatesv1.CertificateSigningRequestList{}
	if err := kube.List(ctx, requests); err != nil {
		return nil, fmt.Errorf("listing certificate requests: %w", err)
	}
	for _, request := range requests.Items {
		if name, err := requestedNode(request); err == nil && name == claim.Name && strings.HasPrefix(request.Spec.Username, bootstrapUser) {
			add("kubelet requested its certificate", request.CreationTimestamp.Time)
		}
	}
	node := &corev1.Node{}
	if err := kube.Get(ctx, client.ObjectKey{Name: claim.Name}, node); client.IgnoreNotFound(err) != nil {
		return nil, fmt.Errorf("reading node: %w", err)
	}
	add("Node registered", node.CreationTimestamp.Time)
	for _, condition := range node.Status.Conditions {
		if condition.Type == corev1.NodeReady && condition.Status == corev1.ConditionTrue {
			add("Node Ready", condition.LastTransitionTime.Time)
		}
	}
	if condition := claim.StatusConditions().Get(karpv1.ConditionTypeInitialized); condition.IsTrue() {
		add("NodeClaim initialized", condition.LastTransitionTime.Time)
	}
	slices.SortStableFunc(line, func(a, b Milestone) int { return cmp.Compare(a.After, b.After) })
	return line, nil
}

// String returns one line per milestone.
func (t Timeline) String() string {
	var out strings.Builder
	for _, m := range t {
		fmt.Fprintf(&out, "%8.1fs  %s\n", m.After.Seconds(), m.Name)
	}
	return strings.TrimSuffix(out.String(), "\n")
}
