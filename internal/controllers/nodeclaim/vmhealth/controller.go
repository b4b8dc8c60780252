// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Package vmhealth holds Claims against the VMs that are really there: a VM that
// was found stopped, as a Host's reboot leaves it, is started again; a Claim whose
// VM is proven gone is deleted, so that a replacement comes at once.
package vmhealth

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/awslabs/operatorpkg/reconciler"
	"github.com/awslabs/operatorpkg/singleton"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/events"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// Controller compares Claims and VMs.
type Controller struct {
	Deps
	restarts *restarts
}

// Deps of the Controller.
type Deps struct {
	Kube      client.Client
	Instances *instance.Provider
	Recorder  events.Recorder
	// Interval is how often the view is compared: more often than it is refreshed is
	// of no use.
	Interval time.Duration
	Restarts RestartPolicy
}

// NewController makes the Controller.
func NewController(deps Deps) *Controller {
	return &Controller{Deps: deps, restarts: newRestarts(deps.Instances.Clock, deps.Restarts)}
}

// Register the Controller.
func (c *Controller) Register(_ context.Context, m manager.Manager) error {
	return ctrl.NewControllerManagedBy(m).
		Named("nodeclaim.presence.proxmox").
		WatchesRawSource(singleton.Source()).
		Complete(singleton.AsReconciler(c))
}

// Name of the controller in logs and metrics.
func (c *Controller) Name() string { return "nodeclaim.presence.proxmox" }

// Reconcile compares once. It reads memory only, unless something is amiss.
func (c *Controller) Reconcile(ctx context.Context) (reconciler.Result, error) {
	vms, err := c.Instances.List()
	if errors.Is(err, instance.ErrNotPolled) {
		return reconciler.Result{RequeueAfter: c.Interval}, nil
	}
	if err != nil {
		return reconciler.Result{}, err
	}
	byClaim := make(map[string]instance.VM, len(vms))
	for _, vm := range vms {
		byClaim[vm.ClaimUID] = vm
	}
	claims := &karpv1.NodeClaimList{}
	if err := c.Kube.List(ctx, claims); err != nil {
		return reconciler.Result{}, fmt.Errorf("listing nodeclaims, %w", err)
	}
	// One VM that hangs must not keep the others from being looked after.
	ctx, cancel := context.WithTimeout(ctx, c.Instances.Settings.OperationTimeout)
	defer cancel()
	var wg sync.WaitGroup
	for i := range claims.Items {
		claim := &claims.Items[i]
		// After a restart the ledger knows nothing of the VMs that a pool has.
		c.Instances.RestoreReservation(claim)
		if !claim.DeletionTimestamp.IsZero() || claim.Annotations[v1alpha1.AnnotationLaunchCompleted] == "" {
			continue
		}
		wg.Go(func() {
			if vm, ok := byClaim[string(claim.UID)]; ok {
				c.present(ctx, claim, vm)
			} else if !c.Instances.MayExist(claim) {
				c.vanished(ctx, claim)
			}
		})
	}
	wg.Wait()
	return reconciler.Result{RequeueAfter: c.Interval}, nil
}

// present looks after a VM that is there.
func (c *Controller) present(ctx context.Context, claim *karpv1.NodeClaim, vm instance.VM) {
	switch {
	case vm.Status == "stopped" && vm.UnderHA():
		c.heldByHA(claim, vm)
	case vm.Status == "stopped" && vm.HostOnline:
		c.stopped(ctx, claim, vm)
	default:
		c.located(ctx, claim, vm)
		c.joined(claim, vm)
	}
}

