// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/events"
	nodeutils "sigs.k8s.io/karpenter/pkg/utils/node"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/fleet"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
)

// claim explains a NodeClaim, also one that was deleted.
func (e *explain) claim(ctx context.Context, key client.ObjectKey) error {
	claim := &karpv1.NodeClaim{}
	err := e.kube.Get(ctx, client.ObjectKey{Name: key.Name}, claim)
	if apierrors.IsNotFound(err) {
		return e.deleted(ctx, "NodeClaim", key.Name)
	}
	if err != nil {
		return fmt.Errorf("reading NodeClaim %s: %w", key.Name, err)
	}
	state, history, err := e.describeClaim(ctx, claim)
	e.Verdict = fmt.Sprintf("nodeclaim %s %s", claim.Name, state)
	if err != nil {
		return err
	}
	node, err := e.nodeOf(ctx, claim)
	e.Launch = newLaunchTimeline(claim, node, history, e.now)
	return err
}

// nodeOf returns the Node of a claim, also before Karpenter has registered it: the UID of
// the claim is the hardware UUID of its VM. It returns nil if there is none, or if the user
// may not list Nodes.
func (e *explain) nodeOf(ctx context.Context, claim *karpv1.NodeClaim) (*corev1.Node, error) {
	nodes := &corev1.NodeList{}
	if err := e.kube.List(ctx, nodes); err != nil && !apierrors.IsForbidden(err) {
		return nil, fmt.Errorf("listing Nodes: %w", err)
	}
	for i := range nodes.Items {
		node := &nodes.Items[i]
		if node.Spec.ProviderID != "" && node.Spec.ProviderID == claim.Status.ProviderID || strings.EqualFold(node.Status.NodeInfo.SystemUUID, string(claim.UID)) {
			return node, nil
		}
	}
	return nil, nil
}

// describeClaim adds a NodeClaim and returns its state and events.
func (e *explain) describeClaim(ctx context.Context, claim *karpv1.NodeClaim) (state string, history []corev1.Event, err error) {
	object := "nodeclaim " + claim.Name
	if intent, ok := instance.ReadIntent(claim); ok {
		object += fmt.Sprintf(", VM %d, launched on host %s of region %s", intent.VMID, intent.Host, intent.Region)
	}
	if history, err = e.eventsOf(ctx, claim); err != nil {
		return "", nil, err
	}
	e.add(object, append(untrueConditions(claim.StatusConditions().List()), eventLines(history)...)...)
	if !claim.DeletionTimestamp.IsZero() {
		state = "is being deleted since " + claim.DeletionTimestamp.UTC().Format("15:04:05 MST")
		if cause, ok := deletionCause(history); ok {
			state += ": " + cause.Message
		}
		return state, history, nil
	}
	for _, name := range []string{karpv1.ConditionTypeLaunched, karpv1.ConditionTypeRegistered, karpv1.ConditionTypeInitialized} {
		if condition := claim.StatusConditions().Get(name); !condition.IsTrue() {
			return "is not ready: " + conditionText(*condition), history, nil
		}
	}
	return "is ready, with node " + claim.Status.NodeName, history, nil
}

// node explains a Node by its NodeClaim, also one that was deleted.
func (e *explain) node(ctx context.Context, key client.ObjectKey) error {
	node := &corev1.Node{}
	err := e.kube.Get(ctx, client.ObjectKey{Name: key.Name}, node)
	if apierrors.IsNotFound(err) {
		return e.deleted(ctx, "Node", key.Name)
	}
	if err != nil {
		return fmt.Errorf("reading Node %s: %w", key.Name, err)
	}
	var details []string
	if ready := nodeutils.GetCondition(node, corev1.NodeReady); ready.Status != corev1.ConditionTrue {
		details = append(details, fmt.Sprintf("%s is %s: %s", corev1.NodeReady,
			cmp.Or(ready.Status, corev1.ConditionUnknown), cmp.Or(ready.Message, "the kubelet has not reported its status")))
	}
	e.add("node "+node.Name, details...)
	claims := &karpv1.NodeClaimList{}
	if err := e.kube.List(ctx, claims); err != nil {
		return fmt.Errorf("listing NodeClaims: %w", err)
	}
	n := slices.IndexFunc(claims.Items, func(c karpv1.NodeClaim) bool {
		return c.Status.ProviderID != "" && c.Status.ProviderID == node.Spec.ProviderID
	})
	if n < 0 {
		e.Verdict = fmt.Sprintf("node %s has no NodeClaim: no NodeClaim has its provider ID %q", node.Name, node.Spec.ProviderID)
		return nil
	}
	state, history, err := e.describeClaim(ctx, &claims.Items[n])
	e.Verdict = fmt.Sprintf("node %s belongs to nodeclaim %s, which %s", node.Name, claims.Items[n].Name, state)
	e.Launch = newLaunchTimeline(&claims.Items[n], node, history, e.now)
	return err
}

// deleted explains by its events why an object was deleted, and what replaced it.
func (e *explain) deleted(ctx context.Context, kind, name string) error {
	history, err := e.events(ctx, client.MatchingFields{"involvedObject.kind": kind, "involvedObject.name": name})
	if err != nil {
		return err
	}
	if len(history) == 0 {
		return fmt.Errorf("%s %s does not exist, and no event of it is stored (Kubernetes deletes events after an hour by default)", kind, name)
	}
	object := strings.ToLower(kind) + " " + name
	e.add(object, eventLines(history)...)
	cause, ok := deletionCause(history)
	if !ok {
		e.Verdict = object + " was deleted; no event contains the reason: a user or another controller deleted it, or it expired"
		return nil
	}
	e.Verdict = fmt.Sprintf("%s was deleted: %s", object, cause.Message)
	if cause.Reason != events.DisruptionTerminating {
		return nil
	}
	replacement, err := e.replacement(ctx, cause)
	if replacement != "" {
		e.Verdict += "; it was replaced by nodeclaim " + replacement
	}
	return err
}

// deletionCause returns the event with the reason of a deletion: that of a disruption, or
// else the last warning.
func deletionCause(history []corev1.Event) (corev1.Event, bool) {
	for _, matches := range []func(corev1.Event) bool{
		func(event corev1.Event) bool { return event.Reason == events.DisruptionTerminating },
		func(event corev1.Event) bool { return event.Type == corev1.EventTypeWarning },
	} {
		for _, event := range slices.Backward(history) {
			if matches(event) {
				return event, true
			}
		}
	}
	return corev1.Event{}, false
}

// replacement returns the NodeClaim that Karpenter launched last for the same reason
// before it deleted the old one; empty if it launched none.
func (e *explain) replacement(ctx context.Context, terminating corev1.Event) (string, error) {
	launching, err := e.events(ctx, client.MatchingFields{"reason": events.DisruptionLaunching})
	if err != nil {
		return "", err
	}
	_, reason, _ := strings.Cut(terminating.Message, ": ")
	for _, event := range slices.Backward(launching) {
		if strings.HasSuffix(event.Message, ": "+reason) && !event.FirstTimestamp.After(fleet.EventTime(terminating)) {
			return event.InvolvedObject.Name, nil
		}
	}
	return "", nil
}
