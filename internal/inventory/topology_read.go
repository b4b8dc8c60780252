// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"context"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// hardwareRetry spaces the tries on a Host that does not tell.
const hardwareRetry = 10 * time.Minute

// hardwareBook is what Hosts told about their hardware, by name.
type hardwareCache map[string]hardwareEntry

type hardwareEntry struct {
	info proxmox.HostInfo
	// cpus that the Host's row showed then: other ones mean other hardware.
	cpus  int
	tried time.Time
}

func (b hardwareCache) known() map[string]proxmox.HostInfo {
	infos := make(map[string]proxmox.HostInfo, len(b))
	for host, note := range b {
		infos[host] = note.info
	}
	return infos
}

// readHardware asks the Hosts that were not asked yet, or have changed, and tells
// whether that brought news.
func (c *cluster) readHardware(ctx context.Context, rows []proxmox.HostRow) bool {
	now := c.inventory.options.Clock.Now()
	var due []proxmox.HostRow
	for _, row := range rows {
		note, asked := c.hardware[row.Name]
		known := note.info != (proxmox.HostInfo{}) && note.cpus == row.CPUs
		if row.Online && row.CPUs > 0 && !known && (!asked || now.Sub(note.tried) >= hardwareRetry) {
			due = append(due, row)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	infos := make([]proxmox.HostInfo, len(due))
	var group errgroup.Group
	group.SetLimit(maxParallelReads)
	for n, row := range due {
		group.Go(func() error {
			var err error
			if infos[n], err = c.client.HostInfo(ctx, row.Name); err != nil {
				c.inventory.options.Log.V(1).Info("reading the hardware failed", "region", c.region, "host", row.Name, "error", err.Error())
			}
			return nil // without it only bound VMs lack their cells
		})
	}
	_ = group.Wait()
	news := false
	for n, row := range due {
		news = news || infos[n] != c.hardware[row.Name].info
		c.hardware[row.Name] = hardwareEntry{info: infos[n], cpus: row.CPUs, tried: now}
	}
	return news
}
