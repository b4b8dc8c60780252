// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package status

import (
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
)

// launches tells how launches go. It is no part of Ready: a class whose launches
// fail is still worth a try on the hosts that are left.
func (c *Checker) launches(class *v1alpha1.ProxmoxNodeClass, zones []zone) {
	conditions := class.StatusConditions()
	known, failing, reason, message := c.deps.Health.Get(class.Name)
	if failing {
		conditions.SetFalse(v1alpha1.ConditionLaunchesHealthy, reason, message)
		// Something may have changed that we believe to be good.
		c.doubtAll(zones)
		return
	}
	for _, z := range zones {
		if z.almostTooSlow != "" {
			conditions.SetFalse(v1alpha1.ConditionLaunchesHealthy, instance.ReasonSlowClone, z.String()+": "+z.almostTooSlow)
			return
		}
	}
	if known {
		conditions.SetTrue(v1alpha1.ConditionLaunchesHealthy)
	}
}

// doubtAll has everything looked up again that the zones' checks rest on.
func (c *Checker) doubtAll(zones []zone) {
	for _, z := range zones {
		for _, check := range checks {
			c.inventory.Invalidate(z.region, check.facts(z)...)
		}
	}
}
