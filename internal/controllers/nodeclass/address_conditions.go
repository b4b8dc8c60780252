// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package nodeclass

import (
	"context"
	"fmt"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance/plan"
)

// setAddressConditions sets AddressesAvailable and AddressPoolsConsistent. They are not
// part of Ready: offerings are unavailable while no address is free, and no address is
// assigned twice.
func (c *Checker) setAddressConditions(ctx context.Context, class *v1alpha1.ProxmoxNodeClass) error {
	conditions := class.StatusConditions()
	pooled, exhausted := plan.AddressPoolState(c.inventory, class)
	switch {
	case !pooled:
		_ = conditions.Clear(v1alpha1.ConditionAddressesAvailable)
		_ = conditions.Clear(v1alpha1.ConditionAddressPoolsConsistent)
		return nil
	case exhausted != "":
		conditions.SetFalse(v1alpha1.ConditionAddressesAvailable, v1alpha1.ReasonAddressPoolExhausted, exhausted)
	default:
		conditions.SetTrue(v1alpha1.ConditionAddressesAvailable)
	}
	others := &v1alpha1.ProxmoxNodeClassList{}
	if err := c.reader.List(ctx, others); err != nil {
		return fmt.Errorf("listing NodeClasses: %w", err)
	}
	if text := plan.AddressPoolConflict(c.inventory.View(), class, others.Items); text != "" {
		conditions.SetFalse(v1alpha1.ConditionAddressPoolsConsistent, v1alpha1.ReasonSubnetsOverlap, text)
	} else {
		conditions.SetTrue(v1alpha1.ConditionAddressPoolsConsistent)
	}
	return nil
}
