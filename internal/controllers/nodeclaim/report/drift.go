// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package report

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
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/cloudprovider"
	nodeutils "sigs.k8s.io/karpenter/pkg/utils/node"
	"sigs.k8s.io/karpenter/pkg/utils/resources"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/watch"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/event"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
)

const (
	// replacementDelay is the time for core to replace the Node: it reconciles drifted Nodes
	// every ten seconds.
	replacementDelay = time.Minute
)

// reportDrift reports which fields of a NodeClass or NodePool made a Node drift, and their old and
// new value: core itself reports only a reason. It also reports why a drifted Node is not replaced:
// core starts the replacement before it deletes a Node, and without capacity for both it waits.
func (c *Controller) reportDrift(ctx context.Context, claim *karpv1.NodeClaim) (reconcile.Result, error) {
	// The object may belong to the cache, and must not get conditions that it does not have.
	drifted := claim.StatusConditions(status.WithObservedOnly()).Get(karpv1.ConditionTypeDrifted)
	if !drifted.IsTrue() {
		c.deps.Launches.Report(string(claim.UID), subjectDrift, "")
		return reconcile.Result{}, nil
	}
	pool, class := &karpv1.NodePool{}, &v1alpha1.ProxmoxNodeClass{}
	if err := c.deps.Kube.Get(ctx, types.NamespacedName{Name: claim.Labels[karpv1.NodePoolLabelKey]}, pool); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	c.reportDriftReason(ctx, claim, pool, cloudprovider.DriftReason(drifted.Reason))
	if since := c.deps.Clock.Since(drifted.LastTransitionTime.Time); since < replacementDelay {
		return reconcile.Result{RequeueAfter: replacementDelay - since}, nil
	}
	if err := c.deps.Kube.Get(ctx, types.NamespacedName{Name: pool.Spec.Template.Spec.NodeClassRef.Name}, class); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	replacement, needed, err := c.replacement(ctx, claim, pool)
	if err == nil && needed {
		err = c.deps.Planner.CheckCapacity(replacement, class)
	}
	if insufficient, ok := errors.AsType[*instance.InsufficientCapacityError](err); ok {
		const reason = v1alpha1.EventDriftWaitingForCapacity
		c.deps.Recorder.Publish(
			event.Lasting(event.Warning(claim, reason, "Node is drifted; its replacement waits for capacity: "+insufficient.Error())),
			// One event for all Claims of the NodePool.
			event.Lasting(event.Warning(pool, reason, fmt.Sprintf("Nodes are drifted; their replacements wait for capacity; NodeClaim %s: %s", claim.Name, insufficient))),
		)
	} else if err != nil {
		return reconcile.Result{}, fmt.Errorf("checking the capacity for the replacement of NodeClaim %s: %w", claim.Name, err)
	}
	return reconcile.Result{RequeueAfter: watch.Again}, nil
}

// reportDriftReason reports what drifted, once per change.
func (c *Controller) reportDriftReason(ctx context.Context, claim *karpv1.NodeClaim, pool *karpv1.NodePool, reason cloudprovider.DriftReason) {
	message := "Node is drifted (" + string(reason) + ")"
	detail := cmp.Or(describe(claim, pool, reason), c.deps.DescribeDrift(ctx, claim, reason))
	switch {
	case detail != "":
		message += ": " + detail
	case strings.HasPrefix(c.deps.Launches.Reported(string(claim.UID), subjectDrift), message):
		return // unknown for now, for example while its Cluster is not available
	}
	if _, changed := c.deps.Launches.Report(string(claim.UID), subjectDrift, message); changed {
		c.reporter.Publish(ctx, claim, corev1.EventTypeNormal, v1alpha1.EventDriftDetected, message+"; Karpenter replaces it within the disruption budgets of its NodePool")
	}
}

// replacement returns the Claim that core would launch for the pods of a Node; false if
// the Node has no such pods and needs no replacement.
func (c *Controller) replacement(ctx context.Context, claim *karpv1.NodeClaim, pool *karpv1.NodePool) (out *karpv1.NodeClaim, needed bool, err error) {
	pods, err := nodeutils.ReschedulablePods(ctx, c.deps.Kube, claim.Status.NodeName)
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
