// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Package timeline records on each Claim when guest and cluster did their steps of the
// launch: certificate requested and approved, Node registered, Ready and initialized. It
// reads the times of these objects and sends no requests to Proxmox.
package timeline

import (
	"context"
	"fmt"
	"time"

	"github.com/awslabs/operatorpkg/status"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/report"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
)

const (
	// recordTimeout is how long after the end of a launch it is recorded. Kubernetes
	// deletes approved certificate requests after an hour, so later the timeline would
	// miss steps.
	recordTimeout = time.Hour
	// recordDelay is how long a step before the last one may be the newest until it is recorded.
	// Most guests take less, so their whole timeline is recorded with one write.
	recordDelay = 10 * time.Second
	// cacheDelay is longer than the time after which the cache shows a change of a Claim.
	cacheDelay = time.Minute
	// joiningNodeField is the index of certificate requests by the Node that joins with
	// them.
	joiningNodeField = "joiningNode"
)

// Controller records timelines.
type Controller struct {
	kube    client.Client
	clock   clock.PassiveClock
	metrics instance.Metrics
	// recorded has the UIDs of Claims whose whole timeline was recorded, and that the cache may not
	// show yet.
	recorded *cache.Expiring
}

// NewController returns a Controller.
func NewController(kube client.Client, clock clock.PassiveClock, metrics instance.Metrics) *Controller {
	return &Controller{kube: kube, clock: clock, metrics: metrics, recorded: cache.NewExpiring()}
}

// isJoining reports whether this controller launched the VM of a Claim, and its Node was not
// recorded as initialized. Until the launch is completed, the Launcher writes the timeline.
func isJoining(o client.Object) bool {
	claim, ok := o.(*karpv1.NodeClaim)
	if !ok || !instance.IsOurs(claim) || !claim.DeletionTimestamp.IsZero() || claim.Annotations[v1alpha1.AnnotationLaunchCompleted] == "" {
		return false
	}
	progress := instance.ReadProgress(claim)
	return progress.HasReached(instance.PhaseStarted) && !progress.HasReached(instance.PhaseInitialized)
}

// joiningNode returns the name of the Node that joins with a certificate request; none for
// other requests.
func joiningNode(o client.Object) []string {
	request, ok := o.(*certificatesv1.CertificateSigningRequest)
	if !ok {
		return nil
	}
	if node := instance.JoiningNode(request); node != "" {
		return []string{node}
	}
	return nil
}

// Register registers the Controller. Karpenter changes a Claim when its Node is registered
// and initialized, so Nodes are not watched.
func (c *Controller) Register(ctx context.Context, m manager.Manager) error {
	requests := &certificatesv1.CertificateSigningRequest{}
	if err := m.GetFieldIndexer().IndexField(ctx, requests, joiningNodeField, joiningNode); err != nil {
		return fmt.Errorf("indexing certificate requests by Node: %w", err)
	}
	return ctrl.NewControllerManagedBy(m).
		Named("nodeclaim.timeline.proxmox").
		For(&karpv1.NodeClaim{}, builder.WithPredicates(predicate.NewPredicateFuncs(isJoining))).
		Watches(requests, handler.EnqueueRequestsFromMapFunc(func(_ context.Context, o client.Object) []reconcile.Request {
			var claims []reconcile.Request
			for _, name := range joiningNode(o) {
				claims = append(claims, reconcile.Request{NamespacedName: types.NamespacedName{Name: name}})
			}
			return claims
		})).
		WithOptions(controller.Options{MaxConcurrentReconciles: 10}).
		Complete(reconcile.AsReconciler(m.GetClient(), c))
}

// Reconcile records the steps of a launch that have ended.
func (c *Controller) Reconcile(ctx context.Context, claim *karpv1.NodeClaim) (reconcile.Result, error) {
	if _, recorded := c.recorded.Get(claim.UID); recorded || !isJoining(claim) || c.endedLongAgo(claim) {
		return reconcile.Result{}, nil
	}
	observed, err := c.observe(ctx, claim)
	if err != nil {
		return reconcile.Result{}, err
	}
	progress := instance.ReadProgress(claim)
	if !progress.Observe(claim, observed, c.clock.Now()) {
		return reconcile.Result{}, nil
	}
	if wait := recordDelay - progress.Age(claim, c.clock.Now()); wait > 0 && !progress.HasReached(instance.PhaseInitialized) {
		return reconcile.Result{RequeueAfter: wait}, nil
	}
	changed, err := report.Reporter{Kube: c.kube}.Record(ctx, claim, v1alpha1.AnnotationLaunchProgress, progress.Encode())
	if err != nil {
		return report.Result(err)
	}
	if changed && progress.HasReached(instance.PhaseInitialized) {
		c.recorded.Set(claim.UID, nil, cacheDelay)
		log.FromContext(ctx).Info("node initialized", "timeline", progress.Timeline)
		c.metrics.Initialized(progress)
	}
	return reconcile.Result{}, nil
}

// endedLongAgo reports whether a Node was initialized before the timeline could be recorded,
// for example by an older release.
func (c *Controller) endedLongAgo(claim *karpv1.NodeClaim) bool {
	initialized := claim.StatusConditions(status.WithObservedOnly()).Get(karpv1.ConditionTypeInitialized)
	return initialized.IsTrue() && c.clock.Since(initialized.LastTransitionTime.Time) > recordTimeout
}

// observe reads the objects of a Claim's Node. Its name is known when Karpenter has
// registered it, and before is usually that of the Claim or its machine.
func (c *Controller) observe(ctx context.Context, claim *karpv1.NodeClaim) (instance.Observed, error) {
	observed, name := instance.Observed{}, instance.ExpectedNodeName(claim)
	if claim.Status.NodeName != "" {
		name = claim.Status.NodeName
		node := &corev1.Node{}
		err := c.kube.Get(ctx, client.ObjectKey{Name: name}, node)
		if client.IgnoreNotFound(err) != nil {
			return observed, fmt.Errorf("reading Node %s: %w", name, err)
		}
		if err == nil {
			observed.Node = node
		}
	}
	requests := &certificatesv1.CertificateSigningRequestList{}
	if err := c.kube.List(ctx, requests, client.MatchingFields{joiningNodeField: name}); err != nil {
		return observed, fmt.Errorf("listing certificate requests of Node %s: %w", name, err)
	}
	observed.Requests = requests.Items
	return observed, nil
}
