// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Package garbagecollection deletes orphans: VMs, boot drives and Nodes whose
// Claim does not exist, for example after a controller was killed or a Claim's finalizer
// was removed.
package garbagecollection

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
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

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/bootdata"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance/deletion"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance/plan"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
)

// Policy defines what happens to orphans.
type Policy string

const (
	// PolicyDelete deletes orphans after the grace period.
	PolicyDelete Policy = "delete"
	// PolicyReport only reports them.
	PolicyReport Policy = "report"
)

// Rules define what an orphan is, and when it is deleted.
type Rules struct {
	Policy Policy
	// GracePeriod is how long something must be an orphan before it is deleted.
	GracePeriod time.Duration
	// DeletionMaxFraction is the fraction of all VMs above which no orphan is deleted: after an
	// etcd restore, or with the wrong kubeconfig, live Nodes have no Claim.
	DeletionMaxFraction instance.SafetyThreshold
}

// Deps are the dependencies of the Controller.
type Deps struct {
	Kube client.Client
	// Reader is not cached. It confirms that a Claim does not exist: the VM of a Claim
	// that is not in the cache yet would be an orphan.
	Reader    client.Reader
	VMs       *instance.Provider
	Deleter   *deletion.Deleter
	Planner   *plan.Planner
	Inventory *inventory.Inventory
	// Tokens is nil in the controller, which must not list Secrets: Kubernetes deletes
	// join tokens with their Claim.
	Tokens   *bootdata.Tokens
	Recorder events.Recorder
	Clock    clock.PassiveClock
	Rules    Rules
	// Interval between two reconciles.
	PollInterval time.Duration
	Registerer   prometheus.Registerer
}

// Controller deletes orphans.
type Controller struct {
	deps    Deps
	metrics *metrics
	// orphanSince is since when VMs have no Claim, by the UID of the Claim.
	orphanSince map[string]time.Time
}

// NewController returns a Controller.
func NewController(deps Deps) *Controller {
	return &Controller{deps: deps, metrics: newMetrics(deps.Registerer), orphanSince: map[string]time.Time{}}
}

// Name returns the name of the controller in logs and metrics.
func (c *Controller) Name() string { return "nodeclaim.garbagecollection.proxmox" }

// Register registers the Controller.
func (c *Controller) Register(_ context.Context, m manager.Manager) error {
	return ctrl.NewControllerManagedBy(m).
		Named(c.Name()).
		WatchesRawSource(singleton.Source()).
		Complete(singleton.AsReconciler(c))
}

// Reconcile deletes orphans once. It lists Proxmox before Kubernetes: otherwise a VM
// whose Claim was created in between would be an orphan.
func (c *Controller) Reconcile(ctx context.Context) (reconciler.Result, error) {
	result := reconciler.Result{RequeueAfter: c.deps.PollInterval}
	vms, err := c.deps.VMs.List()
	if err != nil && !errors.Is(err, instance.ErrNotPolled) {
		return result, err
	}
	reservations := c.deps.Inventory.View().Reservations
	found, incomplete := c.listResources(ctx, err == nil)
	if incomplete != nil {
		log.FromContext(ctx).Error(incomplete, "listing resources failed, retrying at the next interval")
	}
	unfinished := c.deps.Deleter.UnfinishedOrphans()
	if len(vms) == 0 && len(unfinished) == 0 && len(reservations) == 0 && found.isEmpty() {
		c.orphanVMs(nil, nil)
		return result, nil
	}
	claims, err := c.listClaims(ctx, c.deps.Kube)
	if err == nil && (found.swept || hasOrphans(claims, slices.Concat(vms, unfinished), reservations, found)) {
		// A new Claim may not be in the cache yet.
		claims, err = c.listClaims(ctx, c.deps.Reader)
	}
	if err != nil {
		return result, err
	}
	c.releaseReservations(vms, claims)
	// Before the VMs, which take longer: core provisions nothing because of some Nodes.
	for _, orphan := range c.orphanResources(ctx, found, vms, claims) {
		c.deleteResource(ctx, orphan)
	}
	c.deleteVMs(ctx, vms, claims)
	return result, nil
}

// hasOrphans reports whether anything has no Claim.
func hasOrphans(claims map[string]*karpv1.NodeClaim, vms []instance.VM, reservations map[string]inventory.Reservation, found resources) bool {
	for _, vm := range vms {
		if claims[vm.ClaimUID] == nil {
			return true
		}
	}
	for uid := range reservations {
		if claims[uid] == nil {
			return true
		}
	}
	claimed := providerIDs(claims)
	if slices.ContainsFunc(found.nodes, func(node *corev1.Node) bool { return !claimed[node.Spec.ProviderID] }) {
		return true
	}
	return slices.ContainsFunc(found.drives, func(drive deletion.BootDrive) bool { return claims[drive.ClaimUID] == nil })
}

// listClaims returns all Claims by UID.
func (c *Controller) listClaims(ctx context.Context, reader client.Reader) (map[string]*karpv1.NodeClaim, error) {
	list := &karpv1.NodeClaimList{}
	if err := reader.List(ctx, list); err != nil {
		return nil, fmt.Errorf("listing NodeClaims: %w", err)
	}
	out := make(map[string]*karpv1.NodeClaim, len(list.Items))
	for i := range list.Items {
		out[string(list.Items[i].UID)] = &list.Items[i]
	}
	return out, nil
}