// vanished confirms with a second look that the VM is gone, then lets the Claim go.
func (c *Controller) vanished(ctx context.Context, claim *karpv1.NodeClaim) {
	id, err := v1alpha1.ParseProviderID(claim.Status.ProviderID)
	if err != nil {
		return
	}
	if vm, err := c.Instances.Get(ctx, id); !errors.Is(err, proxmox.ErrNotFound) && (err != nil || vm.ClaimUID == string(claim.UID)) {
		return
	}
	log.FromContext(ctx).Info("the VM is gone, deleting its claim", "NodeClaim", klog.KObj(claim), "provider-id", claim.Status.ProviderID)
	c.Recorder.Publish(event(claim, "VMNotFound", fmt.Sprintf("VM %d in region %s is gone; somebody removed it outside of Karpenter", id.VMID, id.Region)))
	if err := c.Kube.Delete(ctx, claim, client.Preconditions{UID: &claim.UID}); client.IgnoreNotFound(err) != nil {
		log.FromContext(ctx).Error(err, "deleting the claim of a VM that is gone", "NodeClaim", klog.KObj(claim))
	}
}

// stopped starts a VM again, with growing pauses; one that stops over and over is
// replaced.
func (c *Controller) stopped(ctx context.Context, claim *karpv1.NodeClaim, vm instance.VM) {
	log := log.FromContext(ctx).WithValues("NodeClaim", klog.KObj(claim), "vmid", vm.VMID, "host", vm.Host)
	switch c.restarts.judge(string(claim.UID)) {
	case wait:
		return
	case replace:
		log.Info("the VM stops over and over, replacing its claim")
		c.Recorder.Publish(event(claim, "VMCrashLooping", fmt.Sprintf("VM %d on host %s was started %d times and stopped again; its claim is replaced", vm.VMID, vm.Host, c.Restarts.Limit)))
		if err := c.Kube.Delete(ctx, claim, client.Preconditions{UID: &claim.UID}); client.IgnoreNotFound(err) != nil {
			log.Error(err, "deleting the claim of a VM that stops over and over")
		}
		return
	case restart:
	}
	started, err := c.Instances.PowerOn(ctx, claim)
	switch {
	case err != nil:
		log.Error(err, "starting a stopped VM")
		c.Recorder.Publish(event(claim, "VMRestartFailed", err.Error()))
	case started:
		log.Info("started a VM that was found stopped")
		c.Recorder.Publish(event(claim, "VMRestarted", fmt.Sprintf("VM %d was found stopped on host %s and was started again", vm.VMID, vm.Host)))
	default:
		// Nothing was done, so nothing has to be waited for: somebody else had the
		// Claim, or the view lags behind.
		c.restarts.unneeded(string(claim.UID))
	}
}

// heldByHA leaves a stopped VM to HA, which an admin has put in charge of it: it
// starts what is to run by itself, and a start of ours would overrule an admin who
// wants it stopped.
func (c *Controller) heldByHA(claim *karpv1.NodeClaim, vm instance.VM) {
	switch vm.HAState {
	case "stopped", "disabled", "error":
		c.Recorder.Publish(event(claim, "VMStoppedByHA", fmt.Sprintf(
			"VM %d on host %s is stopped, and HA keeps it so (%s); to have it started, run: ha-manager set vm:%d --state started; to have it replaced, delete the claim",
			vm.VMID, vm.Host, vm.HAState, vm.VMID)))
	}
}

// located notes the Host of a VM that HA, a balancer or a person has migrated. Its
// zone label stays what it was: it cannot be changed on a registered Node.
func (c *Controller) located(ctx context.Context, claim *karpv1.NodeClaim, vm instance.VM) {
	moved, err := c.Instances.RecordHost(ctx, claim, vm)
	switch {
	case err != nil:
		log.FromContext(ctx).Error(err, "noting the host of a migrated VM", "NodeClaim", klog.KObj(claim))
	case moved:
		c.Recorder.Publish(event(claim, "VMMigrated", fmt.Sprintf("VM %d is on host %s now; the zone label of its node still names the old one", vm.VMID, vm.Host)))
	}
}

func event(claim *karpv1.NodeClaim, reason, message string) events.Event {
	return events.Event{InvolvedObject: claim, Type: corev1.EventTypeWarning, Reason: reason, Message: message, DedupeValues: []string{string(claim.UID), reason}}
}
