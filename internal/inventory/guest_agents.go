// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"context"
	"errors"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// readAgents reads the addresses of running VMs of other users from their guest agents, if
// the configuration enables one: once after the VM started and then at most once an hour,
// as the call budget allows. It reports whether it made a call. An agent that does not
// respond blocks one of its Host's three workers for three seconds. Therefore only one
// agent is read per poll; before the first complete read, one at a time on each Host.
func (c *cluster) readAgents(ctx context.Context, rows []proxmox.GuestRow, online map[string]bool, now time.Time) bool {
	due := c.dueAgents(rows, online, now)
	if len(due) == 0 || now.Before(c.addresses.agentsBlockedUntil) {
		return false
	}
	if c.addresses.agentsStarted.IsZero() {
		c.addresses.agentsStarted = now
	}
	if c.addresses.completed {
		if due = c.nextAgent(due, now); len(due) == 0 {
			return false
		}
	}
	byHost := map[string][]int{}
	for _, row := range due {
		byHost[row.Host] = append(byHost[row.Host], row.VMID)
	}
	var group errgroup.Group
	group.SetLimit(maxParallelReads)
	for host, vmids := range byHost {
		group.Go(func() error {
			for _, vmid := range vmids {
				if !c.readAgent(ctx, host, vmid, now) {
					return nil
				}
			}
			return nil
		})
	}
	_ = group.Wait() // readAgent handles errors
	return true
}

// nextAgent returns the first agent that was never read. If there is none, it returns the
// first one that is due, provided that the call budget grants a slot.
func (c *cluster) nextAgent(due []proxmox.GuestRow, now time.Time) []proxmox.GuestRow {
	for n, row := range due {
		if c.addresses.agents[row.VMID] == nil {
			return due[n : n+1]
		}
	}
	if c.budget.tryAcquire(kindAgent, now) {
		return due[:1]
	}
	return nil
}

// dueAgents returns the VMs whose agent is due. It evicts VMs that stopped, because their
// addresses may change with the next start, and keeps those whose status is unknown.
func (c *cluster) dueAgents(rows []proxmox.GuestRow, online map[string]bool, now time.Time) (due []proxmox.GuestRow) {
	seen := map[int]bool{}
	for _, row := range rows {
		if row.Status == statusStopped || !c.hasAgent(row) {
			continue
		}
		seen[row.VMID] = true
		read := c.addresses.agents[row.VMID]
		if online[row.Host] && row.Status == statusRunning && row.UptimeSeconds >= int64(agentDelay/time.Second) && (read == nil || now.After(read.nextRead)) {
			due = append(due, row)
		}
	}
	for vmid := range c.addresses.agents {
		if !seen[vmid] {
			delete(c.addresses.agents, vmid)
		}
	}
	return due
}

// readAgent reads one agent and reports whether further agents may be read.
func (c *cluster) readAgent(ctx context.Context, host string, vmid int, now time.Time) bool {
	addresses, err := c.client.GuestAddresses(ctx, host, vmid)
	c.addresses.mu.Lock()
	defer c.addresses.mu.Unlock()
	if _, forbidden := errors.AsType[*proxmox.ForbiddenError](err); forbidden {
		// The privilege is optional. Do not try every VM.
		c.addresses.agentsBlockedUntil = now.Add(agentInterval)
	}
	if errors.Is(err, context.DeadlineExceeded) || now.Before(c.addresses.agentsBlockedUntil) {
		return false
	}
	if last := c.addresses.agents[vmid]; err != nil && last != nil {
		addresses = last.addresses // the guest still has them
	}
	c.addresses.agents[vmid] = &guestAddresses{addresses: addresses, nextRead: now.Add(agentInterval)}
	return true
}

// agentsComplete reports whether every agent that can respond was read once, or the timeout
// for that has passed.
func (c *cluster) agentsComplete(rows []proxmox.GuestRow, online map[string]bool) bool {
	now := c.inventory.options.Clock.Now()
	if now.Before(c.addresses.agentsBlockedUntil) || (!c.addresses.agentsStarted.IsZero() && now.Sub(c.addresses.agentsStarted) >= agentStartTimeout) {
		return true
	}
	return len(c.dueAgents(rows, online, now)) == 0
}

// hasAgent reports whether a row is a VM of another user with a guest agent.
func (c *cluster) hasAgent(row proxmox.GuestRow) bool {
	entry := c.configs.entries[row.VMID]
	return entry != nil && entry.config != nil && entry.config.Network().AgentEnabled() &&
		!c.inventory.options.DetailRange.Contains(row.VMID)
}
