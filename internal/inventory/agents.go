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

// askAgents asks the guest agents of other people's VMs that run, and whose configuration
// says that they have one: once after their start and then in turn, at most once an hour.
// An agent that does not answer blocks one of its Host's three workers for three seconds,
// so that one is asked per poll; at the start, when no address is given before they were
// asked, one at a time on each Host.
func (c *cluster) askAgents(ctx context.Context, rows []proxmox.GuestRow, online map[string]bool, now time.Time) bool {
	due := c.dueAgents(rows, online, now)
	if len(due) == 0 || now.Before(c.others.agentsFrom) {
		return false
	}
	if c.others.agentsSince.IsZero() {
		c.others.agentsSince = now
	}
	if c.others.completed {
		if due = c.nextAgent(due, now); len(due) == 0 {
			return false
		}
	}
	byHost := map[string][]int{}
	for _, row := range due {
		byHost[row.Host] = append(byHost[row.Host], row.VMID)
	}
	var group errgroup.Group
	group.SetLimit(detailParallel)
	for host, vmids := range byHost {
		group.Go(func() error {
			for _, vmid := range vmids {
				if !c.askAgent(ctx, host, vmid, now) {
					return nil
				}
			}
			return nil
		})
	}
	_ = group.Wait() // what an agent did not tell is not known
	return true
}

// nextAgent is one that was never asked, or one that is asked again when it is its turn.
func (c *cluster) nextAgent(due []proxmox.GuestRow, now time.Time) []proxmox.GuestRow {
	for n, row := range due {
		if c.others.agents[row.VMID] == nil {
			return due[n : n+1]
		}
	}
	if c.ration.take(turnAgent, now) {
		return due[:1]
	}
	return nil
}

// dueAgents lists whom to ask, and forgets what those told who stopped: next time they
// may have other addresses.
func (c *cluster) dueAgents(rows []proxmox.GuestRow, online map[string]bool, now time.Time) (due []proxmox.GuestRow) {
	seen := map[int]bool{}
	for _, row := range rows {
		if !online[row.Host] || !c.hasAgent(row) {
			continue
		}
		seen[row.VMID] = true
		read := c.others.agents[row.VMID]
		if row.UptimeSeconds >= int64(agentDelay/time.Second) && (read == nil || now.After(read.next)) {
			due = append(due, row)
		}
	}
	for vmid := range c.others.agents {
		if !seen[vmid] {
			delete(c.others.agents, vmid)
		}
	}
	return due
}

// askAgent asks one agent, and tells whether others may be asked as well.
func (c *cluster) askAgent(ctx context.Context, host string, vmid int, now time.Time) bool {
	addresses, err := c.client.GuestAddresses(ctx, host, vmid)
	c.others.mu.Lock()
	defer c.others.mu.Unlock()
	if _, forbidden := errors.AsType[*proxmox.ForbiddenError](err); forbidden {
		// The token has no such privilege, and needs none.
		c.others.agentsFrom = now.Add(agentInterval)
	}
	if errors.Is(err, context.DeadlineExceeded) || now.Before(c.others.agentsFrom) {
		return false
	}
	c.others.agents[vmid] = &guestRead{addresses: addresses, next: now.Add(agentInterval)}
	return true
}

// agentsAsked tells whether every agent that can answer was asked once, or took too long.
func (c *cluster) agentsAsked(rows []proxmox.GuestRow, online map[string]bool) bool {
	now := c.inventory.options.Clock.Now()
	if now.Before(c.others.agentsFrom) || (!c.others.agentsSince.IsZero() && now.Sub(c.others.agentsSince) >= agentPatience) {
		return true
	}
	return len(c.dueAgents(rows, online, now)) == 0
}

// hasAgent tells whether a guest is somebody else's VM that runs, with an agent.
func (c *cluster) hasAgent(row proxmox.GuestRow) bool {
	detail := c.details.known[row.VMID]
	return row.Status == statusRunning && detail != nil && detail.config != nil && detail.config.Network().AgentEnabled() &&
		!c.inventory.options.DetailRange.Contains(row.VMID)
}
