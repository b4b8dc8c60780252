// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Package nodeclass reconciles ProxmoxNodeClasses. It sets their status: the Hosts where their
// VMs can be launched, and for other Hosts the reason and how to fix it. It maintains the hashes
// that core and the cloud provider find drifted Nodes by, and keeps a deleted NodeClass until no
// NodeClaim uses it. Checker evaluates a NodeClass, Controller stores the result. checks.go lists
// all checks.
package nodeclass

import (
	"context"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/events"
	nodeclaimutils "sigs.k8s.io/karpenter/pkg/utils/nodeclaim"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/lifecycle"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/watch"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
)

// Controller reconciles NodeClasses.
type Controller struct {
	*Checker
	lifecycle.Reconciler[*v1alpha1.ProxmoxNodeClass]
}

// NewController returns a Controller.
func NewController(kube client.Client, recorder events.Recorder, deps Deps) *Controller {
	c := &Controller{Checker: NewChecker(kube, deps)}
	c.Reconciler = lifecycle.Reconciler[*v1alpha1.ProxmoxNodeClass]{
		Kube: kube, Recorder: recorder, Kind: "NodeClass", Users: c.users, Annotate: c.writeHashes, SetStatus: c.setStatus,
	}
	return c
}

// Register registers the Controller with a manager.
func (c *Controller) Register(ctx context.Context, m manager.Manager) error {
	return ctrl.NewControllerManagedBy(m).
		Named("nodeclass.lifecycle.proxmox").
		For(&v1alpha1.ProxmoxNodeClass{}).
		Watches(&karpv1.NodeClaim{}, handler.EnqueueRequestsFromMapFunc(classOf), builder.WithPredicates(watch.Deletions())).
		Watches(&karpv1.NodeClaim{}, handler.EnqueueRequestsFromMapFunc(c.classToHash)).
		Watches(&v1alpha1.ProxmoxUnmanagedTemplate{}, handler.EnqueueRequestsFromMapFunc(c.classesUsing(v1alpha1.ProxmoxUnmanagedTemplateKind))).
		Watches(&v1alpha1.ProxmoxTemplate{}, handler.EnqueueRequestsFromMapFunc(c.classesUsing(v1alpha1.ProxmoxTemplateKind))).
		WatchesRawSource(watch.Inventory(ctx, c.inventory, m.GetClient(), &v1alpha1.ProxmoxNodeClassList{})).
		WithOptions(controller.Options{MaxConcurrentReconciles: 10}).
		Complete(reconcile.AsReconciler(m.GetClient(), c))
}

// classOf returns the NodeClass of a NodeClaim.
func classOf(_ context.Context, o client.Object) []reconcile.Request {
	claim, ok := o.(*karpv1.NodeClaim)
	if !ok || !instance.IsOurs(o) {
		return nil
	}
	return []reconcile.Request{{NamespacedName: types.NamespacedName{Name: claim.Spec.NodeClassRef.Name}}}
}

// classesUsing returns a function that lists the NodeClasses that refer to a template.
func (c *Controller) classesUsing(kind string) handler.MapFunc {
	return func(ctx context.Context, template client.Object) []reconcile.Request {
		classes := &v1alpha1.ProxmoxNodeClassList{}
		if err := c.Kube.List(ctx, classes); err != nil {
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

// claims returns the NodeClaims of a class. They are those of the cache and must not be changed.
func (c *Controller) claims(ctx context.Context, class *v1alpha1.ProxmoxNodeClass) ([]karpv1.NodeClaim, error) {
	claims := &karpv1.NodeClaimList{}
	if err := c.Kube.List(ctx, claims, nodeclaimutils.ForNodeClass(class), client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("listing NodeClaims of NodeClass %s: %w", class.Name, err)
	}
	return claims.Items, nil
}

// users returns the names of the NodeClaims of a class. Without their NodeClass, Nodes could neither
// drift nor be reconciled.
func (c *Controller) users(ctx context.Context, class *v1alpha1.ProxmoxNodeClass) ([]string, error) {
	claims, err := c.claims(ctx, class)
	names := make([]string, 0, len(claims))
	for i := range claims {
		names = append(names, claims[i].Name)
	}
	return names, err
}

// setStatus checks a NodeClass.
func (c *Controller) setStatus(ctx context.Context, class *v1alpha1.ProxmoxNodeClass) (time.Duration, error) {
	if err := c.Check(ctx, class); err != nil {
		return 0, err
	}
	class.RecordVersion()
	return watch.Again, nil // Secrets are not watched: that would cache all of the cluster
}
