// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package status

import (
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
)

// room tells whether any VM of the class could be launched now, and why not: the
// lasting place for what pods are told in passing.
func (c *Checker) room(class *v1alpha1.ProxmoxNodeClass) {
	conditions := class.StatusConditions()
	if len(class.Status.SelectedZones) == 0 {
		_ = conditions.Clear(v1alpha1.ConditionCapacityAvailable) // that is the template's matter
		return
	}
	if full := c.deps.Types.CheckCapacity(class); full != nil {
		conditions.SetFalse(v1alpha1.ConditionCapacityAvailable, "InsufficientCapacity", full.Error())
		return
	}
	conditions.SetTrue(v1alpha1.ConditionCapacityAvailable)
}
