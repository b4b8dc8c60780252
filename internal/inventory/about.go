// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

const (
	// aboutInterval is how often the release is read again.
	aboutInterval = time.Hour
	// mappingInterval is how often the PCI mappings are read again.
	mappingInterval = 5 * time.Minute
	// maintenanceInterval is how often the HA manager is asked which Hosts it
	// drains, where the rows do not tell.
	maintenanceInterval = time.Minute
)

// about is what is read at first contact and rarely afterwards.
type about struct {
	version proxmox.Version
	read    time.Time
	options proxmox.ClusterOptions // one of the Facts, see facts.go

	mappings     []proxmox.PCIMapping
	mappingsRead time.Time

	maintenance     []string
	maintenanceRead time.Time
}

// dueAgain has everything read with the next poll.
func (a about) dueAgain() about {
	a.read, a.mappingsRead, a.maintenanceRead = time.Time{}, time.Time{}, time.Time{}
	return a
}

// isDue tells whether something was not read for so long.
func (c *cluster) isDue(read time.Time, interval time.Duration) bool {
	return read.IsZero() || c.inventory.options.Clock.Since(read) >= interval
}

// readAbout reads the release when it is due. Failing costs nothing but another
// try at the next poll.
func (c *cluster) readAbout(ctx context.Context) {
	if !c.isDue(c.about.read, aboutInterval) {
		return
	}
	version, err := c.client.Version(ctx)
	if err != nil {
		c.inventory.options.Log.V(1).Info("reading the release failed", "region", c.region, "error", err.Error())
		return
	}
	c.about.version, c.about.read = version, c.inventory.options.Clock.Now()
}

// readMappings reads the PCI mappings when they are due. Without them VMs without
// devices run as ever.
func (c *cluster) readMappings(ctx context.Context) {
	if !c.isDue(c.about.mappingsRead, mappingInterval) {
		return
	}
	mappings, err := c.client.PCIMappings(ctx)
	if err != nil {
		c.inventory.options.Log.V(1).Info("reading the PCI mappings failed", "region", c.region, "error", err.Error())
	} else {
		slices.SortFunc(mappings, func(a, b proxmox.PCIMapping) int { return strings.Compare(a.ID, b.ID) })
		c.about.mappings = mappings
	}
	c.about.mappingsRead = c.inventory.options.Clock.Now()
}

// readMaintenance asks which Hosts are drained, and marks their rows. From 9.2 on
// the rows say it by themselves.
func (c *cluster) readMaintenance(ctx context.Context, rows []proxmox.HostRow) {
	if c.about.version.AtLeast(9, 2) {
		return
	}
	if c.isDue(c.about.maintenanceRead, maintenanceInterval) {
		hosts, err := c.client.Maintenance(ctx)
		if err != nil {
			c.inventory.options.Log.V(1).Info("asking for Hosts in maintenance failed", "region", c.region, "error", err.Error())
		} else {
			c.about.maintenance = hosts
		}
		c.about.maintenanceRead = c.inventory.options.Clock.Now()
	}
	for n := range rows {
		rows[n].Maintenance = rows[n].Maintenance || slices.Contains(c.about.maintenance, rows[n].Name)
	}
}
