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

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// Conditions that anything which watches Nodes, such as node-problem-detector, may
// set to have one repaired.
const (
	// ConditionGuestUnhealthy asks for a replacement.
	ConditionGuestUnhealthy corev1.NodeConditionType = "ProxmoxGuestUnhealthy"
	// ConditionRebootRequired asks for a restart.
	ConditionRebootRequired corev1.NodeConditionType = "ProxmoxRebootRequired"
)

// RepairTolerations is how long a sick Node is put up with.
type RepairTolerations struct {
	// Unready is how long a Node may be silent or not ready.
	Unready time.Duration
	// Asked is how long a request must stand: long enough not to act on a condition
	// that flickers.
	Requested time.Duration
	// Drain bounds the drain of a Node whose repair was asked for.
	Drain time.Duration
}

// RepairPolicies say when a Node is beyond hope and what to do. Exactly one, the
// fallback, has no reason pattern.
func (c *CloudProvider) RepairPolicies() []cloudprovider.RepairPolicy {
	return []cloudprovider.RepairPolicy{
		{
			ConditionType: corev1.NodeReady, ConditionStatus: corev1.ConditionFalse,
			TolerationDuration: c.repair.Unready, Action: cloudprovider.ReplaceNode,
		},
		{
			ConditionType: corev1.NodeReady, ConditionStatus: corev1.ConditionUnknown, ReasonRegex: ".*",
			TolerationDuration: c.repair.Unready, Action: cloudprovider.ReplaceNode,
		},
		{
			ConditionType: ConditionGuestUnhealthy, ConditionStatus: corev1.ConditionTrue, ReasonRegex: ".*",
			TolerationDuration: c.repair.Requested, TerminationGracePeriod: new(c.repair.Drain), Action: cloudprovider.ReplaceNode,
		},
		{
			ConditionType: ConditionRebootRequired, ConditionStatus: corev1.ConditionTrue, ReasonRegex: ".*",
			TolerationDuration: c.repair.Requested, TerminationGracePeriod: new(c.repair.Drain), Action: cloudprovider.RebootNode,
		},
	}
}

// Reboot restarts a Claim's VM once per operation.
func (c *CloudProvider) Reboot(ctx context.Context, claim *karpv1.NodeClaim, operationID string) error {
	err := c.instances.Reboot(ctx, claim, operationID)
	if errors.Is(err, proxmox.ErrNotFound) {
		return cloudprovider.NewNodeClaimNotFoundError(err)
	}
	if err != nil {
		return fmt.Errorf("rebooting the VM, %w", err)
	}
	return nil
}
