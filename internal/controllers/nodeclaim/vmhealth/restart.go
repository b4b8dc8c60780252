// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package vmhealth

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/log"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// restart starts a stopped VM with an increasing backoff. A VM that stops repeatedly is
// replaced, unless most VMs of its region do.
func (c *Controller) restart(ctx context.Context, claim *karpv1.NodeClaim, vm instance.VM, all int) {
	log := log.FromContext(ctx).WithValues("NodeClaim", klog.KObj(claim), "vmid", vm.VMID, "host", vm.Host, "region", vm.Region)
	switch c.restarts.next(vm) {
	case wait:
		return
	case replace:
		stopped := c.restarts.exhausted(vm.Region)
		if !c.deps.Restarts.ReplacementMaxFraction.IsExceeded(stopped, all) {
			log.Info("VM stops repeatedly, replacing its NodeClaim")
			c.reporter.Publish(ctx, claim, corev1.EventTypeWarning, v1alpha1.EventVMCrashLooping, fmt.Sprintf("VM %d on host %s was started %d times and stopped again; its NodeClaim is replaced", vm.VMID, vm.Host, c.deps.Restarts.Limit))
			c.deleteClaim(ctx, claim)
			return
		}
		log.Info("too many VMs stop repeatedly, replacing none", "stopped", stopped, "vms", all)
		c.deps.Recorder.Publish(newEvent(claim, v1alpha1.EventReplacementBlocked, blockedMessage(vm.Region, stopped, all, "stop repeatedly", "the VM is started again")))
	case restart:
	}
	started, err := c.deps.Power.PowerOn(ctx, claim)
	switch {
	case errors.Is(err, instance.ErrHostStopping):
		c.restarts.observeStopping(vm)
		c.reportSuspended(ctx, claim, vm, "is shutting down")
	case errors.Is(err, instance.ErrStartInProgress):
		log.Info("start of stopped VM is still in progress")
		c.reportStopped(ctx, claim, vm)
		c.restarts.recordFailed(vm, true)
	case errors.Is(err, proxmox.ErrNoQuorum), errors.Is(err, proxmox.ErrUnreachable), errors.Is(err, proxmox.ErrNoTime):
		// Whether the VM is still stopped is unknown. The NodeClass reports the region.
		log.Info("region cannot be reached, not starting stopped VM", "cause", err.Error())
	case errors.Is(err, instance.ErrVMLocked):
		log.Info("stopped VM is locked, not starting it", "cause", err.Error())
		if c.restarts.recordBlocked(vm) {
			c.reportProblem(ctx, claim, v1alpha1.EventVMLocked, lockedMessage(vm, err))
		}
	case errors.Is(err, proxmox.ErrHostUnreachable) && !c.restarts.recordBlocked(vm):
		// The Snapshot may be older than a start of the VM, so the next attempt reports it.
		log.Info("host cannot be reached, not starting stopped VM", "cause", err.Error())
	case err != nil:
		log.Error(err, "starting stopped VM failed")
		c.reportStopped(ctx, claim, vm)
		c.deps.Recorder.Publish(newEvent(claim, v1alpha1.EventVMRestartFailed, fmt.Sprintf("VM %d on host %s is stopped and cannot be started, the start is retried: %s", vm.VMID, vm.Host, err)))
		c.restarts.recordFailed(vm, false)
	case started:
		log.Info("started stopped VM")
		c.reportStarted(ctx, claim, vm)
		c.restarts.recordStarted(vm)
	}
	// Otherwise another operation held the Claim, or the Snapshot is outdated: no backoff.
}

// reportMissingBlocked reports Claims that are kept because too many VMs are missing.
func (c *Controller) reportMissingBlocked(ctx context.Context, region string, claims []*karpv1.NodeClaim, all int) {
	message := blockedMessage(region, len(claims), all, "do not exist", "the NodeClaim is kept")
	reported := false
	for _, claim := range claims {
		// Without the numbers: they change often, and each change would cause an event of all Claims.
		if _, changed := c.record(claim, "the VM does not exist, and too many VMs in region "+region+" do not exist to replace it"); changed {
			c.reporter.Publish(ctx, claim, corev1.EventTypeWarning, v1alpha1.EventReplacementBlocked, message)
			reported = true
		}
	}
	if reported {
		log.FromContext(ctx).Error(nil, "too many VMs do not exist, deleting none of their NodeClaims; check whether the region has the right Proxmox cluster",
			"region", region, "missing", len(claims), "vms", all)
	}
}

func blockedMessage(region string, affected, all int, what, consequence string) string {
	return fmt.Sprintf(
		"%d of %d VMs in region %s %s, which is more than --orphan-deletion-max-fraction allows to replace, so %s; fix the common cause, or delete the NodeClaim to replace its VM",
		affected, all, region, what, consequence)
}
