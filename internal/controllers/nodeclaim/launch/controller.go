// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Package launch launches the VMs that Create planned. If a launch fails permanently, the
// controller reports the reason, avoids the offering for a while, and deletes the Claim.
package launch

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
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
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/backoff"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/watch"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/event"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instancetype"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/placement"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

const (
	// concurrency is high: a launch mostly waits for Proxmox, whose load is limited per
	// storage.
	concurrency = 500
	// parkedInterval is how often a Claim that waits for capacity is checked.
	parkedInterval = 10 * time.Second
	// wakeInterval is how often a Claim that waits for its Host to wake up is checked.
	wakeInterval = 2 * time.Second
	// failedRetention is longer than any cache lags.
	failedRetention = 10 * time.Minute
)

// PodsOf returns the pods that core planned for a Claim.
type PodsOf func(claim string) []types.NamespacedName

// Controller launches VMs.
type Controller struct {
	deps Deps
	// backoff increases the delay while launches of a NodePool keep failing for one reason: a VM that
	// cannot start must not be cloned repeatedly.
	backoff *backoff.Holds[backoffKey]
	// failed are Claims whose deletion the cache may not show yet: a failure counts once.
	failed *backoff.Holds[types.UID]
}

type backoffKey struct{ pool, reason string }

// Deps are the dependencies of the Controller.
type Deps struct {
	Kube           client.Client
	Launcher       Launcher
	Health         Health
	Types          *instancetype.Provider
	Recorder       events.Recorder
	Pods           PodsOf
	Clock          clock.Clock
	FailureBackoff backoff.Exponential
}

// Launcher launches VMs.
type Launcher interface {
	Launch(context.Context, *karpv1.NodeClaim, *v1alpha1.ProxmoxNodeClass) error
	IsLaunched(*karpv1.NodeClaim) bool
	Intent(*karpv1.NodeClaim) (instance.Intent, bool)
	Progress(*karpv1.NodeClaim) instance.Progress
}

// Health tracks failed launches of a NodeClass.
type Health interface {
	RecordFailure(class, region, reason string, cause error)
}

// NewController returns a Controller.
func NewController(deps Deps) *Controller {
	return &Controller{
		deps: deps, backoff: backoff.NewHolds[backoffKey](deps.Clock, deps.FailureBackoff),
		failed: backoff.NewHolds[types.UID](deps.Clock, backoff.Exponential{}),
	}
}

// isPending reports whether core stored the plan of a Claim's VM, and its launch is not finished.
func (c *Controller) isPending(o client.Object) bool {
	claim, ok := o.(*karpv1.NodeClaim)
	return ok && claim.Status.ProviderID != "" && claim.Annotations[v1alpha1.AnnotationLaunchedBy] == v1alpha1.LaunchedByVersion &&
		claim.DeletionTimestamp.IsZero() && !c.deps.Launcher.IsLaunched(claim)
}

// Register registers the Controller.
func (c *Controller) Register(_ context.Context, m manager.Manager) error {
	return ctrl.NewControllerManagedBy(m).
		Named("nodeclaim.launch.proxmox").
		For(&karpv1.NodeClaim{}, builder.WithPredicates(predicate.NewPredicateFuncs(c.isPending))).
		WithOptions(controller.Options{
			MaxConcurrentReconciles: concurrency,
			RateLimiter:             workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](500*time.Millisecond, 15*time.Second),
		}).
		Complete(reconcile.AsReconciler(m.GetClient(), c))
}

// Reconcile launches the VM of a Claim, or resumes its launch.
func (c *Controller) Reconcile(ctx context.Context, claim *karpv1.NodeClaim) (reconcile.Result, error) {
	if _, _, failed := c.failed.Get(claim.UID); failed || !c.isPending(claim) {
		return reconcile.Result{}, nil
	}
	class := &v1alpha1.ProxmoxNodeClass{}
	err := c.deps.Kube.Get(ctx, types.NamespacedName{Name: claim.Spec.NodeClassRef.Name}, class)
	if apierrors.IsNotFound(err) {
		return reconcile.Result{}, c.fail(ctx, claim, v1alpha1.EventInvalidLaunchIntent, fmt.Errorf("NodeClass %s does not exist", claim.Spec.NodeClassRef.Name))
	}
	if err != nil {
		return reconcile.Result{}, err
	}
	err = c.deps.Launcher.Launch(ctx, claim, class)
	// A busy Claim is being deleted, or launched by another reconcile.
	if errors.Is(err, instance.ErrParked) || errors.Is(err, instance.ErrClaimBusy) {
		return reconcile.Result{RequeueAfter: parkedInterval}, nil
	}
	if errors.Is(err, instance.ErrHostPowerUnknown) {
		c.deps.Recorder.Publish(event.Warning(claim, v1alpha1.EventHostPowerUnknown, err.Error()))
		return reconcile.Result{RequeueAfter: wakeInterval}, nil
	}
	if errors.Is(err, instance.ErrHostAsleep) {
		if progress := c.deps.Launcher.Progress(claim); progress.HasReached(instance.PhaseHostWaking) {
			c.deps.Recorder.Publish(event.Normal(claim, v1alpha1.EventVMWaitsForHost, err.Error()))
		}
		return reconcile.Result{RequeueAfter: wakeInterval}, nil
	}
	if errors.Is(err, instance.ErrNewerVersion) {
		// Only the newer release can resume it, and a failure would delete its VM.
		log.FromContext(ctx).Error(err, "skipping launch planned by a newer controller release")
		c.deps.Recorder.Publish(event.Warning(claim, v1alpha1.EventCreatedByNewerController, err.Error()))
		return reconcile.Result{RequeueAfter: watch.Again}, nil
	}
	if final, ok := errors.AsType[*instance.LaunchError](err); ok {
		return reconcile.Result{}, c.fail(ctx, claim, final.Reason, err)
	}
	if err != nil {
		return reconcile.Result{}, fmt.Errorf("launching the VM of NodeClaim %s: %w", claim.Name, err)
	}
	c.backoff.Clear(func(key backoffKey) bool { return key.pool == claim.Labels[karpv1.NodePoolLabelKey] })
	if in, ok := c.deps.Launcher.Intent(claim); ok {
		c.deps.Recorder.Publish(launchedEvent(claim, in, c.deps.Launcher.Progress(claim), c.deps.Clock.Since(in.Time)))
	}
	return reconcile.Result{}, nil
}

