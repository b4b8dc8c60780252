// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package status

import (
	"context"
	"fmt"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance/plan"
	addressing "github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/network"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// addresses tells whether the class's pools have addresses left, and agree with those
// of other classes. That is no part of Ready: offerings are unavailable while addresses
// are, which come back, and none is given twice.
func (c *Checker) addresses(ctx context.Context, class *v1alpha1.ProxmoxNodeClass) error {
	conditions := class.StatusConditions()
	pooled, empty := plan.AddressPoolState(c.inventory, class)
	switch {
	case !pooled:
		_ = conditions.Clear(v1alpha1.ConditionAddressesAvailable)
		_ = conditions.Clear(v1alpha1.ConditionAddressPoolsConsistent)
		return nil
	case empty != "":
		conditions.SetFalse(v1alpha1.ConditionAddressesAvailable, v1alpha1.ReasonPoolExhausted, empty)
	default:
		conditions.SetTrue(v1alpha1.ConditionAddressesAvailable)
	}
	others := &v1alpha1.ProxmoxNodeClassList{}
	if err := c.reader.List(ctx, others); err != nil {
		return fmt.Errorf("listing nodeclasses for their address pools, %w", err)
	}
	if text := plan.AddressPoolConflict(c.inventory.View(), class, others.Items); text != "" {
		conditions.SetFalse(v1alpha1.ConditionAddressPoolsConsistent, v1alpha1.ReasonSubnetsOverlap, text)
	} else {
		conditions.SetTrue(v1alpha1.ConditionAddressPoolsConsistent)
	}
	return nil
}

// misaddressed says why the interfaces of a Template cannot get the addresses that it and
// the class say; empty when they can, or the Template was not read yet.
func misaddressed(class *v1alpha1.ProxmoxNodeClass, template *proxmox.VMConfig) string {
	if template == nil {
		return ""
	}
	if _, err := addressing.NewLayout(class, *template); err != nil {
		return err.Error()
	}
	return ""
}
