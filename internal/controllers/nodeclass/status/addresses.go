// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package status

import (
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	addressing "github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/network"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// addresses tells whether the class's pools have addresses left. It is no part of
// Ready: offerings are unavailable meanwhile, and addresses come back.
func (c *Controller) addresses(class *v1alpha1.ProxmoxNodeClass) {
	conditions := class.StatusConditions()
	pooled, empty := c.instances.PoolState(class)
	switch {
	case !pooled:
		_ = conditions.Clear(v1alpha1.ConditionAddressesAvailable)
	case empty != "":
		conditions.SetFalse(v1alpha1.ConditionAddressesAvailable, v1alpha1.ReasonPoolExhausted, empty)
	default:
		conditions.SetTrue(v1alpha1.ConditionAddressesAvailable)
	}
}

// misaddressed says why the interfaces of a Template cannot get the addresses that it and
// the class say; empty when they can, or the Template was not read yet.
func misaddressed(class *v1alpha1.ProxmoxNodeClass, template *proxmox.VMConfig) string {
	if template == nil {
		return ""
	}
	if _, err := addressing.Of(class, *template); err != nil {
		return err.Error()
	}
	return ""
}
