// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package vmhealth

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
)

// reportProblem reports why a VM is not running, unless that was the last report about it.
func (c *Controller) reportProblem(ctx context.Context, claim *karpv1.NodeClaim, reason, message string) {
	if _, changed := c.record(claim, message); changed {
		c.reporter.Publish(ctx, claim, corev1.EventTypeWarning, reason, message)
	}
}

// record records what is wrong with a VM; empty if it runs. It returns what was before, and whether
// that differs. A new leader reports a problem that it finds.
func (c *Controller) record(claim *karpv1.NodeClaim, problem string) (before string, changed bool) {
	before, _ = c.deps.Launches.Report(string(claim.UID), "problem", problem)
	return before, before != problem
}

// reportStopped reports a stopped VM that is being started.
func (c *Controller) reportStopped(ctx context.Context, claim *karpv1.NodeClaim, vm instance.VM) {
	c.reportProblem(ctx, claim, v1alpha1.EventVMStopped, stoppedMessage(vm, "Karpenter"))
}

func stoppedMessage(vm instance.VM, starter string) string {
	return fmt.Sprintf("VM %d on host %s is stopped: it was stopped outside of Karpenter, crashed, or its host restarted; %s starts it", vm.VMID, vm.Host, starter)
}

func lockedMessage(vm instance.VM, cause error) string {
	return fmt.Sprintf("VM %d on host %s is stopped, and Karpenter starts it when it is unlocked: %s; if no task of the VM is running, run: qm unlock %d", vm.VMID, vm.Host, cause, vm.VMID)
}

func pausedMessage(vm instance.VM) string {
	return fmt.Sprintf("VM %d on host %s is paused (%s); check its storage and whether another user paused it, then run: qm resume %d; to replace it, delete its NodeClaim", vm.VMID, vm.Host, vm.Status, vm.VMID)
}

// reportStarted reports a VM that was started, and that it was stopped, unless the stop was
// reported before.
func (c *Controller) reportStarted(ctx context.Context, claim *karpv1.NodeClaim, vm instance.VM) {
	if before, _ := c.record(claim, ""); before == "" {
		c.reporter.Publish(ctx, claim, corev1.EventTypeWarning, v1alpha1.EventVMStopped, stoppedMessage(vm, "Karpenter"))
	}
	c.reporter.Publish(ctx, claim, corev1.EventTypeNormal, v1alpha1.EventVMRestarted, fmt.Sprintf("VM %d was found stopped on host %s and was started again", vm.VMID, vm.Host))
}

// reportRunning reports a VM that was started by another user, by HA, or by a start that
// took long.
func (c *Controller) reportRunning(ctx context.Context, claim *karpv1.NodeClaim, vm instance.VM) {
	if _, changed := c.record(claim, ""); changed {
		c.reporter.Publish(ctx, claim, corev1.EventTypeNormal, v1alpha1.EventVMRestarted, fmt.Sprintf("VM %d is running again on host %s", vm.VMID, vm.Host))
	}
}

// reportStoppedByHA reports a stopped VM that HA keeps stopped, or starts. It is not
// started here: HA starts the resources that are to run itself, and a start would override
// an administrator.
func (c *Controller) reportStoppedByHA(ctx context.Context, claim *karpv1.NodeClaim, vm instance.VM) {
	switch vm.HAState {
	case "stopped", "disabled", "error":
		c.reportProblem(ctx, claim, v1alpha1.EventVMStoppedByHA, fmt.Sprintf(
			"VM %d on host %s is stopped, and HA keeps it stopped (state %s); to start it, run: ha-manager set vm:%d --state started; to replace it, delete its NodeClaim",
			vm.VMID, vm.Host, vm.HAState, vm.VMID))
	case "started":
		c.reportProblem(ctx, claim, v1alpha1.EventVMStopped, stoppedMessage(vm, "HA"))
	}
}

// reportSuspended reports a stopped VM that is not started because of its Host. It is
// started when the Host is back in service.
func (c *Controller) reportSuspended(ctx context.Context, claim *karpv1.NodeClaim, vm instance.VM, why string) {
	c.reportProblem(ctx, claim, v1alpha1.EventVMRestartSuspended, fmt.Sprintf(
		"VM %d is stopped and is not started, because host %s %s; to replace it now, delete its NodeClaim", vm.VMID, vm.Host, why))
}
