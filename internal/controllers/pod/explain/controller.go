// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Package explain emits an event on a pending pod if no Host has the capacity for a
// Node. Karpenter core knows which offerings are available, but not why the others are
// not, so its own event only reports that no instance type satisfies the pod.
package explain

import (
	"context"
	"errors"
	"fmt"
	"strings"
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
	podutils "sigs.k8s.io/karpenter/pkg/utils/pod"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/watch"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/event"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance/plan"
)

const (
	// decisionDelay is the delay until core has tried to schedule a pod.
	decisionDelay = 2 * time.Second
)

// Decisions are core's scheduling decisions about pods.
type Decisions interface {
	// PodSchedulingDecisionTime returns when core first tried to schedule the pod; zero
	// before.
	PodSchedulingDecisionTime(pod types.NamespacedName) time.Time
	// PodSchedulingSuccessTime returns when core found a node for the pod; zero before.
	PodSchedulingSuccessTime(pod types.NamespacedName) time.Time
}

// Controller emits events on pending pods.
type Controller struct {
	kube      client.Client
	planner   *plan.Planner
	recorder  events.Recorder
	decisions Decisions
}

// NewController returns a Controller.
func NewController(kube client.Client, planner *plan.Planner, recorder events.Recorder, decisions Decisions) *Controller {
	return &Controller{kube: kube, planner: planner, recorder: recorder, decisions: decisions}
}

// isWaiting reports whether a pod waits for a Node.
func isWaiting(o client.Object) bool {
	pod, ok := o.(*corev1.Pod)
	return ok && podutils.IsProvisionable(pod) && pod.DeletionTimestamp.IsZero()
}

// Register registers the Controller with a manager.
func (c *Controller) Register(_ context.Context, m manager.Manager) error {
	return ctrl.NewControllerManagedBy(m).
		Named("pod.explain.proxmox").
		For(&corev1.Pod{}, builder.WithPredicates(predicate.NewPredicateFuncs(isWaiting))).
		Complete(reconcile.AsReconciler(m.GetClient(), c))
}

// Reconcile emits an event if a pod that core could not schedule lacks capacity.
func (c *Controller) Reconcile(ctx context.Context, pod *corev1.Pod) (reconcile.Result, error) {
	key := client.ObjectKeyFromObject(pod)
	switch {
	case !isWaiting(pod):
		return reconcile.Result{}, nil
	case c.decisions.PodSchedulingDecisionTime(key).IsZero():
		return reconcile.Result{RequeueAfter: decisionDelay}, nil
	case !c.decisions.PodSchedulingSuccessTime(key).IsZero():
		return reconcile.Result{RequeueAfter: watch.Again}, nil
	}
	reasons, complete, err := c.Reasons(ctx, pod)
	if err != nil {
		return reconcile.Result{}, err
	}
	// Without all reasons, the event would hide those that are found soon: it is not repeated for a while.
	if len(reasons) > 0 && complete {
		c.recorder.Publish(event.Lasting(event.Warning(pod, v1alpha1.EventNoHostFits, "No node can be created for this pod: "+strings.Join(reasons, "; "))))
	}
	return reconcile.Result{RequeueAfter: watch.Again}, nil
}

// Reasons returns why each NodePool that matches a pod cannot create a Node for it. They are not
// complete if a NodeClass was not checked yet.
func (c *Controller) Reasons(ctx context.Context, pod *corev1.Pod) (reasons []string, complete bool, err error) {
	pools := &karpv1.NodePoolList{}
	if err := c.kube.List(ctx, pools); err != nil {
		return nil, false, fmt.Errorf("listing NodePools: %w", err)
	}
	complete = true
	for i := range pools.Items {
		reason, err := c.unavailableReason(ctx, pod, &pools.Items[i])
		if errors.Is(err, errUnchecked) {
			complete = false
			continue
		}
		if err != nil {
			return nil, false, err
		}
		if reason != "" {
			reasons = append(reasons, fmt.Sprintf("nodepool %s: %s", pools.Items[i].Name, reason))
		}
	}
	return reasons, complete, nil
}

// errUnchecked is returned if a NodeClass was not checked yet.
var errUnchecked = errors.New("the NodeClass is not checked yet")

// unavailableReason returns why a NodePool cannot create a Node for the pod; empty if
// the pool does not match the pod, or if core reports the reason.
func (c *Controller) unavailableReason(ctx context.Context, pod *corev1.Pod, pool *karpv1.NodePool) (string, error) {
	claim, err := NewClaim(pod, pool)
	if err != nil {
		return "", nil //nolint:nilerr // core reports that a pool does not match
	}
	class, problem, err := ReadClass(ctx, c.kube, pool)
	if err == nil && class != nil && class.StatusConditions().Get(status.ConditionReady).IsUnknown() {
		return "", errUnchecked
	}
	if err != nil || problem != "" {
		return problem, err
	}
	err = c.planner.CheckCapacity(claim, class)
	if insufficient, ok := errors.AsType[*instance.InsufficientCapacityError](err); ok {
		return insufficient.Error(), nil
	}
	if err != nil {
		return "", fmt.Errorf("checking capacity for pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	return "", nil
}
