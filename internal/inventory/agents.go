// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"context"
	"errors"
	"time"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// askAgent asks the guest agent of at most one VM: other people's VMs that run, whose
// configuration says that they have an agent, once after their start and then once an
// hour. An agent that does not answer blocks one of the Host's three workers for three
// seconds, so that more would be a burden.
func (c *cluster) askAgent(ctx context.Context, rows []proxmox.GuestRow, online map[string]bool, now time.Time) bool {
	seen, due := map[int]bool{}, proxmox.GuestRow{}
	for _, row := range rows {
		if !online[row.Host] || !c.hasAgent(row) {
			continue
		}
		seen[row.VMID] = true
		if row.UptimeSeconds < int64(agentDelay/time.Second) {
			continue
		}
		if read := c.others.agents[row.VMID]; (read == nil || now.After(read.next)) && due.VMID == 0 {
			due = row
		}
	}
	for vmid := range c.others.agents {
		if !seen[vmid] {
			delete(c.others.agents, vmid) // it stopped: next time it may have other addresses
		}
	}
	if due.VMID == 0 || now.Before(c.others.agentsFrom) {
		return false
	}
	addresses, err := c.client.GuestAddresses(ctx, due.Host, due.VMID)
	if _, forbidden := errors.AsType[*proxmox.ForbiddenError](err); forbidden {
		// The token has no such privilege, and needs none.
		c.others.agentsFrom = now.Add(agentInterval)
		return true
	}
	c.others.agents[due.VMID] = &guestRead{addresses: addresses, next: now.Add(agentInterval)}
	return true
}

// hasAgent tells whether a guest is somebody else's VM that runs, with an agent.
func (c *cluster) hasAgent(row proxmox.GuestRow) bool {
	detail := c.details.known[row.VMID]
	return row.Status == statusRunning && detail != nil && detail.config != nil && detail.config.AgentEnabled() &&
		!c.inventory.options.DetailRange.Contains(row.VMID)
}
