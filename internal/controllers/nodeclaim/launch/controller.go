// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Package launch carries out what Create planned: clone, boot drive,
// configuration, start. A launch that cannot succeed ends here, with the reason
// told and the offering avoided for a while.
package launch

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/controllers/nodeclaim/lifecycle"
	"sigs.k8s.io/karpenter/pkg/events"
	"sigs.k8s.io/karpenter/pkg/metrics"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instancetype"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/placement"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// concurrency is generous: a launch mostly waits for Proxmox, and what Proxmox
// can bear is bounded per storage.
const concurrency = 500

// parkedPause is how often a Claim that waits for room is looked at.
const parkedPause = 10 * time.Second

// newerPause is how often a launch is looked at that a newer controller began.
const newerPause = time.Minute

// givenUpMemory outlasts any cache.
const givenUpMemory = 10 * time.Minute

// PodsOf names the pods that core planned for a Claim.
type PodsOf func(claim string) []types.NamespacedName

// Controller launches.
type Controller struct {
	kube      client.Client
	instances *instance.Provider
	types     *instancetype.Provider
	recorder  events.Recorder
	pods      PodsOf
	backoff   *backoff
	// givenUp are Claims whose deletion the cache may not show yet: a failure counts once.
	givenUp sync.Map
}

// Deps of the Controller.
type Deps struct {
	Kube           client.Client
	Instances      *instance.Provider
	Types          *instancetype.Provider
	Recorder       events.Recorder
	Pods           PodsOf
	FailureBackoff FailureBackoff
}

// NewController makes the Controller.
func NewController(deps Deps) *Controller {
	return &Controller{kube: deps.Kube, instances: deps.Instances, types: deps.Types, recorder: deps.Recorder, pods: deps.Pods, backoff: newBackoff(deps.Instances.Clock, deps.FailureBackoff)}
}

// pending tells whether a Claim has a launch to carry on.
func pending(o client.Object) bool {
	a := o.GetAnnotations()
	return a[v1alpha1.AnnotationLaunchIntent] != "" && a[v1alpha1.AnnotationLaunchCompleted] == "" && o.GetDeletionTimestamp().IsZero()
}

// Register the Controller.
func (c *Controller) Register(_ context.Context, m manager.Manager) error {
	return ctrl.NewControllerManagedBy(m).
		Named("nodeclaim.launch.proxmox").
		For(&karpv1.NodeClaim{}, builder.WithPredicates(predicate.NewPredicateFuncs(pending))).
		WithOptions(controller.Options{
			MaxConcurrentReconciles: concurrency,
			RateLimiter:             workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](500*time.Millisecond, 15*time.Second),
		}).
		Complete(reconcile.AsReconciler(m.GetClient(), c))
}

// Reconcile carries a launch on until its VM runs.
func (c *Controller) Reconcile(ctx context.Context, claim *karpv1.NodeClaim) (reconcile.Result, error) {
	if _, over := c.givenUp.Load(claim.UID); over || !pending(claim) || c.instances.Completed(claim) {
		return reconcile.Result{}, nil
	}
	class := &v1alpha1.ProxmoxNodeClass{}
	err := c.kube.Get(ctx, types.NamespacedName{Name: claim.Spec.NodeClassRef.Name}, class)
	if apierrors.IsNotFound(err) {
		return reconcile.Result{}, c.giveUp(ctx, claim, instance.ReasonInvalidIntent, fmt.Errorf("nodeclass %s is gone", claim.Spec.NodeClassRef.Name))
	}
	if err != nil {
		return reconcile.Result{}, err
	}
	err = c.instances.Launch(ctx, claim, class)
	if errors.Is(err, instance.ErrParked) {
		return reconcile.Result{RequeueAfter: parkedPause}, nil
	}
	if errors.Is(err, instance.ErrClaimBusy) {
		// A delete, or another run over the same Claim: either will finish it.
		return reconcile.Result{RequeueAfter: parkedPause}, nil
	}
	if errors.Is(err, instance.ErrNewerVersion) {
		// Only another release can carry it on. Giving up would remove what that one made.
		log.FromContext(ctx).Error(err, "leaving a launch to a newer controller")
		c.recorder.Publish(failed(claim, instance.BlockedNewerVersion, err))
		return reconcile.Result{RequeueAfter: newerPause}, nil
	}
	if final, ok := errors.AsType[*instance.LaunchError](err); ok {
		return reconcile.Result{}, c.giveUp(ctx, claim, final.Reason, err)
	}
	if err != nil {
		return reconcile.Result{}, fmt.Errorf("launching the VM of nodeclaim %s, %w", claim.Name, err)
	}
	c.backoff.succeeded(claim.Labels[karpv1.NodePoolLabelKey])
	if in, ok, err := instance.ReadIntent(claim); err == nil && ok {
		c.recorder.Publish(launched(claim, in, c.instances.Clock.Since(in.Time)))
	}
	return reconcile.Result{}, nil
}

