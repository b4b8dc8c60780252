// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Package vmhealth compares Claims with the VMs that exist: it starts a stopped VM, for
// example after its Host rebooted, and deletes a Claim whose VM is confirmed deleted, so
// it is replaced.
package vmhealth

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/awslabs/operatorpkg/reconciler"
	"github.com/awslabs/operatorpkg/singleton"
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
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/nodeclaim/report"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance/plan"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// Controller compares Claims with VMs.
type Controller struct {
	deps     Deps
	restarts *restarts
	reporter report.Reporter
}

// Deps are the dependencies of the Controller.
type Deps struct {
	Kube     client.Client
	VMs      *instance.Provider
	Power    *instance.Power
	Planner  *plan.Planner
	Launches *instance.LaunchTracker
	Recorder events.Recorder
	Clock    clock.Clock
	// Interval is how often Claims and VMs are compared; the poll interval.
	PollInterval time.Duration
	// Timeout limits one comparison.
	Timeout  time.Duration
	Restarts RestartPolicy
}

// NewController returns a Controller.
func NewController(deps Deps) *Controller {
	return &Controller{
		deps: deps, restarts: newRestarts(deps.Clock, deps.Restarts),
		reporter: report.Reporter{Kube: deps.Kube, Recorder: deps.Recorder},
	}
}

// Register registers the Controller.
func (c *Controller) Register(_ context.Context, m manager.Manager) error {
	return ctrl.NewControllerManagedBy(m).
		Named(c.Name()).
		WatchesRawSource(singleton.Source()).
		Complete(singleton.AsReconciler(c))
}

// Name returns the name of the controller in logs and metrics.
func (c *Controller) Name() string { return "nodeclaim.vmhealth.proxmox" }

// Reconcile compares all Claims once. It sends requests to Proxmox only for VMs that are
// stopped or missing.
func (c *Controller) Reconcile(ctx context.Context) (reconciler.Result, error) {
	// Claims of a region that was never polled are skipped: their VMs may exist.
	vms, err := c.deps.VMs.List()
	if err != nil && !errors.Is(err, instance.ErrNotPolled) {
		return reconciler.Result{}, err
	}
	byClaim := make(map[string]instance.VM, len(vms))
	for _, vm := range vms {
		byClaim[vm.ClaimUID] = vm
	}
	claims := &karpv1.NodeClaimList{}
	if err := c.deps.Kube.List(ctx, claims); err != nil {
		return reconciler.Result{}, fmt.Errorf("listing NodeClaims: %w", err)
	}
	// After a restart the ledger does not have the VMs of a NodePool. Those of deleted Claims may be
	// released already.
	c.deps.Planner.RestoreReservation(slices.DeleteFunc(slices.Clone(claims.Items), func(claim karpv1.NodeClaim) bool {
		return claim.DeletionTimestamp != nil
	})...)
	// A VM whose start hangs must not delay the next comparison.
	ctx, cancel := context.WithTimeout(ctx, c.deps.Timeout)
	defer cancel()
	var wg sync.WaitGroup
	for region, r := range c.deps.VMs.Compare(claims.Items, byClaim) {
		for _, claim := range r.Existing {
			wg.Go(func() { c.reconcileVM(ctx, claim, byClaim[string(claim.UID)], r.Launched) })
		}
		if c.deps.Restarts.ReplacementMaxFraction.IsExceeded(len(r.Missing), r.Launched) {
			wg.Go(func() { c.reportMissingBlocked(ctx, region, r.Missing, r.Launched) })
			continue
		}
		for _, claim := range r.Missing {
			wg.Go(func() { c.reconcileMissing(ctx, claim) })
		}
	}
	waitFor(ctx, &wg)
	return reconciler.Result{RequeueAfter: c.deps.PollInterval}, nil
}