// deleteVMs deletes the VMs whose Claim does not exist.
func (c *Controller) deleteVMs(ctx context.Context, vms []instance.VM, claims map[string]*karpv1.NodeClaim) {
	orphans := c.orphanVMs(vms, claims)
	unexpected := c.countUnexpected(orphans)
	all := len(vms) - (len(orphans) - unexpected)
	if c.deps.Rules.DeletionMaxFraction.IsExceeded(unexpected, all) {
		log.FromContext(ctx).Error(nil, "too many orphaned VMs, deleting none; check whether etcd was restored or this is the wrong Kubernetes cluster",
			"orphans", unexpected, "vms", all)
		c.metrics.blocked.Inc()
		return
	}
	orphans = append(orphans, c.unlistedOrphans(vms, claims)...)
	// One region must not delay another.
	var wg sync.WaitGroup
	for _, region := range c.deps.Inventory.Regions() {
		inRegion := slices.DeleteFunc(slices.Clone(orphans), func(vm instance.VM) bool { return vm.Region != region })
		wg.Go(func() { c.deleteOrphans(ctx, inRegion) })
	}
	wg.Wait()
}

// deleteOrphans deletes VMs, or only reports them, according to the policy.
func (c *Controller) deleteOrphans(ctx context.Context, orphans []instance.VM) {
	for _, vm := range orphans {
		logger := log.FromContext(ctx).WithValues("NodeClaim", klog.KRef("", vm.Claim), "vmid", vm.VMID, "region", vm.Region, "host", vm.Host, "claim-uid", vm.ClaimUID)
		if c.deps.Rules.Policy == PolicyReport {
			logger.V(1).Info("found orphaned VM, keeping it by policy")
			if blocked, ok := errors.AsType[*instance.BlockedError](deletion.CheckOrphan(ctx, vm)); ok {
				c.deps.Recorder.Publish(orphanBlockedEvent(vm, blocked))
			} else {
				c.deps.Recorder.Publish(orphanFoundEvent(vm))
			}
			continue
		}
		deleted, err := c.deps.Deleter.DeleteOrphan(log.IntoContext(ctx, logger), vm)
		blocked, isBlocked := errors.AsType[*instance.BlockedError](err)
		switch {
		case isBlocked:
			logger.V(1).Info("orphaned VM cannot be deleted", "reason", blocked.Reason, "message", blocked.Message)
			c.deps.Recorder.Publish(orphanBlockedEvent(vm, blocked))
		case err != nil:
			logger.Error(err, "deleting orphaned VM failed")
		case deleted:
			logger.Info("deleted orphaned VM")
			c.metrics.deleted.WithLabelValues(kindVM).Inc()
			c.deps.Recorder.Publish(orphanDeletedEvent(vm))
		}
	}
}

// countUnexpected returns the number of orphans that no administrator caused by fencing
// their Host.
func (c *Controller) countUnexpected(orphans []instance.VM) (n int) {
	for _, vm := range orphans {
		if !c.deps.Deleter.HasAbandoned(vm.ClaimUID) {
			n++
		}
	}
	return n
}

// unlistedOrphans returns the orphans whose deletion is unfinished, although Proxmox does
// not list their VMs any more: a disk remains.
func (c *Controller) unlistedOrphans(vms []instance.VM, claims map[string]*karpv1.NodeClaim) []instance.VM {
	listed := claimUIDs(vms)
	return slices.DeleteFunc(c.deps.Deleter.UnfinishedOrphans(), func(vm instance.VM) bool {
		return listed[vm.ClaimUID] || claims[vm.ClaimUID] != nil || c.deps.VMs.OutOfService(vm) == inventory.Offline
	})
}

// releaseReservations releases the reservations of Claims that do not exist, unless they have
// a VM that will be deleted.
func (c *Controller) releaseReservations(vms []instance.VM, claims map[string]*karpv1.NodeClaim) {
	withVM, view := claimUIDs(vms), c.deps.Inventory.View()
	for uid, reservation := range view.Reservations {
		hasVM := withVM[uid] && !c.deps.Deleter.HasAbandoned(uid)
		if claims[uid] == nil && !hasVM && view.Snapshots[reservation.Region] != nil && c.deps.Clock.Since(reservation.CreatedAt) > c.deps.Rules.GracePeriod {
			c.deps.Planner.Release(uid)
		}
	}
}

func claimUIDs(vms []instance.VM) map[string]bool {
	out := map[string]bool{}
	for _, vm := range vms {
		out[vm.ClaimUID] = true
	}
	return out
}

// orphanVMs returns and counts the VMs without a Claim for the whole grace period, except those
// on Hosts that are offline or were removed: they cannot be deleted now.
func (c *Controller) orphanVMs(vms []instance.VM, claims map[string]*karpv1.NodeClaim) []instance.VM {
	now := c.deps.Clock.Now()
	orphanSince := map[string]time.Time{}
	var out []instance.VM
	for _, vm := range vms {
		if claims[vm.ClaimUID] != nil {
			continue
		}
		since, ok := c.orphanSince[vm.ClaimUID]
		if !ok {
			since = now
		}
		orphanSince[vm.ClaimUID] = since
		if c.deps.VMs.OutOfService(vm) != inventory.Offline && now.Sub(since) >= c.deps.Rules.GracePeriod {
			out = append(out, vm)
		}
	}
	c.orphanSince = orphanSince
	c.metrics.orphans.WithLabelValues(kindVM).Set(float64(len(out)))
	return out
}
