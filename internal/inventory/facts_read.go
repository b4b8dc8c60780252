// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"context"
	"reflect"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// Doubt asks that some Facts of a Cluster are read again with its next poll, unless
// they were a moment ago: a decision rests on them that somebody may have mended.
func (i *Inventory) Invalidate(region string, doubted ...Fact) {
	c, ok := i.clusters[region]
	if !ok {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, fact := range doubted {
		c.invalidated[fact] = true
	}
}

func (c *cluster) takeInvalidated() map[Fact]bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	doubts := c.invalidated
	c.invalidated = map[Fact]bool{}
	return doubts
}

// readFacts reads the Facts that are due, and tells whether that changed any. One
// that cannot be read leaves what was known before in force.
func (c *cluster) readFacts(ctx context.Context, resources proxmox.Resources, timeout time.Duration) bool {
	var hosts []string
	for _, host := range resources.Hosts {
		if host.Online {
			hosts = append(hosts, host.Name)
		}
	}
	now := c.inventory.options.Clock.Now()
	due := c.facts.due(now, hosts, c.takeInvalidated(), func() bool { return c.budget.tryAcquire(kindFact, now) })
	if len(due) == 0 {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	changes := make([]func(*Facts), len(due))
	errs := make([]error, len(due))
	var group errgroup.Group
	group.SetLimit(maxParallelReads)
	for n, fact := range due {
		group.Go(func() error {
			changes[n], errs[n] = c.readFact(ctx, fact)
			return nil
		})
	}
	_ = group.Wait() // each read keeps its own error
	before := c.facts.known
	options := c.info.options
	for n, fact := range due {
		c.facts.record(fact, c.inventory.options.Clock.Now(), errs[n])
		if errs[n] != nil {
			c.inventory.options.Log.V(1).Info("reading a fact of the Cluster failed", "region", c.region, "fact", fact, "error", errs[n].Error())
			continue
		}
		c.facts.update(changes[n])
	}
	if reflect.DeepEqual(before, c.facts.known) {
		c.facts.known = before // the same one, so that Snapshots compare quickly
		return !reflect.DeepEqual(options, c.info.options)
	}
	return true
}

// readFact makes one call and gives what it changes.
func (c *cluster) readFact(ctx context.Context, fact Fact) (func(*Facts), error) {
	switch fact.kind {
	case FactOptions.kind:
		options, err := c.client.Options(ctx)
		return func(*Facts) { c.info.options = options }, err
	case FactPermissions.kind:
		permissions, err := c.client.Permissions(ctx)
		return func(f *Facts) { f.User, f.Permissions = c.client.User(), permissions }, err
	case FactSecurityGroups.kind:
		groups, err := c.client.SecurityGroups(ctx)
		return func(f *Facts) { f.SecurityGroups = setOf(groups) }, err
	case FactVNets.kind:
		vnets, err := c.client.VNets(ctx)
		return func(f *Facts) { f.VNets = byName(vnets, func(v proxmox.VNet) string { return v.Name }) }, err
	case FactDirectories.kind:
		mappings, err := c.client.DirectoryMappings(ctx)
		return func(f *Facts) {
			f.Directories = byName(mappings, func(m proxmox.DirectoryMapping) string { return m.ID })
		}, err
	case "bridges":
		bridges, err := c.client.Bridges(ctx, fact.of)
		return func(f *Facts) {
			f.Bridges[fact.of] = byName(bridges, func(b proxmox.Bridge) string { return b.Name })
		}, err
	case "snippets":
		volumes, err := c.client.Volumes(ctx, fact.on, fact.of, fact.kind)
		snippets := make(map[string]bool, len(volumes))
		for _, volume := range volumes {
			snippets[volume.ID] = true
		}
		return func(f *Facts) { f.Snippets[StorageKey{Host: fact.on, Storage: fact.of}] = snippets }, err
	default:
		exists, err := c.client.PoolExists(ctx, fact.of)
		return func(f *Facts) { f.Pools[fact.of] = exists }, err
	}
}

func setOf(names []string) map[string]bool {
	out := make(map[string]bool, len(names))
	for _, name := range names {
		out[name] = true
	}
	return out
}

func byName[V any](values []V, name func(V) string) map[string]V {
	out := make(map[string]V, len(values))
	for _, value := range values {
		out[name(value)] = value
	}
	return out
}
