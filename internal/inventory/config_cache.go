// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/backoff"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

const (
	// maxParallelReads limits the parallel reads of a Cluster. A Host has three workers for
	// all its clients.
	maxParallelReads = 3
	// firstReadTimeout limits the reads of the first poll instead of Options.ReadTimeout,
	// because the first Snapshot waits for all configurations.
	firstReadTimeout = 15 * time.Second
	// maxRetryDelay limits the backoff for what cannot be read.
	maxRetryDelay = 10 * time.Minute
)

// configRetry is the backoff for a configuration that cannot be read.
var configRetry = backoff.Exponential{Initial: 10 * time.Second, Max: maxRetryDelay}

// configCache caches the configurations of all VMs and templates in a Cluster. Those of
// other users are needed for their PCI devices and CPUs.
type configCache struct {
	entries map[int]*configEntry
}

// configEntry is the configuration of one guest and the row for which it was read.
type configEntry struct {
	row  rowFingerprint
	host string
	// ours is true for VMs in our range and for templates. They are read first.
	ours   bool
	config *proxmox.VMConfig
	// due is true if the row changed since the configuration was read.
	due      bool
	read     time.Time
	failures int
	retryAt  time.Time
}

// rowFingerprint contains the fields of a row that change together with the configuration.
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

// devicesOnly omits fields that are unrelated to the devices and CPUs of a guest. A nightly
// backup of all guests must not cause reads of all configurations.
func (m rowFingerprint) devicesOnly() rowFingerprint {
	m.name, m.lock, m.tags = "", "", ""
	return m
}

// update marks the configurations that are due and evicts guests that no longer exist.
func (d *configCache) update(rows []proxmox.GuestRow, own VMIDRange) {
	seen := make(map[int]bool, len(d.entries))
	for _, row := range rows {
		entry := d.entries[row.VMID]
		// A row without resources has no template flag either.
		wasTemplate := entry != nil && entry.row.template && !row.HasResources()
		if row.Kind != proxmox.KindQEMU {
			continue
		}
		ours := row.Template || wasTemplate || own.Contains(row.VMID)
		seen[row.VMID] = true
		if entry == nil {
			entry = &configEntry{due: true}
			d.entries[row.VMID] = entry
		}
		fingerprint := fingerprintOf(row)
		if !ours {
			fingerprint = fingerprint.devicesOnly()
		}
		if wasTemplate {
			fingerprint.template = true
		}
		if fingerprint != entry.row {
			entry.due, entry.failures, entry.retryAt = true, 0, time.Time{}
		}
		entry.row, entry.host, entry.ours = fingerprint, row.Host, ours
	}
	for vmid := range d.entries {
		if !seen[vmid] {
			delete(d.entries, vmid)
		}
	}
}

// InvalidateConfig records that this process changed the configuration of a VM, which the list of
// VMs may not show. It is read again with the next poll.
func (i *Inventory) InvalidateConfig(region string, vmid int) {
	if c, ok := i.clusters[region]; ok {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.written[vmid]++
	}
}

// HasCurrentConfig reports whether the View has the configuration of a VM, with all changes of this
// process.
func (i *Inventory) HasCurrentConfig(region string, vmid int) bool {
	c, ok := i.clusters[region]
	if guest, listed := i.View().Guest(region, vmid); !ok || !listed || guest.Config == nil {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.written[vmid] == 0
}

// readWritten makes the configurations that this process changed due. The function that it returns
// ends that for those that were read.
func (c *cluster) readWritten() (end func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	written := maps.Clone(c.written)
	for vmid := range written {
		if entry := c.configs.entries[vmid]; entry != nil {
			entry.due, entry.failures, entry.retryAt = true, 0, time.Time{}
		}
	}
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		for vmid, count := range written {
			if entry := c.configs.entries[vmid]; c.written[vmid] == count && (entry == nil || !entry.due) {
				delete(c.written, vmid)
			}
		}
	}
}

// complete reports whether a read of every configuration on an online Host was tried.
func (d *configCache) complete(online map[string]bool) bool {
	for _, entry := range d.entries {
		if online[entry.host] && entry.config == nil && entry.failures == 0 {
			return false
		}
	}
	return true
}

// configs returns the configurations that were read.
func (d *configCache) configs() map[int]*proxmox.VMConfig {
	configs := make(map[int]*proxmox.VMConfig, len(d.entries))
	for vmid, entry := range d.entries {
		if entry.config != nil {
			configs[vmid] = entry.config
		}
	}
	return configs
}

// due returns the VMIDs to read now: the configurations that are due, and the oldest one if
// acquire grants a slot of the call budget. It skips guests on Hosts that are offline.
func (d *configCache) due(now time.Time, online map[string]bool, acquire func() bool) []int {
	var vmids []int
	oldest := 0
	for vmid, entry := range d.entries {
		switch {
		case !online[entry.host]:
		case entry.due && !now.Before(entry.retryAt):
			vmids = append(vmids, vmid)
		case !entry.due && (oldest == 0 || entry.read.Before(d.entries[oldest].read)):
			oldest = vmid
		}
	}
	if oldest != 0 && acquire() {
		vmids = append(vmids, oldest)
	}
	slices.Sort(vmids)
	return vmids
}

// readConfigs reads the configurations that are due until the timeout, and reports whether
// any changed.
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

// fetchConfigs reads the configurations of the given VMs and reports whether any changed.
func (c *cluster) fetchConfigs(ctx context.Context, vmids []int, now time.Time) bool {
	configs := make([]proxmox.VMConfig, len(vmids))
	errs := make([]error, len(vmids))
	started := readParallel(ctx, len(vmids), func(n int) {
		configs[n], errs[n] = c.client.VMConfig(ctx, c.configs.entries[vmids[n]].host, vmids[n])
	})
	changed := false
	for n, vmid := range vmids {
		if started[n] && c.configs.entries[vmid].store(configs[n], errs[n], now) {
			changed = true
		}
	}
	return changed
}

// readParallel calls read for each number below count until the context ends, and returns
// which calls it started. The others are still due with the next poll.
func readParallel(ctx context.Context, count int, read func(n int)) []bool {
	started := make([]bool, count)
	var group errgroup.Group
	group.SetLimit(maxParallelReads)
	for n := range count {
		group.Go(func() error {
			if started[n] = ctx.Err() == nil; started[n] {
				read(n)
			}
			return nil
		})
	}
	_ = group.Wait() // no call returns an error
	return started
}

// store records the outcome of a read and reports whether the cached configuration changed.
// An error other than ErrNotFound keeps the last configuration.
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

// scheduleRetry sets the time of the next try with exponential backoff.
func (d *configEntry) scheduleRetry(now time.Time) {
	d.due = true
	d.retryAt = now.Add(configRetry.Delay(d.failures))
	d.failures++
}
