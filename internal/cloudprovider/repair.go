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

// unreadyToleration is how long a Node may be sick before it is repaired.
const unreadyToleration = 15 * time.Minute

// RepairPolicies say when a Node is beyond hope. Exactly one, the fallback, has
// no reason pattern.
func (c *CloudProvider) RepairPolicies() []cloudprovider.RepairPolicy {
	return []cloudprovider.RepairPolicy{
		{
			ConditionType:      corev1.NodeReady,
			ConditionStatus:    corev1.ConditionFalse,
			TolerationDuration: unreadyToleration,
			Action:             cloudprovider.ReplaceNode,
		},
		{
			ConditionType:      corev1.NodeReady,
			ConditionStatus:    corev1.ConditionUnknown,
			ReasonRegex:        ".*",
			TolerationDuration: unreadyToleration,
			Action:             cloudprovider.ReplaceNode,
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
