// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Package driftevents emits events that explain why a Node is drifted: the field with its
// old and new value. Core itself reports only a reason. It also reports why a drifted Node
// is not replaced: core starts the replacement before it deletes a Node, and without
// capacity for both it waits.
package driftevents

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/awslabs/operatorpkg/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/cloudprovider"
	"sigs.k8s.io/karpenter/pkg/events"
	nodeutils "sigs.k8s.io/karpenter/pkg/utils/node"
	"sigs.k8s.io/karpenter/pkg/utils/resources"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/report"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance/plan"
)

const (
	// reportDelay is the time for core to replace the Node: it reconciles drifted Nodes
	// every ten seconds.
	reportDelay = time.Minute
	// checkInterval is how often a Claim is checked.
	checkInterval = time.Minute
	// eventInterval is how often the same event is repeated.
	eventInterval = 15 * time.Minute
)

// subject of what is reported about a Claim.
const subject = "drift"

// Describe describes what differs for a reason of the cloud provider.
type Describe func(context.Context, *karpv1.NodeClaim, cloudprovider.DriftReason) string

// Controller reports drifted Nodes, and those that wait for capacity.
type Controller struct {
	kube     client.Client
	planner  *plan.Planner
	launches *instance.LaunchTracker
	recorder events.Recorder
	clock    clock.PassiveClock
	describe Describe
}

// NewController returns a Controller.
func NewController(kube client.Client, planner *plan.Planner, launches *instance.LaunchTracker, recorder events.Recorder, c clock.PassiveClock, d Describe) *Controller {
	return &Controller{kube: kube, planner: planner, launches: launches, recorder: recorder, clock: c, describe: d}
}

// isDrifted reports whether a Claim is drifted. It must not change the object, which belongs to the
// cache.
func isDrifted(claim *karpv1.NodeClaim) bool {
	return claim.StatusConditions(status.WithObservedOnly()).Get(karpv1.ConditionTypeDrifted).IsTrue()
}

// Register registers the Controller.
func (c *Controller) Register(_ context.Context, m manager.Manager) error {
	return ctrl.NewControllerManagedBy(m).
		Named("nodeclaim.driftevents.proxmox").
		For(&karpv1.NodeClaim{}, builder.WithPredicates(predicate.NewPredicateFuncs(instance.IsOurs))).
		Complete(reconcile.AsReconciler(m.GetClient(), c))
}

// Reconcile reports why a Node is drifted, and why it is not replaced while there is no
// capacity for its replacement.
func (c *Controller) Reconcile(ctx context.Context, claim *karpv1.NodeClaim) (reconcile.Result, error) {
	if !instance.IsOurs(claim) || claim.Status.ProviderID == "" || !claim.DeletionTimestamp.IsZero() {
		return reconcile.Result{}, nil
	}
	if !isDrifted(claim) {
		c.launches.Report(string(claim.UID), subject, "")
		return reconcile.Result{}, nil
	}
	pool, class := &karpv1.NodePool{}, &v1alpha1.ProxmoxNodeClass{}
	if err := c.kube.Get(ctx, types.NamespacedName{Name: claim.Labels[karpv1.NodePoolLabelKey]}, pool); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	c.reportDrift(ctx, claim, pool)
	since := c.clock.Since(claim.StatusConditions().Get(karpv1.ConditionTypeDrifted).LastTransitionTime.Time)
	if since < reportDelay {
		return reconcile.Result{RequeueAfter: reportDelay - since}, nil
	}
	if err := c.kube.Get(ctx, types.NamespacedName{Name: pool.Spec.Template.Spec.NodeClassRef.Name}, class); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	replacement, needed, err := c.replacement(ctx, claim, pool)
	if err != nil {
		return reconcile.Result{}, err
	}
	if !needed {
		return reconcile.Result{RequeueAfter: checkInterval}, nil
	}
	err = c.planner.CheckCapacity(replacement, class)
	if insufficient, ok := errors.AsType[*instance.InsufficientCapacityError](err); ok {
		c.recorder.Publish(waitingForCapacityEvents(claim, pool, insufficient)...)
	} else if err != nil {
		return reconcile.Result{}, fmt.Errorf("checking the capacity for the replacement of NodeClaim %s: %w", claim.Name, err)
	}
	return reconcile.Result{RequeueAfter: checkInterval}, nil
}

// reportDrift reports what drifted, once per change.
func (c *Controller) reportDrift(ctx context.Context, claim *karpv1.NodeClaim, pool *karpv1.NodePool) {
	reason := cloudprovider.DriftReason(claim.StatusConditions().Get(karpv1.ConditionTypeDrifted).Reason)
	message := "Node is drifted (" + string(reason) + ")"
	detail := cmp.Or(describe(claim, pool, reason), c.describe(ctx, claim, reason))
	switch {
	case detail != "":
		message += ": " + detail
	case strings.HasPrefix(c.launches.Reported(string(claim.UID), subject), message):
		return // unknown for now, for example while its Cluster is not available
	}
	if _, changed := c.launches.Report(string(claim.UID), subject, message); changed {
		report.Reporter{Kube: c.kube, Recorder: c.recorder}.Publish(ctx, claim, corev1.EventTypeNormal, v1alpha1.EventDriftDetected, message+"; Karpenter replaces it within the disruption budgets of its NodePool")
	}
}

// replacement returns the Claim that core would launch for the pods of a Node; false if
// the Node has no such pods and needs no replacement.
func (c *Controller) replacement(ctx context.Context, claim *karpv1.NodeClaim, pool *karpv1.NodePool) (out *karpv1.NodeClaim, needed bool, err error) {
	pods, err := nodeutils.ReschedulablePods(ctx, c.kube, claim.Status.NodeName)
	if err != nil || len(pods) == 0 {
		return nil, false, err
	}
	requests := resources.RequestsForPods(pods...)
	out = &karpv1.NodeClaim{}
	out.Name, out.Labels = claim.Name, map[string]string{karpv1.NodePoolLabelKey: pool.Name}
	out.Spec.Requirements = pool.Spec.Template.Spec.Requirements
	// Resources that only some types have, such as devices, are left to core.
	out.Spec.Resources.Requests = corev1.ResourceList{
		corev1.ResourceCPU: requests[corev1.ResourceCPU], corev1.ResourceMemory: requests[corev1.ResourceMemory], corev1.ResourcePods: requests[corev1.ResourcePods],
	}
	return out, true, nil
}

// waitingForCapacityEvents returns an event on the Claim, and one on the NodePool for all its
// Claims.
func waitingForCapacityEvents(claim *karpv1.NodeClaim, pool *karpv1.NodePool, cause error) []events.Event {
	const reason = v1alpha1.EventDriftWaitingForCapacity
	return []events.Event{
		{
			InvolvedObject: claim, Type: corev1.EventTypeWarning, Reason: reason,
			Message:      "Node is drifted; its replacement waits for capacity: " + cause.Error(),
			DedupeValues: []string{string(claim.UID)}, DedupeTimeout: eventInterval,
		},
		{
			InvolvedObject: pool, Type: corev1.EventTypeWarning, Reason: reason,
			Message:      fmt.Sprintf("Nodes are drifted; their replacements wait for capacity; NodeClaim %s: %s", claim.Name, cause),
			DedupeValues: []string{string(pool.UID)}, DedupeTimeout: eventInterval,
		},
	}
}
