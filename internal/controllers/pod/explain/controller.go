// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Package explain tells a pod that waits for a Node why no Host can take one. Core
// knows which offerings are available, not why the others are not: all that it can
// say is that no instance type was good enough.
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
	"sigs.k8s.io/karpenter/pkg/scheduling"
	podutils "sigs.k8s.io/karpenter/pkg/utils/pod"
	"sigs.k8s.io/karpenter/pkg/utils/resources"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance/plan"
)

const (
	// undecided is the pause until core has had its say about a pod.
	undecided = 2 * time.Second
	// pause between two looks at a pod that waits.
	pause = 30 * time.Second
	// reminder is how often the same is said about the same pod.
	reminder = 10 * time.Minute
)

// Decisions are what core thinks of pods.
type Decisions interface {
	// PodSchedulingDecisionTime is when core first tried to place the pod; zero before.
	PodSchedulingDecisionTime(pod types.NamespacedName) time.Time
	// PodSchedulingSuccessTime is when core found a place; zero while it has none.
	PodSchedulingSuccessTime(pod types.NamespacedName) time.Time
}

// Controller explains.
type Controller struct {
	kube      client.Client
	planner   *plan.Planner
	recorder  events.Recorder
	decisions Decisions
}

// NewController makes the Controller.
func NewController(kube client.Client, planner *plan.Planner, recorder events.Recorder, decisions Decisions) *Controller {
	return &Controller{kube: kube, planner: planner, recorder: recorder, decisions: decisions}
}

// waiting tells whether a pod waits for a Node.
func waiting(o client.Object) bool {
	pod, ok := o.(*corev1.Pod)
	return ok && podutils.IsProvisionable(pod) && pod.DeletionTimestamp.IsZero()
}

// Register the Controller.
func (c *Controller) Register(_ context.Context, m manager.Manager) error {
	return ctrl.NewControllerManagedBy(m).
		Named("pod.explain.proxmox").
		For(&corev1.Pod{}, builder.WithPredicates(predicate.NewPredicateFuncs(waiting))).
		Complete(reconcile.AsReconciler(m.GetClient(), c))
}

// Reconcile looks whether a pod for which core found no place lacks room, and says so.
func (c *Controller) Reconcile(ctx context.Context, pod *corev1.Pod) (reconcile.Result, error) {
	key := client.ObjectKeyFromObject(pod)
	switch {
	case !waiting(pod):
		return reconcile.Result{}, nil
	case c.decisions.PodSchedulingDecisionTime(key).IsZero():
		return reconcile.Result{RequeueAfter: undecided}, nil
	case !c.decisions.PodSchedulingSuccessTime(key).IsZero():
		return reconcile.Result{RequeueAfter: pause}, nil
	}
	pools := &karpv1.NodePoolList{}
	if err := c.kube.List(ctx, pools); err != nil {
		return reconcile.Result{}, fmt.Errorf("listing nodepools, %w", err)
	}
	var reasons []string
	for i := range pools.Items {
		reason, err := c.lacks(ctx, pod, &pools.Items[i])
		if err != nil {
			return reconcile.Result{}, err
		}
		if reason != "" {
			reasons = append(reasons, fmt.Sprintf("nodepool %s: %s", pools.Items[i].Name, reason))
		}
	}
	if len(reasons) > 0 {
		c.recorder.Publish(noHostFits(pod, reasons))
	}
	return reconcile.Result{RequeueAfter: pause}, nil
}

// lacks says what keeps a pool from making a Node for the pod; empty when it is not
// for the pod, or when it is not room that it lacks.
func (c *Controller) lacks(ctx context.Context, pod *corev1.Pod, pool *karpv1.NodePool) (string, error) {
	claim, ok := claimFor(pod, pool)
	if !ok {
		return "", nil
	}
	class := &v1alpha1.ProxmoxNodeClass{}
	if err := c.kube.Get(ctx, types.NamespacedName{Name: pool.Spec.Template.Spec.NodeClassRef.Name}, class); err != nil {
		return "", client.IgnoreNotFound(err)
	}
	if ready := class.StatusConditions().Get(status.ConditionReady); !ready.IsTrue() {
		return fmt.Sprintf("nodeclass %s is not ready: %s", class.Name, ready.Message), nil
	}
	err := c.planner.CheckCapacity(claim, class)
	if noRoom, ok := errors.AsType[*instance.InsufficientCapacityError](err); ok {
		return noRoom.Error(), nil
	}
	if err != nil {
		return "", fmt.Errorf("looking for room for pod %s/%s, %w", pod.Namespace, pod.Name, err)
	}
	return "", nil
}

// claimFor is the Claim that the pool would have to make for the pod; false where the
// pool is none of ours, or does not want the pod, which core says well enough.
func claimFor(pod *corev1.Pod, pool *karpv1.NodePool) (*karpv1.NodeClaim, bool) {
	template := pool.Spec.Template
	ref := template.Spec.NodeClassRef
	if ref == nil || ref.Group != v1alpha1.Group || !pool.DeletionTimestamp.IsZero() || pool.Spec.Replicas != nil ||
		scheduling.Taints(template.Spec.Taints).ToleratesPod(pod) != nil {
		return nil, false
	}
	requirements := scheduling.NewNodeSelectorRequirementsWithMinValues(template.Spec.Requirements...)
	requirements.Add(scheduling.NewLabelRequirements(template.Labels).Values()...)
	requirements.Add(scheduling.NewRequirement(karpv1.NodePoolLabelKey, corev1.NodeSelectorOpIn, pool.Name))
	wanted := scheduling.NewStrictPodRequirements(pod)
	if requirements.Compatible(wanted, scheduling.AllowUndefinedWellKnownLabels) != nil {
		return nil, false
	}
	requirements.Add(wanted.Values()...)
	claim := &karpv1.NodeClaim{}
	claim.Name, claim.Labels = pod.Name, map[string]string{karpv1.NodePoolLabelKey: pool.Name}
	claim.Spec.NodeClassRef = ref
	claim.Spec.Requirements = requirements.NodeSelectorRequirements()
	claim.Spec.Resources.Requests = resources.RequestsForPods(pod)
	return claim, true
}

func noHostFits(pod *corev1.Pod, reasons []string) events.Event {
	return events.Event{
		InvolvedObject: pod,
		Type:           corev1.EventTypeWarning,
		Reason:         "NoHostFits",
		Message:        "No node can be made for this pod now; " + strings.Join(reasons, "; "),
		DedupeValues:   []string{string(pod.UID)},
		DedupeTimeout:  reminder,
	}
}