// giveUp does what core would have done had Create failed: tell claim and pods,
// count it, delete the Claim. The VM goes with it, through Delete.
func (c *Controller) giveUp(ctx context.Context, claim *karpv1.NodeClaim, reason string, cause error) error {
	log.FromContext(ctx).Error(cause, "launch failed", "reason", reason)
	c.givenUp.Store(claim.UID, true)
	time.AfterFunc(givenUpMemory, func() { c.givenUp.Delete(claim.UID) })
	if in, ok, err := instance.ReadIntent(claim); err == nil && ok {
		if what, ok := speaksAbout(claim, in, reason, cause); ok {
			c.types.MarkUnavailable(what, cause.Error(), c.backoff.failed(claim.Labels[karpv1.NodePoolLabelKey], reason))
		}
	}
	c.instances.LaunchFailed(claim.Spec.NodeClassRef.Name, reason, cause)
	c.recorder.Publish(failed(claim, reason, cause), lifecycle.InsufficientCapacityErrorEvent(claim, cause))
	for _, key := range c.pods(claim.Name) {
		pod := &corev1.Pod{}
		if err := c.kube.Get(ctx, key, pod); err == nil && pod.Spec.NodeName == "" && pod.DeletionTimestamp.IsZero() {
			c.recorder.Publish(lifecycle.InsufficientCapacityErrorPodEvent(pod, claim, cause))
		}
	}
	if err := c.kube.Delete(ctx, claim, client.Preconditions{UID: &claim.UID}); err != nil {
		c.givenUp.Delete(claim.UID)
		return client.IgnoreNotFound(err)
	}
	metrics.NodeClaimsDisruptedTotal.Inc(map[string]string{
		metrics.ReasonLabel:              metrics.InsufficientCapacityReason,
		metrics.NodePoolLabel:            claim.Labels[karpv1.NodePoolLabelKey],
		metrics.CapacityTypeLabel:        claim.Labels[karpv1.CapacityTypeLabelKey],
		metrics.ConsolidationPolicyLabel: "",
		metrics.TerminationModeLabel:     "",
	})
	return nil
}

// speaksAbout says which offerings a failure is about. What hangs on the class's
// template or boot data is wrong for all sizes, but only of that class; what the
// Host lacks is wrong for everybody; a VMID that was taken, or room that did not
// come, says nothing about the next Claim.
func speaksAbout(claim *karpv1.NodeClaim, in instance.Intent, reason string, cause error) (instancetype.Offerings, bool) {
	what := instancetype.Offerings{Zone: placement.Zone{Region: in.Region, Host: in.Host}}
	switch reason {
	case instance.ReasonVMIDTaken, instance.ReasonAddressTaken, instance.ReasonStaleLock, instance.ReasonInsufficientCapacity, instance.ReasonInvalidIntent:
		return what, false
	case instance.ReasonStorageFull:
		return what, true
	case instance.ReasonTimeout:
		// Patience also ends over what only this class needs, such as a Secret.
		for _, everybodys := range []error{proxmox.ErrHostUnreachable, proxmox.ErrUnreachable, proxmox.ErrNoQuorum, proxmox.ErrLocked, proxmox.ErrBusy} {
			if errors.Is(cause, everybodys) {
				return what, true
			}
		}
		what.NodeClass = claim.Spec.NodeClassRef.Name
	default:
		what.NodeClass = claim.Spec.NodeClassRef.Name
	}
	return what, true
}

// launched says where a Claim's VM is to be found in Proxmox.
func launched(claim *karpv1.NodeClaim, in instance.Intent, took time.Duration) events.Event {
	return events.Event{
		InvolvedObject: claim,
		Type:           corev1.EventTypeNormal,
		Reason:         "VMLaunched",
		Message:        fmt.Sprintf("Launched VM %d on host %s of region %s in %s", in.VMID, in.Host, in.Region, took.Round(100*time.Millisecond)),
		DedupeValues:   []string{string(claim.UID)},
	}
}

func failed(claim *karpv1.NodeClaim, reason string, cause error) events.Event {
	return events.Event{
		InvolvedObject: claim,
		Type:           corev1.EventTypeWarning,
		Reason:         reason,
		Message:        cause.Error(),
		DedupeValues:   []string{string(claim.UID), reason},
	}
}
