// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package nodeclass

import (
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
)

// setLaunchesHealthy sets LaunchesHealthy. The condition is not part of Ready: a
// NodeClass whose launches fail on some Hosts may succeed on others.
func (c *Checker) setLaunchesHealthy(class *v1alpha1.ProxmoxNodeClass, zones []zone) {
	conditions := class.StatusConditions()
	known, failing, reason, message := c.deps.Health.Get(class.Name)
	if failing {
		conditions.SetFalse(v1alpha1.ConditionLaunchesHealthy, reason, message)
		// A fact that passed its check may be outdated.
		c.invalidateFacts(zones)
		return
	}
	for _, z := range zones {
		if z.cloneTimeWarning != "" {
			conditions.SetFalse(v1alpha1.ConditionLaunchesHealthy, v1alpha1.EventCloneTooSlow, z.String()+": "+z.cloneTimeWarning)
			return
		}
	}
	// The slow clones may have been those of another NodeClass.
	if last := conditions.Get(v1alpha1.ConditionLaunchesHealthy); known || last != nil && last.Reason == v1alpha1.EventCloneTooSlow {
		conditions.SetTrue(v1alpha1.ConditionLaunchesHealthy)
	}
}

// invalidateFacts makes the inventory read all facts again that the checks of the zones
// use.
func (c *Checker) invalidateFacts(zones []zone) {
	for _, z := range zones {
		for _, check := range checks {
			check.run(z)
		}
		c.inventory.Invalidate(z.region, *z.read...)
	}
}
