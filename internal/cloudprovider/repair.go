// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package cloudprovider

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/cloudprovider"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// RepairTolerations are the delays before an unhealthy Node is repaired.
type RepairTolerations struct {
	// Unready is how long a Node may be not ready, or its status unknown.
	Unready time.Duration
	// Requested is how long a condition that requests a repair must be set, so a
	// flapping condition has no effect.
	Request time.Duration
	// Drain limits the drain of a Node whose repair was requested.
	Drain time.Duration
}

// RepairPolicies returns which Node conditions lead to a repair, after which delay.
// Exactly one policy, the fallback, must have no reason pattern.
func (c *CloudProvider) RepairPolicies() []cloudprovider.RepairPolicy {
	return []cloudprovider.RepairPolicy{
		{
			ConditionType: corev1.NodeReady, ConditionStatus: corev1.ConditionFalse,
			TolerationDuration: c.deps.Repair.Unready, Action: cloudprovider.ReplaceNode,
		},
		{
			ConditionType: corev1.NodeReady, ConditionStatus: corev1.ConditionUnknown, ReasonRegex: ".*",
			TolerationDuration: c.deps.Repair.Unready, Action: cloudprovider.ReplaceNode,
		},
		{
			ConditionType: v1alpha1.NodeConditionGuestUnhealthy, ConditionStatus: corev1.ConditionTrue, ReasonRegex: ".*",
			TolerationDuration: c.deps.Repair.Request, TerminationGracePeriod: new(c.deps.Repair.Drain), Action: cloudprovider.ReplaceNode,
		},
		{
			ConditionType: v1alpha1.NodeConditionRebootRequired, ConditionStatus: corev1.ConditionTrue, ReasonRegex: ".*",
			TolerationDuration: c.deps.Repair.Request, TerminationGracePeriod: new(c.deps.Repair.Drain), Action: cloudprovider.RebootNode,
		},
	}
}

// Reboot resets a Claim's VM once per operation. After NodeRebootFailed, core replaces the
// Node at once; after another error it retries for minutes, with the Node drained.
func (c *CloudProvider) Reboot(ctx context.Context, claim *karpv1.NodeClaim, operationID string) error {
	err := c.deps.Power.Reboot(ctx, claim, operationID)
	if errors.Is(err, proxmox.ErrNotFound) {
		return cloudprovider.NewNodeClaimNotFoundError(err)
	}
	if err != nil {
		err = fmt.Errorf("rebooting the VM: %w", err)
	}
	if isRebootRefused(err) {
		return cloudprovider.NewNodeRebootFailedError(err)
	}
	return err
}

// isRebootRefused reports whether a reboot fails until a user acts.
func isRebootRefused(err error) bool {
	_, forbidden := errors.AsType[*proxmox.ForbiddenError](err)
	_, invalid := errors.AsType[*proxmox.InvalidError](err)
	return forbidden || invalid || errors.Is(err, proxmox.ErrRootOnly) || errors.Is(err, instance.ErrNewerVersion)
}
