// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Package build builds the Templates of ProxmoxTemplates. It reconciles each Host
// separately, so a slow or failing Host does not delay the others.
package build

import (
	"context"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/template"
)

// Request identifies a ProxmoxTemplate on one Host.
type Request struct{ Template, Region, Host string }

// batchInterval merges a burst of changes into one run.
const batchInterval = 500 * time.Millisecond

// Controller reconciles the Templates of one ProxmoxTemplate on one Host.
type Controller struct {
	kube      client.Client
	templates *template.Provider
}

// NewController returns a Controller.
func NewController(kube client.Client, templates *template.Provider) *Controller {
	return &Controller{kube: kube, templates: templates}
}

type queue = workqueue.TypedRateLimitingInterface[Request]

// Register adds the Controller to the manager. Its workers wait for Proxmox tasks, so
// their number is how many Hosts are reconciled concurrently.
func (c *Controller) Register(ctx context.Context, m manager.Manager) error {
	changed := handler.TypedFuncs[*v1alpha1.ProxmoxTemplate, Request]{
		CreateFunc: func(_ context.Context, e event.TypedCreateEvent[*v1alpha1.ProxmoxTemplate], q queue) {
			c.enqueueAllHosts(e.Object, q)
		},
		UpdateFunc: func(_ context.Context, e event.TypedUpdateEvent[*v1alpha1.ProxmoxTemplate], q queue) {
			c.enqueueAllHosts(e.ObjectNew, q)
		},
	}
	classes := handler.TypedEnqueueRequestsFromMapFunc(func(ctx context.Context, _ *v1alpha1.ProxmoxNodeClass) []Request { return c.pendingRequests(ctx) })
	claims := handler.TypedFuncs[*karpv1.NodeClaim, Request]{
		// An old Template can be deleted after its last clone.
		DeleteFunc: func(ctx context.Context, _ event.TypedDeleteEvent[*karpv1.NodeClaim], q queue) {
			add(q, c.pendingRequests(ctx))
		},
	}
	views := handler.TypedFuncs[uint64, Request]{
		GenericFunc: func(ctx context.Context, _ event.TypedGenericEvent[uint64], q queue) {
			add(q, c.pendingRequests(ctx))
		},
	}
	return builder.TypedControllerManagedBy[Request](m).
		Named("template.build.proxmox").
		WatchesRawSource(source.TypedKind(m.GetCache(), &v1alpha1.ProxmoxTemplate{}, changed, predicate.TypedFuncs[*v1alpha1.ProxmoxTemplate]{UpdateFunc: isRelevant})).
		WatchesRawSource(source.TypedKind(m.GetCache(), &v1alpha1.ProxmoxNodeClass{}, classes)).
		WatchesRawSource(source.TypedKind(m.GetCache(), &karpv1.NodeClaim{}, claims)).
		WatchesRawSource(source.TypedChannel(c.templates.Inventory().Subscribe(ctx), views)).
		WithOptions(controller.TypedOptions[Request]{MaxConcurrentReconciles: c.templates.MaxConcurrentBuilds()}).
		Complete(c)
}

// isRelevant reports whether an update changes what is built: the spec; the finalizer, since building
// starts when it was added; or in the status the checksum, the boot data of builder VMs, or that a refresh is due.
func isRelevant(e event.TypedUpdateEvent[*v1alpha1.ProxmoxTemplate]) bool {
	before, after := e.ObjectOld, e.ObjectNew
	return before.Generation != after.Generation || !slices.Equal(before.Finalizers, after.Finalizers) || before.Hash() != after.Hash()
}

func add(q queue, requests []Request) {
	for _, request := range requests {
		q.AddAfter(request, batchInterval)
	}
}

// enqueueAllHosts enqueues a ProxmoxTemplate on every Host.
func (c *Controller) enqueueAllHosts(t *v1alpha1.ProxmoxTemplate, q queue) {
	for _, host := range c.templates.Inventory().View().Hosts() {
		q.Add(Request{Template: t.Name, Region: host.Region, Host: host.Name})
	}
}

// pendingRequests returns the Hosts that need reconciling.
func (c *Controller) pendingRequests(ctx context.Context) []Request {
	observed, err := observeDesired(ctx, c.kube)
	if err != nil {
		log.FromContext(ctx).Error(err, "listing pending template builds failed")
		return nil
	}
	var out []Request
	for _, desired := range observed.Desired {
		for _, key := range c.templates.PendingHosts(desired) {
			out = append(out, Request{Template: desired.Name, Region: key.Region, Host: key.Host})
		}
	}
	return out
}

// Reconcile builds the Template of one ProxmoxTemplate on one Host.
func (c *Controller) Reconcile(ctx context.Context, request Request) (reconcile.Result, error) {
	t := &v1alpha1.ProxmoxTemplate{}
	if err := c.kube.Get(ctx, types.NamespacedName{Name: request.Template}, t); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	if !controllerutil.ContainsFinalizer(t, v1alpha1.TerminationFinalizer) {
		// Anything created without the finalizer could be orphaned.
		return reconcile.Result{}, nil
	}
	observed, err := observeDesired(ctx, c.kube)
	if err != nil {
		return reconcile.Result{}, err
	}
	after, err := c.templates.ReconcileHost(ctx, template.NewDesired(t, observed.Classes), request.Region, request.Host, ListUsage(c.kube, c.templates, t))
	if err != nil {
		return reconcile.Result{}, fmt.Errorf("reconciling template %s on host %s: %w", request.Template, request.Host, err)
	}
	return reconcile.Result{RequeueAfter: after}, nil
}
