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
	"maps"
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

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/bootdata"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance/deletion"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance/plan"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/since"
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
	// GracePeriod is how long a VM or a boot drive must be an orphan before it is deleted.
	GracePeriod time.Duration
	// DeletionMaxFraction is the fraction of all VMs above which no orphan is deleted: after an
	// etcd restore, or with the wrong kubeconfig, live Nodes have no Claim.
	DeletionMaxFraction instance.SafetyThreshold
}

// shortGracePeriod is the maximum for what is deleted without a VM, and for VMs that an administrator
// gave up.
const shortGracePeriod = time.Minute

func (r Rules) shortGracePeriod() time.Duration { return min(r.GracePeriod, shortGracePeriod) }

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
	// orphanSince is since when VMs are orphans.
	orphanSince since.Times[vmKey]
}

// vmKey identifies a VM by its place and by the UID of the Claim in its ownership mark.
type vmKey struct{ providerID, claimUID string }

// NewController returns a Controller.
func NewController(deps Deps) *Controller {
	return &Controller{deps: deps, metrics: newMetrics(deps.Registerer), orphanSince: since.New[vmKey](deps.Clock)}
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
		c.dueOrphans(nil)
		return result, nil
	}
	claims, err := c.listClaims(ctx, c.deps.Kube)
	if err != nil {
		return result, err
	}
	due := c.dueOrphans(findOrphans(vms, claims))
	if found.swept || len(due)+len(unfinished) > 0 || hasOrphans(claims, reservations, found) {
		// A new Claim may not be in the cache yet.
		if claims, err = c.listClaims(ctx, c.deps.Reader); err != nil {
			return result, err
		}
	}
	c.releaseReservations(vms, claims)
	// Before the VMs, which take longer: core provisions nothing because of some Nodes.
	for _, orphan := range c.orphanResources(ctx, found, vms, claims) {
		c.deleteResource(ctx, orphan)
	}
	confirmed := slices.DeleteFunc(findOrphans(vms, claims), func(orphan deletion.Orphan) bool {
		return !slices.ContainsFunc(due, func(o deletion.Orphan) bool { return keyOf(o) == keyOf(orphan) })
	})
	c.reportDuplicates(ctx, vms)
	c.deleteVMs(ctx, vms, confirmed, claims)
	return result, nil
}

