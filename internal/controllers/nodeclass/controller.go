// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Package nodeclass sets the status of ProxmoxNodeClasses: the Hosts where their VMs can be
// launched, and for other Hosts the reason and how to fix it. Checker evaluates a
// NodeClass, Controller stores the result. checks.go lists all checks.
package nodeclass

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/watch"
)

// recheckInterval is how often Secrets are read again. They are not watched, since that
// would cache all Secrets of the cluster.
const recheckInterval = time.Minute

// notReadyRecheckInterval is how often a NodeClass that is not Ready is checked.
const notReadyRecheckInterval = 20 * time.Second

// Controller sets the status of NodeClasses.
type Controller struct {
	*Checker
	kube client.Client
}

// NewController returns a Controller.
func NewController(kube client.Client, deps Deps) *Controller {
	return &Controller{Checker: NewChecker(kube, deps), kube: kube}
}

// Register registers the Controller with a manager.
func (c *Controller) Register(ctx context.Context, m manager.Manager) error {
	return ctrl.NewControllerManagedBy(m).
		Named("nodeclass.status.proxmox").
		For(&v1alpha1.ProxmoxNodeClass{}).
		Watches(&v1alpha1.ProxmoxUnmanagedTemplate{}, handler.EnqueueRequestsFromMapFunc(c.classesUsing(v1alpha1.ProxmoxUnmanagedTemplateKind))).
		Watches(&v1alpha1.ProxmoxTemplate{}, handler.EnqueueRequestsFromMapFunc(c.classesUsing(v1alpha1.ProxmoxTemplateKind))).
		WatchesRawSource(watch.Inventory(ctx, c.inventory, m.GetClient(), &v1alpha1.ProxmoxNodeClassList{})).
		WithOptions(controller.Options{MaxConcurrentReconciles: 10}).
		Complete(reconcile.AsReconciler(m.GetClient(), c))
}

// classesUsing returns a function that lists the NodeClasses that refer to a template.
func (c *Controller) classesUsing(kind string) handler.MapFunc {
	return func(ctx context.Context, template client.Object) []reconcile.Request {
		classes := &v1alpha1.ProxmoxNodeClassList{}
		if err := c.kube.List(ctx, classes); err != nil {
			return nil
		}
		var out []reconcile.Request
		for _, class := range classes.Items {
			if class.Spec.InstanceTemplateRef.Kind == kind && class.Spec.InstanceTemplateRef.Name == template.GetName() {
				out = append(out, reconcile.Request{NamespacedName: types.NamespacedName{Name: class.Name}})
			}
		}
		return out
	}
}

// Reconcile checks one NodeClass and writes its status in one patch.
func (c *Controller) Reconcile(ctx context.Context, class *v1alpha1.ProxmoxNodeClass) (reconcile.Result, error) {
	stored := class.DeepCopy()
	if err := c.Check(ctx, class); err != nil {
		return reconcile.Result{}, err
	}
	class.RecordVersion()
	if !equality.Semantic.DeepEqual(stored, class) {
		// The patch replaces the whole list of conditions, hence the optimistic lock.
		err := c.kube.Status().Patch(ctx, class, client.MergeFromWithOptions(stored, client.MergeFromWithOptimisticLock{}))
		if apierrors.IsConflict(err) {
			// Another controller wrote first; its write triggers another reconcile.
			return reconcile.Result{RequeueAfter: time.Second}, nil
		}
		if err != nil {
			return reconcile.Result{}, client.IgnoreNotFound(err)
		}
	}
	if !class.StatusConditions().Root().IsTrue() {
		return reconcile.Result{RequeueAfter: notReadyRecheckInterval}, nil
	}
	return reconcile.Result{RequeueAfter: recheckInterval}, nil
}
