// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package nodeclass

import (
	"slices"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/poll"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/privileges"
)

// lackedPrivilege is a privilege that is missing in a region.
type lackedPrivilege struct {
	region string
	privileges.Required
}

// isGranted reports whether the last read of the region's privileges contains it.
func (l lackedPrivilege) isGranted(view inventory.View) bool {
	snapshot := view.Snapshots[l.region]
	return snapshot != nil && snapshot.Facts != nil && l.IsHeld(snapshot.Facts.Permissions)
}

// endBackoffAfterGrant discards the failed launches of a NodeClass when a privilege is
// granted that was missing at the last check: one that the checks require, or one that
// made a launch fail. A privilege that is granted although a launch failed without it was
// probably revoked since it was read, so it does not count until it was seen missing.
func (c *Checker) endBackoffAfterGrant(class *v1alpha1.ProxmoxNodeClass, view inventory.View, lacking []lackedPrivilege) {
	for region, forbidden := range c.deps.Health.Forbidden(class.Name) {
		c.inventory.Invalidate(region, poll.FactPermissions)
		one := lackedPrivilege{region, privileges.Required{Path: forbidden.Path, Privilege: forbidden.Privilege}}
		if forbidden.Path != "" && !one.isGranted(view) {
			lacking = append(lacking, one)
		}
	}
	c.mu.Lock()
	before := c.lacking[class.Name]
	c.lacking[class.Name] = lacking
	c.mu.Unlock()
	if slices.ContainsFunc(before, func(l lackedPrivilege) bool { return l.isGranted(view) }) {
		c.resetFailures(class)
	}
}
