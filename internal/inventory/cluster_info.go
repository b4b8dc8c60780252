// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// clusterInfo is what is read at first contact with a Cluster and rarely afterwards.
type clusterInfo struct {
	version     proxmox.Version
	options     proxmox.ClusterOptions // read as FactOptions
	mappings    []proxmox.PCIMapping
	maintenance []string
	// maintenanceKnown is true once maintenance was read, or the token may not read it.
	maintenanceKnown bool
	// read are the kinds that were read since the last failed poll.
	read map[ReadKind]bool
}

// isDue reports whether to read something now: at first contact and whenever the call
// budget grants a slot.
func (c *cluster) isDue(kind ReadKind) bool {
	due := c.budget.tryAcquire(kind, c.inventory.options.Clock.Now())
	return due || !c.info.read[kind]
}

// markRead records that the next read of this kind needs a slot of the call budget.
func (c *cluster) markRead(kind ReadKind) {
	if c.info.read == nil {
		c.info.read = map[ReadKind]bool{}
	}
	c.info.read[kind] = true
}

// readVersion reads the release if it is due. A failure is retried with the next poll.
func (c *cluster) readVersion(ctx context.Context) {
	if !c.isDue(kindVersion) {
		return
	}
	version, err := c.client.Version(ctx)
	if err != nil {
		c.inventory.options.Log.V(1).Info("reading the version failed", "region", c.region, "error", err.Error())
		return
	}
	c.info.version = version
	c.markRead(kindVersion)
}

// readMappings reads the PCI mappings if they are due. Only VMs with devices need them,
// so a failure is not retried before the next slot.
func (c *cluster) readMappings(ctx context.Context) {
	if !c.isDue(kindMappings) {
		return
	}
	mappings, err := c.client.PCIMappings(ctx)
	if err != nil {
		c.inventory.options.Log.V(1).Info("reading the PCI mappings failed", "region", c.region, "error", err.Error())
	} else {
		slices.SortFunc(mappings, func(a, b proxmox.PCIMapping) int { return strings.Compare(a.ID, b.ID) })
		c.info.mappings = mappings
	}
	c.markRead(kindMappings)
}

// isMaintenanceUnknown reports whether Hosts may be in HA maintenance that was never read.
func (c *cluster) isMaintenanceUnknown() bool {
	return !c.info.version.AtLeast(9, 2) && !c.info.maintenanceKnown
}

// readMaintenance marks the rows of Hosts in maintenance. PVE 9.2 and later set this in
// the rows. After a failure the last known Hosts remain in maintenance; it is not retried
// before the next slot, because a request that hangs delays the poll.
func (c *cluster) readMaintenance(ctx context.Context, rows []proxmox.HostRow) {
	if c.info.version.AtLeast(9, 2) {
		return
	}
	if c.isDue(kindMaintenance) {
		hosts, err := c.client.Maintenance(ctx)
		if err != nil {
			c.inventory.options.Log.V(1).Info("reading the hosts in maintenance failed", "region", c.region, "error", err.Error())
		} else {
			c.info.maintenance = hosts
		}
		if _, forbidden := errors.AsType[*proxmox.ForbiddenError](err); err == nil || forbidden {
			c.info.maintenanceKnown = true
		}
		c.markRead(kindMaintenance)
	}
	for n := range rows {
		rows[n].Maintenance = rows[n].Maintenance || slices.Contains(c.info.maintenance, rows[n].Name)
	}
}
