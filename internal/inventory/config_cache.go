// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

const (
	// detailParallel bounds the config reads at one time: a Host has three
	// workers for all its clients.
	maxParallelReads = 3
	// detailTimeout bounds the config reads of one poll; the rest follows with
	// the next one. At first contact there are many, and the view waits for them.
	readTimeout      = 5 * time.Second
	firstReadTimeout = 15 * time.Second
	// retryDelay and maxRetryDelay space the tries on a config that cannot be read.
	retryDelay    = 10 * time.Second
	maxRetryDelay = 10 * time.Minute
)

// details are the configurations of a Cluster's VMs and templates: other people's
// too, for the PCI devices and CPUs that they hold.
type configCache struct {
	entries map[int]*configEntry
}

// detail is one guest's configuration and the row that it was read for.
type configEntry struct {
	row  rowFingerprint
	host string
	// ours: a VM in our range, or a template. It is read before the others.
	ours   bool
	config *proxmox.VMConfig
	// due is true when the row changed since the config was read.
	due      bool
	read     time.Time
	failures int
	retryAt  time.Time
}

// rowMark is what of a row tells that the configuration changed.
type rowFingerprint struct {
	host, name, status, lock, tags string
	template                       bool
	cpus                           int
	memory                         int64
}

func fingerprintOf(row proxmox.GuestRow) rowFingerprint {
	return rowFingerprint{
		host: row.Host, name: row.Name, status: row.Status, lock: row.Lock, tags: strings.Join(row.Tags, ";"),
		template: row.Template, cpus: row.CPUs, memory: row.MemoryBytes,
	}
}

// devicesOnly leaves out what does not touch the devices and CPUs of a guest: a
// nightly backup of all guests must not have all of them read.
func (m rowFingerprint) devicesOnly() rowFingerprint {
	m.name, m.lock, m.tags = "", "", ""
	return m
}

// sort finds out which configurations are due, and which guests are gone.
func (d *configCache) update(rows []proxmox.GuestRow, own VMIDRange) {
	seen := make(map[int]bool, len(d.entries))
	for _, row := range rows {
		known := d.entries[row.VMID]
		// A template whose row lost its figures also lost the template flag.
		wasTemplate := known != nil && known.row.template && !row.HasResources()
		if row.Kind != proxmox.KindQEMU {
			continue
		}
		ours := row.Template || wasTemplate || own.Contains(row.VMID)
		seen[row.VMID] = true
		if known == nil {
			known = &configEntry{due: true}
			d.entries[row.VMID] = known
		}
		mark := fingerprintOf(row)
		if !ours {
			mark = mark.devicesOnly()
		}
		if wasTemplate {
			mark.template = true
		}
		if mark != known.row {
			known.due, known.failures, known.retryAt = true, 0, time.Time{}
		}
		known.row, known.host, known.ours = mark, row.Host, ours
	}
	for vmid := range d.entries {
		if !seen[vmid] {
			delete(d.entries, vmid)
		}
	}
}

// complete tells whether every configuration on a Host that is online was asked for.
func (d *configCache) complete(online map[string]bool) bool {
	for _, known := range d.entries {
		if online[known.host] && known.config == nil && known.failures == 0 {
			return false
		}
	}
	return true
}

// configs are those that were read.
func (d *configCache) configs() map[int]*proxmox.VMConfig {
	configs := make(map[int]*proxmox.VMConfig, len(d.entries))
	for vmid, known := range d.entries {
		if known.config != nil {
			configs[vmid] = known.config
		}
	}
	return configs
}

// wanted lists the VMIDs to read now: what is due, and the oldest one when it is a
// configuration's turn. Hosts that are away are not asked.
func (d *configCache) due(now time.Time, online map[string]bool, turn func() bool) []int {
	var vmids []int
	oldest := 0
	for vmid, known := range d.entries {
		switch {
		case !online[known.host]:
		case known.due && !now.Before(known.retryAt):
			vmids = append(vmids, vmid)
		case !known.due && (oldest == 0 || known.read.Before(d.entries[oldest].read)):
			oldest = vmid
		}
	}
	if oldest != 0 && turn() {
		vmids = append(vmids, oldest)
	}
	slices.Sort(vmids)
	return vmids
}

// readDetails reads the configurations that are wanted now, as many as the time
// allows, and tells whether that changed any.
func (c *cluster) readConfigs(ctx context.Context, resources proxmox.Resources, timeout time.Duration) bool {
	now, online := c.inventory.options.Clock.Now(), onlineHosts(resources.Hosts)
	vmids := c.configs.due(now, online, func() bool { return c.budget.tryAcquire(kindConfig, now) })
	if len(vmids) == 0 {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	var ours, others []int
	for _, vmid := range vmids {
		if c.configs.entries[vmid].ours {
			ours = append(ours, vmid)
		} else {
			others = append(others, vmid)
		}
	}
	changed := c.fetchConfigs(ctx, ours, now)
	return c.fetchConfigs(ctx, others, now) || changed
}

// readConfigs reads configurations, and tells whether that changed any.
func (c *cluster) fetchConfigs(ctx context.Context, vmids []int, now time.Time) bool {
	configs := make([]proxmox.VMConfig, len(vmids))
	errs := make([]error, len(vmids))
	var group errgroup.Group
	group.SetLimit(maxParallelReads)
	for n, vmid := range vmids {
		host := c.configs.entries[vmid].host
		group.Go(func() error {
			if errs[n] = ctx.Err(); errs[n] == nil {
				configs[n], errs[n] = c.client.VMConfig(ctx, host, vmid)
			}
			return nil
		})
	}
	_ = group.Wait() // each read keeps its own error
	changed := false
	for n, vmid := range vmids {
		if c.configs.entries[vmid].store(configs[n], errs[n], now) {
			changed = true
		}
	}
	return changed
}

// take keeps the outcome of a read and tells whether it changed what we know.
// A config that cannot be read leaves the last one in force, and its Host in the
// view: only proof that the guest is not there drops it.
func (d *configEntry) store(config proxmox.VMConfig, err error, now time.Time) bool {
	switch {
	case err == nil:
		changed := d.config == nil || !sameConfig(*d.config, config)
		d.config, d.due, d.read, d.failures = &config, false, now, 0
		return changed
	case errors.Is(err, proxmox.ErrNotFound):
		changed := d.config != nil
		d.config = nil
		d.scheduleRetry(now)
		return changed
	default:
		d.scheduleRetry(now)
		return false
	}
}

// again lets the next try wait, longer each time.
func (d *configEntry) scheduleRetry(now time.Time) {
	d.due = true
	d.retryAt = now.Add(min(retryDelay<<min(d.failures, 10), maxRetryDelay))
	d.failures++
}
