// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Package garbagecollection removes what a Claim left behind: a controller that
// died at the wrong moment, or a Claim that was torn out by force, must not leave
// a VM running, an ISO lying or a token valid.
package garbagecollection

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/awslabs/operatorpkg/reconciler"
	"github.com/awslabs/operatorpkg/singleton"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/events"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
)

// brakeFloor is how many orphans at once are never too many.
const brakeFloor = 3

// Policy says what happens to orphans.
type Policy string

const (
	// Remove removes orphans after the grace period.
	PolicyRemove Policy = "remove"
	// Report only tells about them.
	PolicyReport Policy = "report"
)

// Rules say when something is an orphan, and what becomes of it.
type Rules struct {
	Policy Policy
	// Grace is how long something must look orphaned before it is removed.
	GracePeriod time.Duration
	// Sweep is how often tokens are looked through. Storages take turns.
	SweepInterval time.Duration
	// Brake is the share of all VMs above which none is removed: after an etcd
	// restore, or with the wrong kubeconfig, live nodes look like orphans.
	MaxFraction float64
}

// Deps of the Controller.
type Deps struct {
	Kube client.Client
	// Reader reads Claims past the cache, when one seems to be gone: a Claim that the
	// cache has not seen yet would make its VM an orphan.
	Reader    client.Reader
	Instances *instance.Provider
	Recorder  events.Recorder
	Rules
	// Interval between two looks.
	Interval   time.Duration
	Registerer prometheus.Registerer
}

// Controller collects orphans.
type Controller struct {
	Deps
	clock     clock.Clock
	metrics   *metrics
	suspected map[string]time.Time
	// leftoversAt is when tokens are looked through next.
	leftoversAt time.Time
}

// NewController makes the Controller.
func NewController(deps Deps) *Controller {
	return &Controller{Deps: deps, clock: deps.Instances.Clock, metrics: newMetrics(deps.Registerer), suspected: map[string]time.Time{}}
}

// Name of the controller in logs and metrics.
func (c *Controller) Name() string { return "nodeclaim.garbagecollection.proxmox" }

// Register the Controller.
func (c *Controller) Register(_ context.Context, m manager.Manager) error {
	return ctrl.NewControllerManagedBy(m).
		Named(c.Name()).
		WatchesRawSource(singleton.Source()).
		Complete(singleton.AsReconciler(c))
}

// Reconcile looks for orphans once. Proxmox is listed before Kubernetes: the
// other way round a Claim made in between would lose its VM.
func (c *Controller) Reconcile(ctx context.Context) (reconciler.Result, error) {
	again := reconciler.Result{RequeueAfter: c.Interval}
	vms, err := c.Instances.List()
	if err != nil {
		// A Cluster that was never read says nothing about orphans.
		return again, nil //nolint:nilerr // the inventory reports the failure itself
	}
	held := c.Instances.Inventory.View().Reservations
	found := c.look(ctx)
	if len(vms) == 0 && len(held) == 0 && found.none() {
		return again, nil
	}
	claims, err := c.claims(ctx, c.Kube)
	if err == nil && (found.swept || lacking(claims, vms, held, found)) {
		// The cache may not have seen a Claim yet that was just made.
		claims, err = c.claims(ctx, c.Reader)
	}
	if err != nil {
		return again, err
	}
	c.reservations(vms, claims)
	c.orphans(ctx, vms, claims)
	c.collect(ctx, found, vms, claims)
	return again, nil
}

// lacking tells whether there is anything without its Claim.
func lacking(claims map[string]*karpv1.NodeClaim, vms []instance.VM, held map[string]inventory.Reservation, found leftovers) bool {
	for _, vm := range vms {
		if claims[vm.ClaimUID] == nil {
			return true
		}
	}
	for uid := range held {
		if claims[uid] == nil {
			return true
		}
	}
	claimed := providerIDs(claims)
	if slices.ContainsFunc(found.nodes, func(node *corev1.Node) bool { return !claimed[node.Spec.ProviderID] }) {
		return true
	}
	return slices.ContainsFunc(found.drives, func(drive instance.BootDrive) bool { return claims[drive.ClaimUID] == nil })
}

// claims by UID, as a reader has them.
func (c *Controller) claims(ctx context.Context, reader client.Reader) (map[string]*karpv1.NodeClaim, error) {
	list := &karpv1.NodeClaimList{}
	if err := reader.List(ctx, list); err != nil {
		return nil, fmt.Errorf("listing nodeclaims, %w", err)
	}
	out := make(map[string]*karpv1.NodeClaim, len(list.Items))
	for i := range list.Items {
		out[string(list.Items[i].UID)] = &list.Items[i]
	}
	return out, nil
}

// orphans removes the VMs whose Claim is gone.
func (c *Controller) orphans(ctx context.Context, vms []instance.VM, claims map[string]*karpv1.NodeClaim) {
	orphans := c.due(vms, claims)
	c.metrics.orphans.WithLabelValues(kindVM).Set(float64(len(orphans)))
	if len(orphans) > brakeFloor && float64(len(orphans)) > c.MaxFraction*float64(len(vms)) {
		log.FromContext(ctx).Error(nil, "too many VMs look orphaned at once, removing none: was etcd restored, or is this the wrong Kubernetes cluster?",
			"orphans", len(orphans), "vms", len(vms))
		c.metrics.braked.Inc()
		return
	}
	for _, vm := range orphans {
		logger := log.FromContext(ctx).WithValues("NodeClaim", klog.KRef("", vm.Name), "vmid", vm.VMID, "region", vm.Region, "host", vm.Host, "claim-uid", vm.ClaimUID)
		if c.Policy == PolicyReport {
			logger.Info("a VM's claim is gone; not removing it, as the orphan policy says")
			c.Recorder.Publish(orphanFound(vm))
			continue
		}
		gone, err := c.Instances.DeleteOrphan(log.IntoContext(ctx, logger), vm)
		switch {
		case err != nil:
			logger.Error(err, "removing a VM whose claim is gone")
		case gone:
			logger.Info("removed a VM whose claim is gone")
			c.metrics.removed.WithLabelValues(kindVM).Inc()
			c.Recorder.Publish(orphanRemoved(vm))
		}
	}
}

// reservations gives back what Claims hold that are gone.
func (c *Controller) reservations(vms []instance.VM, claims map[string]*karpv1.NodeClaim) {
	withVM := map[string]bool{}
	for _, vm := range vms {
		withVM[vm.ClaimUID] = true
	}
	for uid, reservation := range c.Instances.Inventory.View().Reservations {
		if claims[uid] == nil && !withVM[uid] && c.clock.Since(reservation.CreatedAt) > c.GracePeriod {
			c.Instances.ReleaseClaim(uid)
		}
	}
}

// due are the VMs that have been without a Claim for the whole grace period.
func (c *Controller) due(vms []instance.VM, claims map[string]*karpv1.NodeClaim) []instance.VM {
	now := c.clock.Now()
	suspected := map[string]time.Time{}
	var out []instance.VM
	for _, vm := range vms {
		if claims[vm.ClaimUID] != nil {
			continue
		}
		since, ok := c.suspected[vm.ClaimUID]
		if !ok {
			since = now
		}
		suspected[vm.ClaimUID] = since
		if now.Sub(since) >= c.GracePeriod {
			out = append(out, vm)
		}
	}
	c.suspected = suspected
	return out
}
