// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

const (
	// agentDelay is how long a guest may take until its agent runs, agentInterval how
	// often an agent that answers is asked again.
	agentDelay    = 2 * time.Minute
	agentInterval = time.Hour
	// agentPatience is how long nobody gets an address, after the start, because agents
	// were not asked yet: many may have been configured that do not run.
	agentPatience = time.Minute
)

// Others are the addresses that VM configurations do not tell.
type ReportedAddresses struct {
	// Guests' addresses by VMID: of containers by configuration, of VMs by their agent.
	Guests map[int][]netip.Addr
	SDN    []proxmox.SDNAddress
}

// others reads them. Only the poll under way touches it.
type others struct {
	containers map[int]*guestRead
	sdn        []proxmox.SDNAddress
	sdnRead    bool
	// mu guards the next three while several agents are asked at once.
	mu     sync.Mutex
	agents map[int]*guestRead
	// agentsFrom is when agents may be asked again, after Proxmox refused it, agentsSince
	// when the first was asked.
	agentsFrom, agentsSince time.Time
	// completed is true when everything was asked for once.
	completed bool
}

// guestRead is what a guest told, for the row that it was asked for.
type guestRead struct {
	row       rowMark
	addresses []netip.Addr
	next      time.Time
	tried     bool
}

func newOthers() *others {
	return &others{containers: map[int]*guestRead{}, agents: map[int]*guestRead{}}
}

// known is a copy of what was read.
func (o *others) known() ReportedAddresses {
	out := ReportedAddresses{Guests: map[int][]netip.Addr{}, SDN: o.sdn}
	for _, reads := range []map[int]*guestRead{o.containers, o.agents} {
		for vmid, read := range reads {
			out.Guests[vmid] = read.addresses
		}
	}
	return out
}

// complete tells whether all addresses that can be known are known. Once they were, they
// are: a guest that appears is read a moment later, and nobody waits for that.
func (c *cluster) complete(resources proxmox.Resources) bool {
	online := onlineHosts(resources.Hosts)
	if c.inventory.watchAddresses.Load() && c.facts.known != nil && c.details.complete(online) &&
		c.others.complete(resources.Guests, online) && c.agentsAsked(resources.Guests, online) {
		c.others.completed = true
	}
	return c.others.completed
}

// complete tells whether everything that can be read now was asked for at least once.
func (o *others) complete(rows []proxmox.GuestRow, online map[string]bool) bool {
	return !slices.ContainsFunc(rows, func(row proxmox.GuestRow) bool {
		read := o.containers[row.VMID]
		return row.Kind == proxmox.KindLXC && online[row.Host] && (read == nil || !read.tried)
	})
}

// readOthers reads what is due of it, and tells whether it asked for anything. It does
// so only for those who have address pools: see WatchAddresses.
func (c *cluster) readOthers(ctx context.Context, resources proxmox.Resources, timeout time.Duration) bool {
	if !c.inventory.watchAddresses.Load() {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	now, online := c.inventory.options.Clock.Now(), onlineHosts(resources.Hosts)
	asked := c.readSDN(ctx, now)
	asked = c.readContainers(ctx, resources.Guests, online, now) || asked
	return c.askAgents(ctx, resources.Guests, online, now) || asked
}

func onlineHosts(hosts []proxmox.HostRow) map[string]bool {
	online := make(map[string]bool, len(hosts))
	for _, host := range hosts {
		online[host.Name] = host.Online
	}
	return online
}

// readSDN reads the Cluster's own IPAM. A Cluster without one answers with an error or
// with nothing, and has no addresses there.
func (c *cluster) readSDN(ctx context.Context, now time.Time) bool {
	if turn := c.ration.take(turnSDN, now); c.others.sdnRead && !turn {
		return false
	}
	c.others.sdnRead = true
	if given, err := c.client.SDNAddresses(ctx); err == nil {
		c.others.sdn = given
	}
	return true
}

// readContainers reads the configurations of containers that are new or changed.
func (c *cluster) readContainers(ctx context.Context, rows []proxmox.GuestRow, online map[string]bool, now time.Time) (asked bool) {
	seen := map[int]bool{}
	var group errgroup.Group
	group.SetLimit(detailParallel)
	for _, row := range rows {
		if row.Kind != proxmox.KindLXC || row.Template {
			continue
		}
		seen[row.VMID] = true
		read := c.others.containers[row.VMID]
		if read == nil {
			read = &guestRead{}
			c.others.containers[row.VMID] = read
		}
		if read.tried && (read.row == markOf(row) || now.Before(read.next)) || !online[row.Host] {
			continue
		}
		asked = true
		group.Go(func() error {
			config, err := c.client.ContainerConfig(ctx, row.Host, row.VMID)
			switch {
			case err == nil:
				read.addresses, read.row = config.Network().Addresses(), markOf(row)
			case errors.Is(err, proxmox.ErrNotFound):
				read.addresses = nil
			default:
				read.next = now.Add(maxRetryDelay)
			}
			read.tried = read.tried || ctx.Err() == nil
			return nil
		})
	}
	_ = group.Wait() // each read keeps its own error
	for vmid := range c.others.containers {
		if !seen[vmid] {
			delete(c.others.containers, vmid)
		}
	}
	return asked
}
