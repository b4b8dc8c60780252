// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Package evaluation evaluates NodeOverlays when the offerings of a NodePool have other labels.
// Core stores the prices of NodeOverlays by the labels of offerings, and evaluates them only
// after a change of a spec. New templates and Hosts change labels as well, and without an
// evaluation their offerings would lose the prices of NodeOverlays for up to six hours.
package evaluation

import (
	"context"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"time"

	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	corev1alpha1 "sigs.k8s.io/karpenter/pkg/apis/v1alpha1"
	"sigs.k8s.io/karpenter/pkg/cloudprovider"
	coreoptions "sigs.k8s.io/karpenter/pkg/operator/options"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/watch"
)

// checkInterval is how often the labels are compared. Hosts and templates change without an
// event of the Kubernetes API.
const checkInterval = 10 * time.Second

// Controller evaluates NodeOverlays.
type Controller struct {
	kube     client.Client
	provider cloudprovider.CloudProvider
	overlays reconcile.Reconciler

	// evaluated are the offerings at the last evaluation, by NodePool.
	evaluated map[string]offerings
	// confirmed is set if they were evaluated twice.
	confirmed bool
}

// offerings are the offerings of a NodePool.
type offerings struct {
	types []*cloudprovider.InstanceType
	// labels is a hash of the names of the types and the labels of their offerings.
	labels uint64
}

// NewController returns a Controller. The provider is the one without NodeOverlays, and
// overlays is core's controller of NodeOverlays.
func NewController(kube client.Client, provider cloudprovider.CloudProvider, overlays reconcile.Reconciler) *Controller {
	return &Controller{kube: kube, provider: provider, overlays: overlays}
}

// Register registers the Controller with a manager if the feature gate NodeOverlay is on.
func (c *Controller) Register(ctx context.Context, m manager.Manager) error {
	if !coreoptions.FromContext(ctx).FeatureGates.NodeOverlay {
		return nil
	}
	// One reconcile checks all NodePools.
	all := handler.EnqueueRequestsFromMapFunc(func(context.Context, client.Object) []reconcile.Request { return []reconcile.Request{{}} })
	return ctrl.NewControllerManagedBy(m).
		Named("nodeoverlay.evaluation.proxmox").
		Watches(&corev1alpha1.NodeOverlay{}, all).
		Watches(&v1alpha1.ProxmoxNodeClass{}, all).
		WithOptions(controller.Options{MaxConcurrentReconciles: 1}).
		Complete(c)
}

// Reconcile evaluates the NodeOverlays if labels changed since the last evaluation. It does so
// twice: core may evaluate older labels at the same time, and store its result last.
func (c *Controller) Reconcile(ctx context.Context, _ reconcile.Request) (reconcile.Result, error) {
	overlays := &corev1alpha1.NodeOverlayList{}
	if err := c.kube.List(ctx, overlays, client.UnsafeDisableDeepCopy); err != nil {
		return reconcile.Result{}, fmt.Errorf("listing NodeOverlays: %w", err)
	}
	if len(overlays.Items) == 0 {
		c.evaluated, c.confirmed = nil, false
		return reconcile.Result{}, nil
	}
	current, complete, err := c.readOfferings(ctx)
	if err != nil {
		return reconcile.Result{}, err
	}
	same := maps.EqualFunc(current, c.evaluated, func(a, b offerings) bool { return a.labels == b.labels })
	if same && c.confirmed {
		c.evaluated = current
		return reconcile.Result{RequeueAfter: checkInterval}, nil
	}
	result, err := c.overlays.Reconcile(ctx, reconcile.Request{})
	if err != nil && complete {
		// With a NodePool without offerings core stores the result, and reports the error
		// itself.
		return reconcile.Result{}, fmt.Errorf("evaluating NodeOverlays: %w", err)
	}
	if err == nil && result.RequeueAfter == 0 {
		// A NodeOverlay changed at the same time, and nothing was stored.
		return reconcile.Result{RequeueAfter: watch.Soon}, nil
	}
	c.evaluated, c.confirmed = current, same
	return reconcile.Result{RequeueAfter: checkInterval}, nil
}

// readOfferings returns the offerings of NodePools. It is complete if all have them.
func (c *Controller) readOfferings(ctx context.Context) (current map[string]offerings, complete bool, err error) {
	pools := &karpv1.NodePoolList{}
	if err := c.kube.List(ctx, pools); err != nil {
		return nil, false, fmt.Errorf("listing NodePools: %w", err)
	}
	current, complete = map[string]offerings{}, true
	for i := range pools.Items {
		types, err := c.provider.GetInstanceTypes(ctx, &pools.Items[i])
		if err != nil {
			complete = false
			continue
		}
		name := pools.Items[i].Name
		if before, ok := c.evaluated[name]; ok && slices.Equal(before.types, types) {
			current[name] = before // unchanged types are the same objects
			continue
		}
		current[name] = offerings{types: types, labels: hashLabels(types)}
	}
	return current, complete, nil
}

// hashLabels returns a hash of what core finds the price of a NodeOverlay by.
func hashLabels(types []*cloudprovider.InstanceType) uint64 {
	sum := fnv.New64a()
	for _, it := range types {
		_, _ = sum.Write([]byte(it.Name + "\n")) // a hash returns no error
		for _, offering := range it.Offerings {
			_, _ = sum.Write([]byte(offering.Requirements.String() + "\n"))
		}
	}
	return sum.Sum64()
}
