// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Package maintenance drains Hosts in maintenance. Controller records on each Claim of
// such a Host since when it is in maintenance. This makes core evaluate the Claim's drift
// at once, so its Node is replaced within the disruption budgets. Claims that are still
// there after a timeout are deleted, unless no Host is in service. ConfigMap reads which
// Hosts administrators put into maintenance in Kubernetes.
package maintenance

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/events"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/nodeclaim/report"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/watch"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
)

// Policy is what happens to the Nodes of a Host in maintenance.
type Policy string

// Policies.
const (
	// PolicyDrain replaces the Nodes on other Hosts.
	PolicyDrain Policy = "drain"
	// PolicyKeep leaves the Nodes alone. The Host only gets no new VMs.
	PolicyKeep Policy = "keep"
)

// Deps are the dependencies of the Controller.
type Deps struct {
	Kube      client.Client
	VMs       *instance.Provider
	Inventory *inventory.Inventory
	Recorder  events.Recorder
	Clock     clock.PassiveClock
	Policy    Policy
	// Timeout is how long after the start of the maintenance remaining Claims are deleted;
	// 0 for never.
	Timeout time.Duration
}

// Controller drains Hosts in maintenance.
type Controller struct{ deps Deps }

// NewController returns a Controller.
func NewController(deps Deps) *Controller { return &Controller{deps: deps} }

// isOurs reports whether a Claim is of our NodeClasses and not being deleted.
func isOurs(o client.Object) bool {
	return instance.IsOurs(o) && o.GetDeletionTimestamp().IsZero()
}

// Register registers the Controller.
func (c *Controller) Register(ctx context.Context, m manager.Manager) error {
	inMaintenance := func(host inventory.HostState) string {
		return fmt.Sprint(maintenanceOf(host), host.Has(inventory.MaintenanceUnknown))
	}
	return ctrl.NewControllerManagedBy(m).
		Named("host.maintenance.proxmox").
		For(&karpv1.NodeClaim{}, builder.WithPredicates(predicate.NewPredicateFuncs(isOurs))).
		WatchesRawSource(watch.Hosts(ctx, c.deps.Inventory, m.GetClient(), c.deps.VMs.HostOf, inMaintenance)).
		Complete(reconcile.AsReconciler(m.GetClient(), c))
}

// Reconcile records on one Claim whether its Host is in maintenance, and deletes the Claim
// after the timeout.
func (c *Controller) Reconcile(ctx context.Context, claim *karpv1.NodeClaim) (reconcile.Result, error) {
	if !isOurs(claim) || instance.LaunchedByOther(claim) {
		return reconcile.Result{}, nil
	}
	host, known := c.deps.VMs.HostOf(claim)
	if !known || host.Has(inventory.MaintenanceUnknown) || c.deps.VMs.IsUnavailable(claim) {
		// Its Cluster or its maintenance was not read yet, so the recorded maintenance
		// remains; or its state is outdated, so no replacement could be launched.
		return reconcile.Result{}, nil
	}
	if !host.Has(inventory.InMaintenance) || c.deps.Policy != PolicyDrain {
		return reconcile.Result{}, c.annotate(ctx, claim, "")
	}
	since, err := time.Parse(time.RFC3339, claim.Annotations[v1alpha1.AnnotationHostMaintenanceSince])
	if err != nil {
		since = c.deps.Clock.Now()
		if err := c.annotate(ctx, claim, since.UTC().Format(time.RFC3339)); err != nil {
			return reconcile.Result{}, err
		}
		log.FromContext(ctx).Info("draining node of a host in maintenance", "NodeClaim", klog.KObj(claim), "region", host.Region, "host", host.Name, "reason", maintenanceOf(host))
		c.report().Publish(ctx, claim, corev1.EventTypeNormal, v1alpha1.EventHostInMaintenance, c.drainMessage(host, since))
	}
	if c.deps.Timeout == 0 {
		return reconcile.Result{}, nil
	}
	if left := since.Add(c.deps.Timeout).Sub(c.deps.Clock.Now()); left > 0 {
		return reconcile.Result{RequeueAfter: left}, nil
	}
	if !isAnyUsable(c.deps.Inventory.View()) {
		c.report().Publish(ctx, claim, corev1.EventTypeWarning, v1alpha1.EventHostMaintenanceBlocked, fmt.Sprintf(
			"Host %s in region %s has been %s for more than %s, but no other host is in service, so the Node is kept; end the maintenance of a host, or delete the NodeClaim to drain the Node now",
			host.Name, host.Region, maintenanceOf(host), c.deps.Timeout))
		return reconcile.Result{RequeueAfter: watch.Again}, nil
	}
	return reconcile.Result{}, c.deleteClaim(ctx, claim, host, since)
}

// annotate records since when the Host of a Claim is in maintenance; empty if it is not.
func (c *Controller) annotate(ctx context.Context, claim *karpv1.NodeClaim, since string) error {
	if claim.Annotations[v1alpha1.AnnotationHostMaintenanceSince] == since {
		return nil
	}
	return client.IgnoreNotFound(instance.Annotate(ctx, c.deps.Kube, claim, map[string]string{v1alpha1.AnnotationHostMaintenanceSince: since}))
}

func (c *Controller) report() report.Reporter {
	return report.Reporter{Kube: c.deps.Kube, Recorder: c.deps.Recorder}
}

// isAnyUsable reports whether any Host accepts new VMs.
func isAnyUsable(view inventory.View) bool {
	return slices.ContainsFunc(view.Hosts(), func(host inventory.HostState) bool { return host.IsAvailable(inventory.Launch) })
}

// maintenanceOf describes who put a Host into maintenance.
func maintenanceOf(host inventory.HostState) string {
	why, _ := host.Condition(inventory.InMaintenance)
	return why.Message
}

func (c *Controller) drainMessage(host inventory.HostState, since time.Time) string {
	message := fmt.Sprintf("Host %s in region %s is %s; the Node is replaced on another host within the disruption budgets of its NodePool",
		host.Name, host.Region, maintenanceOf(host))
	if c.deps.Timeout == 0 {
		return message
	}
	return message + ", and deleted if it is still there at " + since.Add(c.deps.Timeout).UTC().Format(time.RFC3339)
}

// deleteClaim deletes a Claim that was not replaced in time. Core drains its Node: evictions
// respect PodDisruptionBudgets until the Claim's terminationGracePeriod ends.
func (c *Controller) deleteClaim(ctx context.Context, claim *karpv1.NodeClaim, host inventory.HostState, since time.Time) error {
	err := c.deps.Kube.Delete(ctx, claim, client.Preconditions{UID: &claim.UID})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("deleting NodeClaim %s on a host in maintenance: %w", claim.Name, err)
	}
	log.FromContext(ctx).Info("deleted NodeClaim on a host in maintenance", "NodeClaim", klog.KObj(claim), "region", host.Region, "host", host.Name, "since", since)
	c.report().Publish(ctx, claim, corev1.EventTypeWarning, v1alpha1.EventHostMaintenanceTimeout, fmt.Sprintf(
		"Host %s in region %s has been %s for more than %s and the Node was not replaced; its NodeClaim is deleted and its pods are evicted",
		host.Name, host.Region, maintenanceOf(host), c.deps.Timeout))
	return nil
}
