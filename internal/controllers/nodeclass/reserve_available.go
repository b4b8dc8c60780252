// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package nodeclass

import (
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
)

// setReserveAvailable sets ReserveAvailable, which reports whether the guests of any one Host
// would fit on the others. It keeps the condition while a region was not read.
func (c *Checker) setReserveAvailable(class *v1alpha1.ProxmoxNodeClass, unread []string) {
	if len(unread) > 0 {
		return
	}
	conditions := class.StatusConditions()
	switch kept, violation := c.deps.Types.CheckReserve(class); {
	case !kept:
		_ = conditions.Clear(v1alpha1.ConditionReserveAvailable)
	case violation != "":
		conditions.SetFalse(v1alpha1.ConditionReserveAvailable, v1alpha1.ReasonInsufficientReserve, violation)
	default:
		conditions.SetTrue(v1alpha1.ConditionReserveAvailable)
	}
}