// hasOrphans reports whether anything but a VM has no Claim.
func hasOrphans(claims map[string]*karpv1.NodeClaim, reservations map[string]inventory.Reservation, found resources) bool {
	for uid, reservation := range reservations {
		if claims[uid] == nil && !reservation.Template {
			return true
		}
	}
	claimed := claimsByProviderID(claims)
	if slices.ContainsFunc(found.nodes, func(node *corev1.Node) bool { return claimed[node.Spec.ProviderID] == nil }) {
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

// deleteVMs deletes orphaned VMs.
func (c *Controller) deleteVMs(ctx context.Context, vms []instance.VM, orphans []deletion.Orphan, claims map[string]*karpv1.NodeClaim) {
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
		inRegion := slices.DeleteFunc(slices.Clone(orphans), func(vm deletion.Orphan) bool { return vm.Region != region })
		wg.Go(func() {
			c.findClones(ctx, region, inRegion)
			c.deleteOrphans(ctx, inRegion)
		})
	}
	wg.Wait()
}

// findClones sets IsOurClone of the orphans of a region.
func (c *Controller) findClones(ctx context.Context, region string, orphans []deletion.Orphan) {
	var vmids []int
	for _, vm := range orphans {
		if !vm.IsConfirmed(vm.Config) {
			vmids = append(vmids, vm.VMID)
		}
	}
	clones, err := c.deps.Deleter.FindClones(ctx, region, vmids)
	if err != nil {
		log.FromContext(ctx).Error(err, "reading the tasks that cloned orphaned VMs failed", "region", region)
	}
	for i := range orphans {
		orphans[i].IsOurClone = clones[orphans[i].VMID]
	}
}

// deleteOrphans deletes VMs, or only reports them, according to the policy.
func (c *Controller) deleteOrphans(ctx context.Context, orphans []deletion.Orphan) {
	for _, vm := range orphans {
		logger := log.FromContext(ctx).WithValues("NodeClaim", klog.KRef("", vm.Claim), "vmid", vm.VMID, "region", vm.Region, "host", vm.Host, "claim-uid", vm.ClaimUID)
		if c.deps.Rules.Policy == PolicyReport {
			logger.V(1).Info("found orphaned VM, keeping it by policy")
			if blocked, ok := errors.AsType[*instance.BlockedError](c.deps.Deleter.CheckOrphan(ctx, vm)); ok {
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

// countUnexpected returns the number of orphans that are ours for certain, and that no administrator
// caused by fencing their Host. A user who may edit notes cannot make it larger.
func (c *Controller) countUnexpected(orphans []deletion.Orphan) (n int) {
	for _, vm := range orphans {
		if vm.IsConfirmed(vm.Config) && !c.deps.Deleter.HasAbandoned(vm.ClaimUID) {
			n++
		}
	}
	return n
}

// unlistedOrphans returns the orphans whose deletion is unfinished, although Proxmox does
// not list their VMs any more: a disk remains.
func (c *Controller) unlistedOrphans(vms []instance.VM, claims map[string]*karpv1.NodeClaim) []deletion.Orphan {
	listed := claimUIDs(vms)
	return slices.DeleteFunc(c.deps.Deleter.UnfinishedOrphans(), func(vm deletion.Orphan) bool {
		return listed[vm.ClaimUID] || claims[vm.ClaimUID] != nil || c.deps.VMs.HostObstacle(vm.VM, inventory.Request) != ""
	})
}

// releaseReservations releases the reservations of Claims that do not exist, unless they have
// a VM that will be deleted.
func (c *Controller) releaseReservations(vms []instance.VM, claims map[string]*karpv1.NodeClaim) {
	withVM, view := claimUIDs(vms), c.deps.Inventory.View()
	for uid, reservation := range view.Reservations {
		hasVM := withVM[uid] && !c.deps.Deleter.HasAbandoned(uid)
		if claims[uid] == nil && !reservation.Template && !hasVM && view.Snapshots[reservation.Region] != nil && c.deps.Clock.Since(reservation.CreatedAt) > c.deps.Rules.shortGracePeriod() {
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

func keyOf(vm deletion.Orphan) vmKey { return vmKey{vm.ProviderID(), vm.ClaimUID} }

// findOrphans returns the VMs whose Claim does not exist, or has a providerID with another VMID. It does
// not return VMs of which several belong to one Claim.
func findOrphans(vms []instance.VM, claims map[string]*karpv1.NodeClaim) (out []deletion.Orphan) {
	claimants, ambiguous := claimsByProviderID(claims), duplicates(vms)
	for _, vm := range vms {
		claim := claims[vm.ClaimUID]
		if claim != nil {
			// The region is not compared: it may have been renamed.
			if id, err := v1alpha1.ParseProviderID(claim.Status.ProviderID); err != nil || id.VMID == vm.VMID {
				continue
			}
		}
		if vm.IsConfirmed(vm.Config) && len(ambiguous[vm.ClaimUID]) > 0 {
			continue
		}
		orphan := deletion.Orphan{VM: vm, HasClaim: claim != nil}
		if claimant := claimants[vm.ProviderID()]; claimant != nil {
			orphan.Claimant = claimant.Name
		}
		out = append(out, orphan)
	}
	return out
}

// duplicates returns the VMs of which several have the mark, the serial and the UUID of one Claim, by the
// UID of the Claim.
func duplicates(vms []instance.VM) map[string][]instance.VM {
	out := map[string][]instance.VM{}
	for _, vm := range vms {
		if vm.IsConfirmed(vm.Config) {
			out[vm.ClaimUID] = append(out[vm.ClaimUID], vm)
		}
	}
	maps.DeleteFunc(out, func(_ string, vms []instance.VM) bool { return len(vms) < 2 })
	return out
}

// reportDuplicates reports VMs of which several belong to one Claim.
func (c *Controller) reportDuplicates(ctx context.Context, vms []instance.VM) {
	for _, vms := range duplicates(vms) {
		event := duplicateEvent(vms)
		log.FromContext(ctx).V(1).Info("several VMs belong to one NodeClaim", "NodeClaim", klog.KRef("", vms[0].Claim), "message", event.Message)
		c.deps.Recorder.Publish(event)
	}
}

// dueOrphans returns and counts the VMs that were orphans for the whole grace period, except those
// on Hosts that are offline or were removed: they cannot be deleted now.
func (c *Controller) dueOrphans(orphans []deletion.Orphan) (due []deletion.Orphan) {
	known := map[vmKey]bool{}
	for _, vm := range orphans {
		known[keyOf(vm)] = true
		grace := c.deps.Rules.GracePeriod
		if c.deps.Deleter.HasAbandoned(vm.ClaimUID) {
			grace = c.deps.Rules.shortGracePeriod()
		}
		if since := c.orphanSince.Observe(keyOf(vm)); c.deps.VMs.HostObstacle(vm.VM, inventory.Request) == "" && c.deps.Clock.Since(since) >= grace {
			due = append(due, vm)
		}
	}
	c.orphanSince.End(func(key vmKey) bool { return !known[key] })
	c.metrics.orphans.WithLabelValues(kindVM).Set(float64(len(due)))
	return due
}