// fail does what core does if Create fails: it emits events on Claim and pods, counts the
// failure, and deletes the Claim. Delete then deletes the VM. It keeps a Claim whose Node has joined
// meanwhile: what is left, such as HA, is done in place.
func (c *Controller) fail(ctx context.Context, claim *karpv1.NodeClaim, reason string, cause error) error {
	if c.deps.Kube.Get(ctx, client.ObjectKeyFromObject(claim), claim) == nil && c.deps.Launcher.IsLaunched(claim) {
		return nil
	}
	log.FromContext(ctx).Error(cause, "launch failed", "reason", reason)
	c.failed.Add(claim.UID, reason, failedRetention)
	region := ""
	if in, ok := c.deps.Launcher.Intent(claim); ok {
		region = in.Region
		if offerings, ok := affectedOfferings(claim, in, reason, cause); ok {
			c.deps.Types.MarkUnavailable(offerings, cause.Error(), c.backoff.Fail(backoffKey{claim.Labels[karpv1.NodePoolLabelKey], reason}))
		}
	}
	c.deps.Health.RecordFailure(claim.Spec.NodeClassRef.Name, region, reason, cause)
	c.deps.Recorder.Publish(event.Warning(claim, reason, cause.Error()), lifecycle.InsufficientCapacityErrorEvent(claim, cause))
	for _, key := range c.deps.Pods(claim.Name) {
		pod := &corev1.Pod{}
		if err := c.deps.Kube.Get(ctx, key, pod); err == nil && pod.Spec.NodeName == "" && pod.DeletionTimestamp.IsZero() {
			c.deps.Recorder.Publish(lifecycle.InsufficientCapacityErrorPodEvent(pod, claim, cause))
		}
	}
	if err := c.deps.Kube.Delete(ctx, claim, client.Preconditions{UID: &claim.UID}); err != nil {
		c.failed.Clear(func(uid types.UID) bool { return uid == claim.UID })
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

// affectedOfferings returns the offerings that a failure makes unavailable. An error of
// the class's template or boot data affects all sizes of that class; an error of the
// Host affects all classes; a taken VMID or missing capacity does not affect the next
// Claim.
func affectedOfferings(claim *karpv1.NodeClaim, in instance.Intent, reason string, cause error) (instancetype.OfferingSelector, bool) {
	affected := instancetype.OfferingSelector{Zone: placement.Zone{Region: in.Region, Host: in.Host}}
	switch reason {
	case v1alpha1.EventVMIDTaken, v1alpha1.EventAddressTaken, v1alpha1.EventStaleLock, v1alpha1.EventInsufficientCapacity, v1alpha1.EventInvalidLaunchIntent, v1alpha1.EventHostWakeFailed:
		return affected, false
	case v1alpha1.EventStorageFull:
		if len(in.Retained) > 0 { // their size is not part of the plan
			affected.NodeClass = claim.Spec.NodeClassRef.Name
		}
		return affected, true
	case v1alpha1.EventLaunchTimeout:
		// The Host of the Template may have failed, and other classes have other Templates.
		mayBeTemplateHost := in.TemplateHost != "" && in.TemplateHost != in.Host && errors.Is(cause, proxmox.ErrHostUnreachable)
		// The timeout can also be caused by something of this class, such as its Secret.
		for _, hostError := range []error{proxmox.ErrHostUnreachable, proxmox.ErrUnreachable, proxmox.ErrNoQuorum, proxmox.ErrNoTime, proxmox.ErrLocked, proxmox.ErrBusy} {
			if errors.Is(cause, hostError) && !mayBeTemplateHost {
				return affected, true
			}
		}
		affected.NodeClass = claim.Spec.NodeClassRef.Name
	default:
		affected.NodeClass = claim.Spec.NodeClassRef.Name
	}
	return affected, true
}

// launchedEvent reports where a Claim's VM runs, and when each step of its launch ended.
func launchedEvent(claim *karpv1.NodeClaim, in instance.Intent, progress instance.Progress, took time.Duration) events.Event {
	message := fmt.Sprintf("Launched VM %d on host %s of region %s in %s", in.VMID, in.Host, in.Region, took.Round(100*time.Millisecond))
	if steps := progress.String(); steps != "" {
		message += ", " + steps
	}
	return event.Normal(claim, v1alpha1.EventVMLaunched, message)
}
