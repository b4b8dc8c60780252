// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Package timeline measures the steps of each launch: those of Proxmox, which the Launcher knows, and
// those of guest and cluster, which Node, certificate requests and conditions show when the Node is
// initialized. It sends no requests to Proxmox.
package timeline

import (
	"context"
	"fmt"

	"github.com/awslabs/operatorpkg/status"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
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

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
)

// joiningNodeField is the index of certificate requests by the Node that joins with them.
const joiningNodeField = "joiningNode"

// Controller measures launches.
type Controller struct {
	kube     client.Client
	clock    clock.PassiveClock
	launches *instance.LaunchTracker
	metrics  instance.Metrics
}

// NewController returns a Controller.
func NewController(kube client.Client, clock clock.PassiveClock, launches *instance.LaunchTracker, metrics instance.Metrics) *Controller {
	return &Controller{kube: kube, clock: clock, launches: launches, metrics: metrics}
}

// isInitialized reports whether this controller launched the VM of a Claim, and its Node is initialized.
func isInitialized(o client.Object) bool {
	claim, ok := o.(*karpv1.NodeClaim)
	return ok && claim.Annotations[v1alpha1.AnnotationLaunchedBy] == v1alpha1.LaunchedByVersion && claim.DeletionTimestamp.IsZero() &&
		claim.StatusConditions(status.WithObservedOnly()).Get(karpv1.ConditionTypeInitialized).IsTrue()
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

// Register registers the Controller.
func (c *Controller) Register(ctx context.Context, m manager.Manager) error {
	requests := &certificatesv1.CertificateSigningRequest{}
	if err := m.GetFieldIndexer().IndexField(ctx, requests, joiningNodeField, joiningNode); err != nil {
		return fmt.Errorf("indexing certificate requests by Node: %w", err)
	}
	return ctrl.NewControllerManagedBy(m).
		Named("nodeclaim.timeline.proxmox").
		For(&karpv1.NodeClaim{}, builder.WithPredicates(predicate.NewPredicateFuncs(isInitialized))).
		WithOptions(controller.Options{MaxConcurrentReconciles: 10}).
		Complete(reconcile.AsReconciler(m.GetClient(), c))
}

// Reconcile measures a launch once, when its Node is initialized.
func (c *Controller) Reconcile(ctx context.Context, claim *karpv1.NodeClaim) (reconcile.Result, error) {
	if !isInitialized(claim) {
		return reconcile.Result{}, nil
	}
	observed, err := c.observe(ctx, claim)
	if err != nil {
		return reconcile.Result{}, err
	}
	progress, ok := c.launches.EndProgress(string(claim.UID))
	if !ok {
		return reconcile.Result{}, nil
	}
	plan, _ := c.launches.Plan(string(claim.UID))
	progress.Observe(claim, plan.Time, observed, c.clock.Now())
	log.FromContext(ctx).Info("node initialized", "timeline", progress.Timeline)
	c.metrics.Initialized(progress)
	return reconcile.Result{}, nil
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
