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
	agentStartTimeout = time.Minute
)

// Others are the addresses that VM configurations do not tell.
type ReportedAddresses struct {
	// Guests' addresses by VMID: of containers by configuration, of VMs by their agent.
	Guests map[int][]netip.Addr
	SDN    []proxmox.SDNAddress
}

// others reads them. Only the poll under way touches it.
type addressCache struct {
	containers map[int]*guestAddresses
	sdn        []proxmox.SDNAddress
	sdnRead    bool
	// mu guards the next three while several agents are asked at once.
	mu     sync.Mutex
	agents map[int]*guestAddresses
	// agentsFrom is when agents may be asked again, after Proxmox refused it, agentsSince
	// when the first was asked.
	agentsBlockedUntil, agentsStarted time.Time
	// completed is true when everything was asked for once.
	completed bool
}

// guestRead is what a guest told, for the row that it was asked for.
type guestAddresses struct {
	row       rowFingerprint
	addresses []netip.Addr
	nextRead  time.Time
	tried     bool
}

func newAddressCache() *addressCache {
	return &addressCache{containers: map[int]*guestAddresses{}, agents: map[int]*guestAddresses{}}
}

// known is a copy of what was read.
func (o *addressCache) reported() ReportedAddresses {
	out := ReportedAddresses{Guests: map[int][]netip.Addr{}, SDN: o.sdn}
	for _, reads := range []map[int]*guestAddresses{o.containers, o.agents} {
		for vmid, read := range reads {
			out.Guests[vmid] = read.addresses
		}
	}
	return out
}

// complete tells whether all addresses that can be known are known. Once they were, they
// are: a guest that appears is read a moment later, and nobody waits for that.
func (c *cluster) addressesComplete(resources proxmox.Resources) bool {
	online := onlineHosts(resources.Hosts)
	if c.inventory.watchAddresses.Load() && c.facts.known != nil && c.configs.complete(online) &&
		c.addresses.containersComplete(resources.Guests, online) && c.agentsComplete(resources.Guests, online) {
		c.addresses.completed = true
	}
	return c.addresses.completed
}

// complete tells whether everything that can be read now was asked for at least once.
func (o *addressCache) containersComplete(rows []proxmox.GuestRow, online map[string]bool) bool {
	return !slices.ContainsFunc(rows, func(row proxmox.GuestRow) bool {
		read := o.containers[row.VMID]
		return row.Kind == proxmox.KindLXC && online[row.Host] && (read == nil || !read.tried)
	})
}

// readOthers reads what is due of it, and tells whether it asked for anything. It does
// so only for those who have address pools: see WatchAddresses.
func (c *cluster) readAddresses(ctx context.Context, resources proxmox.Resources, timeout time.Duration) bool {
	if !c.inventory.watchAddresses.Load() {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	now, online := c.inventory.options.Clock.Now(), onlineHosts(resources.Hosts)
	asked := c.readSDN(ctx, now)
	asked = c.readContainers(ctx, resources.Guests, online, now) || asked
	return c.readAgents(ctx, resources.Guests, online, now) || asked
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
	if turn := c.budget.tryAcquire(kindSDN, now); c.addresses.sdnRead && !turn {
		return false
	}
	c.addresses.sdnRead = true
	if given, err := c.client.SDNAddresses(ctx); err == nil {
		c.addresses.sdn = given
	}
	return true
}

// readContainers reads the configurations of containers that are new or changed.
func (c *cluster) readContainers(ctx context.Context, rows []proxmox.GuestRow, online map[string]bool, now time.Time) (asked bool) {
	seen := map[int]bool{}
	var group errgroup.Group
	group.SetLimit(maxParallelReads)
	for _, row := range rows {
		if row.Kind != proxmox.KindLXC || row.Template {
			continue
		}
		seen[row.VMID] = true
		read := c.addresses.containers[row.VMID]
		if read == nil {
			read = &guestAddresses{}
			c.addresses.containers[row.VMID] = read
		}
		if read.tried && (read.row == fingerprintOf(row) || now.Before(read.nextRead)) || !online[row.Host] {
			continue
		}
		asked = true
		group.Go(func() error {
			config, err := c.client.ContainerConfig(ctx, row.Host, row.VMID)
			switch {
			case err == nil:
				read.addresses, read.row = config.Addresses(), fingerprintOf(row)
			case errors.Is(err, proxmox.ErrNotFound):
				read.addresses = nil
			default:
				read.nextRead = now.Add(maxRetryDelay)
			}
			read.tried = read.tried || ctx.Err() == nil
			return nil
		})
	}
	_ = group.Wait() // each read keeps its own error
	for vmid := range c.addresses.containers {
		if !seen[vmid] {
			delete(c.addresses.containers, vmid)
		}
	}
	return asked
}
