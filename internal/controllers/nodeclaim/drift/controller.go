// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Package drift tells why a drifted Node stays: core starts the replacement before
// it lets a Node go, and a full Proxmox has no room for both. Core itself would only
// say that the pods cannot be scheduled elsewhere.
package drift

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/awslabs/operatorpkg/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/events"
	nodeutils "sigs.k8s.io/karpenter/pkg/utils/node"
	"sigs.k8s.io/karpenter/pkg/utils/resources"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
)

const (
	// headStart is what core gets before anything is said: it looks for drifted Nodes
	// every ten seconds, and those that can go are gone by then.
	headStart = time.Minute
	// pause between two looks at a Claim.
	pause = time.Minute
	// reminder is how often the same is said about the same Claim.
	reminder = 15 * time.Minute
)

// Controller explains drift that waits.
type Controller struct {
	kube      client.Client
	instances *instance.Provider
	recorder  events.Recorder
}

// NewController makes the Controller.
func NewController(kube client.Client, instances *instance.Provider, recorder events.Recorder) *Controller {
	return &Controller{kube: kube, instances: instances, recorder: recorder}
}

// drifted tells whether a Claim of ours is to be replaced and is still there. It reads
// conditions only: the object is the cache's own.
func drifted(o client.Object) bool {
	claim, ok := o.(*karpv1.NodeClaim)
	return ok && claim.DeletionTimestamp.IsZero() && claim.Spec.NodeClassRef != nil && claim.Spec.NodeClassRef.Group == v1alpha1.Group &&
		claim.StatusConditions(status.WithObservedOnly()).Get(karpv1.ConditionTypeDrifted).IsTrue()
}

// Register the Controller.
func (c *Controller) Register(_ context.Context, m manager.Manager) error {
	return ctrl.NewControllerManagedBy(m).
		Named("nodeclaim.drift.proxmox").
		For(&karpv1.NodeClaim{}, builder.WithPredicates(predicate.NewPredicateFuncs(drifted))).
		Complete(reconcile.AsReconciler(m.GetClient(), c))
}

// Reconcile says why a drifted Node stays, for as long as there is no room for its
// replacement.
func (c *Controller) Reconcile(ctx context.Context, claim *karpv1.NodeClaim) (reconcile.Result, error) {
	if !drifted(claim) {
		return reconcile.Result{}, nil
	}
	since := c.instances.Clock.Since(claim.StatusConditions().Get(karpv1.ConditionTypeDrifted).LastTransitionTime.Time)
	if since < headStart {
		return reconcile.Result{RequeueAfter: headStart - since}, nil
	}
	pool, class := &karpv1.NodePool{}, &v1alpha1.ProxmoxNodeClass{}
	if err := c.kube.Get(ctx, types.NamespacedName{Name: claim.Labels[karpv1.NodePoolLabelKey]}, pool); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	if err := c.kube.Get(ctx, types.NamespacedName{Name: pool.Spec.Template.Spec.NodeClassRef.Name}, class); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	replacement, needed, err := c.replacement(ctx, claim, pool)
	if err != nil {
		return reconcile.Result{}, err
	}
	if !needed {
		return reconcile.Result{RequeueAfter: pause}, nil
	}
	err = c.instances.CheckCapacity(replacement, class)
	if noRoom, ok := errors.AsType[*instance.InsufficientCapacityError](err); ok {
		c.recorder.Publish(waits(claim, pool, noRoom)...)
	} else if err != nil {
		return reconcile.Result{}, fmt.Errorf("looking for room for the replacement of nodeclaim %s, %w", claim.Name, err)
	}
	return reconcile.Result{RequeueAfter: pause}, nil
}

// replacement is what core would have to launch for the pods of a Node; without such
// pods it lets the Node go without one.
func (c *Controller) replacement(ctx context.Context, claim *karpv1.NodeClaim, pool *karpv1.NodePool) (out *karpv1.NodeClaim, needed bool, err error) {
	pods, err := nodeutils.ReschedulablePods(ctx, c.kube, claim.Status.NodeName)
	if err != nil || len(pods) == 0 {
		return nil, false, err
	}
	requests := resources.RequestsForPods(pods...)
	out = &karpv1.NodeClaim{}
	out.Name, out.Labels = claim.Name, map[string]string{karpv1.NodePoolLabelKey: pool.Name}
	out.Spec.Requirements = pool.Spec.Template.Spec.Requirements
	// What only some types have, devices or what an overlay adds, is for core to judge.
	out.Spec.Resources.Requests = corev1.ResourceList{
		corev1.ResourceCPU: requests[corev1.ResourceCPU], corev1.ResourceMemory: requests[corev1.ResourceMemory], corev1.ResourcePods: requests[corev1.ResourcePods],
	}
	return out, true, nil
}

// waits tells it on the Claim, and once for all of them on the pool.
func waits(claim *karpv1.NodeClaim, pool *karpv1.NodePool, why error) []events.Event {
	const reason = "DriftWaitingForCapacity"
	return []events.Event{
		{
			InvolvedObject: claim, Type: corev1.EventTypeWarning, Reason: reason,
			Message:      "Drifted, and replaced as soon as there is room for a VM that carries its pods: " + why.Error(),
			DedupeValues: []string{string(claim.UID)}, DedupeTimeout: reminder,
		},
		{
			InvolvedObject: pool, Type: corev1.EventTypeWarning, Reason: reason,
			Message:      fmt.Sprintf("Drifted nodes are replaced as soon as there is room for a VM that carries their pods; nodeclaim %s: %s", claim.Name, why),
			DedupeValues: []string{string(pool.UID)}, DedupeTimeout: reminder,
		},
	}
}
