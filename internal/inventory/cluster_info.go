// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"context"
	"slices"
	"strings"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// about is what is read at first contact and rarely afterwards.
type clusterInfo struct {
	version     proxmox.Version
	options     proxmox.ClusterOptions // one of the Facts, see facts.go
	mappings    []proxmox.PCIMapping
	maintenance []string
	// read are those that were read since the Cluster last answered.
	read map[ReadKind]bool
}

// dueAgain has everything read with the next poll.
func (a clusterInfo) dueAgain() clusterInfo {
	a.read = nil
	return a
}

// isDue tells whether to read something: at first contact, and then in turn.
func (c *cluster) isDue(turn ReadKind) bool {
	due := c.budget.tryAcquire(turn, c.inventory.options.Clock.Now())
	return due || !c.info.read[turn]
}

// wasRead notes that something needs to be read again only in its turn.
func (c *cluster) markRead(turn ReadKind) {
	if c.info.read == nil {
		c.info.read = map[ReadKind]bool{}
	}
	c.info.read[turn] = true
}

// readAbout reads the release when it is due. Failing costs nothing but another
// try at the next poll.
func (c *cluster) readVersion(ctx context.Context) {
	if !c.isDue(kindVersion) {
		return
	}
	version, err := c.client.Version(ctx)
	if err != nil {
		c.inventory.options.Log.V(1).Info("reading the release failed", "region", c.region, "error", err.Error())
		return
	}
	c.info.version = version
	c.markRead(kindVersion)
}

// readMappings reads the PCI mappings when they are due. Without them VMs without
// devices run as ever.
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

// readMaintenance asks which Hosts are drained, and marks their rows. From 9.2 on
// the rows say it by themselves.
func (c *cluster) readMaintenance(ctx context.Context, rows []proxmox.HostRow) {
	if c.info.version.AtLeast(9, 2) {
		return
	}
	if c.isDue(kindMaintenance) {
		hosts, err := c.client.Maintenance(ctx)
		if err != nil {
			c.inventory.options.Log.V(1).Info("asking for Hosts in maintenance failed", "region", c.region, "error", err.Error())
		} else {
			c.info.maintenance = hosts
		}
		c.markRead(kindMaintenance)
	}
	for n := range rows {
		rows[n].Maintenance = rows[n].Maintenance || slices.Contains(c.info.maintenance, rows[n].Name)
	}
}
