// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Package build makes the Templates of ProxmoxTemplates, each Host for itself: one
// that is slow or broken keeps no other from its Template.
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

// Request is a ProxmoxTemplate on one Host.
type Request struct{ Template, Region, Host string }

// settle gathers a burst of changes into one run.
const settle = 500 * time.Millisecond

// Controller tends Hosts.
type Controller struct {
	kube      client.Client
	templates *template.Provider
}

// NewController makes the Controller.
func NewController(kube client.Client, templates *template.Provider) *Controller {
	return &Controller{kube: kube, templates: templates}
}

type queue = workqueue.TypedRateLimitingInterface[Request]

// Register the Controller. Its workers wait for Proxmox's tasks, and their number is
// how many Hosts are worked on at once.
func (c *Controller) Register(ctx context.Context, m manager.Manager) error {
	changed := handler.TypedFuncs[*v1alpha1.ProxmoxTemplate, Request]{
		CreateFunc: func(_ context.Context, e event.TypedCreateEvent[*v1alpha1.ProxmoxTemplate], q queue) {
			c.everywhere(e.Object, q)
		},
		UpdateFunc: func(_ context.Context, e event.TypedUpdateEvent[*v1alpha1.ProxmoxTemplate], q queue) {
			c.everywhere(e.ObjectNew, q)
		},
	}
	classes := handler.TypedEnqueueRequestsFromMapFunc(func(ctx context.Context, class *v1alpha1.ProxmoxNodeClass) []Request {
		if class.Spec.InstanceTemplateRef.Kind != v1alpha1.ProxmoxTemplateKind {
			return nil
		}
		return c.due(ctx, class.Spec.InstanceTemplateRef.Name)
	})
	claims := handler.TypedFuncs[*karpv1.NodeClaim, Request]{
		// The last of its clones is what an old Template waits for.
		DeleteFunc: func(ctx context.Context, _ event.TypedDeleteEvent[*karpv1.NodeClaim], q queue) {
			add(q, c.due(ctx, ""))
		},
	}
	views := handler.TypedFuncs[uint64, Request]{
		GenericFunc: func(ctx context.Context, _ event.TypedGenericEvent[uint64], q queue) { add(q, c.due(ctx, "")) },
	}
	return builder.TypedControllerManagedBy[Request](m).
		Named("template.build.proxmox").
		WatchesRawSource(source.TypedKind(m.GetCache(), &v1alpha1.ProxmoxTemplate{}, changed, predicate.Or(
			predicate.TypedGenerationChangedPredicate[*v1alpha1.ProxmoxTemplate]{}, finalizersChanged{}))).
		WatchesRawSource(source.TypedKind(m.GetCache(), &v1alpha1.ProxmoxNodeClass{}, classes)).
		WatchesRawSource(source.TypedKind(m.GetCache(), &karpv1.NodeClaim{}, claims)).
		WatchesRawSource(source.TypedChannel(c.templates.Inventory.Subscribe(ctx), views)).
		WithOptions(controller.TypedOptions[Request]{MaxConcurrentReconciles: c.templates.Settings.Builds}).
		Complete(c)
}

// finalizersChanged lets the event pass after which work may begin.
type finalizersChanged struct {
	predicate.TypedFuncs[*v1alpha1.ProxmoxTemplate]
}

// Update compares the finalizers.
func (finalizersChanged) Update(e event.TypedUpdateEvent[*v1alpha1.ProxmoxTemplate]) bool {
	return !slices.Equal(e.ObjectOld.Finalizers, e.ObjectNew.Finalizers)
}

func add(q queue, requests []Request) {
	for _, request := range requests {
		q.AddAfter(request, settle)
	}
}

// everywhere asks for a run on every Host.
func (c *Controller) everywhere(t *v1alpha1.ProxmoxTemplate, q queue) {
	for _, host := range c.templates.Inventory.View().Hosts() {
		q.Add(Request{Template: t.Name, Region: host.Region, Host: host.Name})
	}
}

// due lists the Hosts where something is to be done, for one ProxmoxTemplate or all.
func (c *Controller) due(ctx context.Context, name string) []Request {
	w, err := Observe(ctx, c.kube)
	if err != nil {
		log.FromContext(ctx).Error(err, "looking for work on templates")
		return nil
	}
	var out []Request
	for _, wish := range w.Desired {
		if name != "" && wish.Name != name {
			continue
		}
		for _, spot := range c.templates.PendingHosts(wish) {
			out = append(out, Request{Template: wish.Name, Region: spot.Region, Host: spot.Host})
		}
	}
	return out
}

// Reconcile tends one Host for one ProxmoxTemplate.
func (c *Controller) Reconcile(ctx context.Context, request Request) (reconcile.Result, error) {
	t := &v1alpha1.ProxmoxTemplate{}
	if err := c.kube.Get(ctx, types.NamespacedName{Name: request.Template}, t); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	if !controllerutil.ContainsFinalizer(t, v1alpha1.TerminationFinalizer) {
		// Whatever is made before it is there could be left behind.
		return reconcile.Result{}, nil
	}
	w, err := Observe(ctx, c.kube)
	if err != nil {
		return reconcile.Result{}, err
	}
	again, err := c.templates.ReconcileHost(ctx, template.NewDesired(t, w.Classes), request.Region, request.Host, w.Usage(t))
	if err != nil {
		return reconcile.Result{}, fmt.Errorf("tending template %s on host %s, %w", request.Template, request.Host, err)
	}
	return reconcile.Result{RequeueAfter: again}, nil
}