// waitFor waits until all is done or the context ends. A request that changes something
// outlives its context; the next comparison skips a Claim that is still busy.
func waitFor(ctx context.Context, wg *sync.WaitGroup) {
	done := make(chan struct{})
	go func() {
		wg.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-ctx.Done():
	}
}

// pausedStatuses are those of VMs that QEMU or another user paused.
var pausedStatuses = []string{"paused", "io-error", "internal-error", "guest-panicked"}

// reconcileVM handles a VM that exists. all is the number of VMs in its region.
func (c *Controller) reconcileVM(ctx context.Context, claim *karpv1.NodeClaim, vm instance.VM, all int) {
	if vm.Status == "running" {
		c.restarts.observeRunning(vm.ClaimUID)
		c.reportRunning(ctx, claim, vm)
	}
	obstacle := c.deps.VMs.HostObstacle(vm, inventory.Keep|inventory.Request)
	switch {
	case vm.Status == "stopped" && vm.UnderHA():
		c.reportStoppedByHA(ctx, claim, vm)
	case vm.Status == "stopped" && obstacle == "":
		c.restart(ctx, claim, vm, all)
	case vm.Status == "stopped" && obstacle == inventory.InMaintenance:
		c.reportSuspended(ctx, claim, vm, "is in maintenance")
	case vm.Status == "stopped" && obstacle == inventory.Excluded:
		c.reportSuspended(ctx, claim, vm, "is excluded by settings")
	case slices.Contains(pausedStatuses, vm.Status) && obstacle == "":
		if c.restarts.recordBlocked(vm) { // not in the middle of a migration or a snapshot
			c.reportProblem(ctx, claim, v1alpha1.EventVMPaused, pausedMessage(vm))
		}
	default:
		c.recordHost(ctx, claim, vm)
		c.checkJoined(claim, vm)
	}
}

// reconcileMissing confirms that the VM is deleted, then deletes the Claim.
func (c *Controller) reconcileMissing(ctx context.Context, claim *karpv1.NodeClaim) {
	id, err := v1alpha1.ParseProviderID(claim.Status.ProviderID)
	if err != nil {
		return
	}
	if vm, err := c.deps.VMs.Get(ctx, id); !errors.Is(err, proxmox.ErrNotFound) && (err != nil || vm.ClaimUID == string(claim.UID)) {
		return
	}
	log.FromContext(ctx).Info("VM does not exist, deleting its NodeClaim", "NodeClaim", klog.KObj(claim), "vmid", id.VMID, "region", id.Region)
	c.reporter.Publish(ctx, claim, corev1.EventTypeWarning, v1alpha1.EventVMNotFound, fmt.Sprintf(
		"VM %d in region %s does not exist; it was deleted or converted to a template outside of Karpenter; its NodeClaim is deleted and its pods get another Node", id.VMID, id.Region))
	c.deleteClaim(ctx, claim)
}

func (c *Controller) deleteClaim(ctx context.Context, claim *karpv1.NodeClaim) {
	if err := c.deps.Kube.Delete(ctx, claim, client.Preconditions{UID: &claim.UID}); client.IgnoreNotFound(err) != nil {
		log.FromContext(ctx).Error(err, "deleting NodeClaim failed", "NodeClaim", klog.KObj(claim))
	}
}

// recordHost records the Host of a migrated VM. The zone label does not change: it is
// immutable on a registered Node.
func (c *Controller) recordHost(ctx context.Context, claim *karpv1.NodeClaim, vm instance.VM) {
	if c.deps.VMs.RecordHost(vm) {
		c.reporter.Publish(ctx, claim, corev1.EventTypeWarning, v1alpha1.EventVMMigrated, fmt.Sprintf("VM %d is on host %s now; the zone label of its node still names the old one", vm.VMID, vm.Host))
	}
}

func newEvent(claim *karpv1.NodeClaim, reason, message string) events.Event {
	return events.Event{InvolvedObject: claim, Type: corev1.EventTypeWarning, Reason: reason, Message: message, DedupeValues: []string{string(claim.UID), reason}}
}
