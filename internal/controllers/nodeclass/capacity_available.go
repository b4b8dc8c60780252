// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package nodeclass

import (
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
)

// setCapacityAvailable sets CapacityAvailable, which reports whether any VM of the
// NodeClass could be launched now. Unlike events of pods, the condition does not expire.
func (c *Checker) setCapacityAvailable(class *v1alpha1.ProxmoxNodeClass) {
	conditions := class.StatusConditions()
	if len(class.Status.SelectedZones) == 0 {
		_ = conditions.Clear(v1alpha1.ConditionCapacityAvailable) // other conditions report why there is no zone
		return
	}
	if noFit := c.deps.Types.CheckCapacity(class); noFit != nil {
		conditions.SetFalse(v1alpha1.ConditionCapacityAvailable, v1alpha1.ReasonInsufficientCapacity, noFit.Error())
		return
	}
	conditions.SetTrue(v1alpha1.ConditionCapacityAvailable)
}
