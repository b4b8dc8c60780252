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
	// agentDelay is the uptime after which the agent of a guest is expected to run.
	agentDelay = 2 * time.Minute
	// agentInterval is the minimum time between two reads of an agent.
	agentInterval = time.Hour
	// agentStartTimeout limits how long addresses are considered unknown after startup
	// because agents were not read yet. Some configured agents may never respond.
	agentStartTimeout = time.Minute
)

// ReportedAddresses are the addresses that are not in VM configurations.
type ReportedAddresses struct {
	// Guests are addresses by VMID: of containers from their configuration, of VMs from
	// their agent.
	Guests map[int][]netip.Addr
	// SDN are the addresses in the IPAM of Proxmox.
	SDN []proxmox.SDNAddress
}

// addressCache caches the ReportedAddresses of a Cluster. Only the poll in progress uses
// it.
type addressCache struct {
	containers map[int]*guestAddresses
	sdn        []proxmox.SDNAddress
	sdnRead    bool
	// mu guards the next three fields while agents are read in parallel.
	mu     sync.Mutex
	agents map[int]*guestAddresses
	// agentsBlockedUntil is when agents may be read again after Proxmox denied it,
	// agentsStarted when the first agent was read.
	agentsBlockedUntil, agentsStarted time.Time
	// completed is true once everything was read.
	completed bool
}

// maxHangingReads is how often a read may be ended by the time of the poll, until the others no
// longer wait for it.
const maxHangingReads = 3

// guestAddresses are the addresses of one guest and the row at that time.
type guestAddresses struct {
	row       rowFingerprint
	addresses []netip.Addr
	nextRead  time.Time
	tried     bool
	triedAt   time.Time
	// failures is how often a read failed since the last success.
	failures int
}

func newAddressCache() *addressCache {
	return &addressCache{containers: map[int]*guestAddresses{}, agents: map[int]*guestAddresses{}}
}

// reported returns a copy of the cached addresses.
func (a *addressCache) reported() ReportedAddresses {
	out := ReportedAddresses{Guests: map[int][]netip.Addr{}, SDN: a.sdn}
	for _, reads := range []map[int]*guestAddresses{a.containers, a.agents} {
		for vmid, read := range reads {
			out.Guests[vmid] = read.addresses
		}
	}
	return out
}

// addressesComplete reports whether all addresses were read at least once. It stays true
// after that: new guests are read with the next poll, and launches do not wait for it.
func (c *cluster) addressesComplete(resources proxmox.Resources) bool {
	online := onlineHosts(resources.Hosts)
	if c.inventory.watchAddresses.Load() && c.facts.known != nil && c.configs.complete(online) &&
		c.addresses.containersComplete(resources.Guests, online) && c.agentsComplete(resources.Guests, online) {
		c.addresses.completed = true
	}
	return c.addresses.completed
}

// containersComplete reports whether every container on an online Host was read at least
// once.
func (a *addressCache) containersComplete(rows []proxmox.GuestRow, online map[string]bool) bool {
	return !slices.ContainsFunc(rows, func(row proxmox.GuestRow) bool {
		read := a.containers[row.VMID]
		return row.Kind == proxmox.KindLXC && online[row.Host] && (read == nil || !read.tried)
	})
}

// readAddresses reads the addresses that are due and reports whether it made a call. It
// reads nothing before WatchAddresses was called.
func (c *cluster) readAddresses(ctx context.Context, resources proxmox.Resources, timeout time.Duration) bool {
	if !c.inventory.watchAddresses.Load() {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	now, online := c.inventory.options.Clock.Now(), onlineHosts(resources.Hosts)
	called := c.readSDN(ctx, now)
	called = c.readContainers(ctx, resources.Guests, online, now) || called
	return c.readAgents(ctx, resources.Guests, online, now) || called
}

func onlineHosts(hosts []proxmox.HostRow) map[string]bool {
	online := make(map[string]bool, len(hosts))
	for _, host := range hosts {
		online[host.Name] = host.Online
	}
	return online
}

// readSDN reads the IPAM of Proxmox. A Cluster without SDN returns an error or an empty
// list and has no addresses there.
func (c *cluster) readSDN(ctx context.Context, now time.Time) bool {
	if due := c.budget.tryAcquire(kindSDN, now); c.addresses.sdnRead && !due {
		return false
	}
	c.addresses.sdnRead = true
	if addresses, err := c.client.SDNAddresses(ctx); err == nil {
		c.addresses.sdn = addresses
	}
	return true
}

// oldestContainer returns the container that was read first if the call budget grants a slot:
// a change of its addresses does not change its row. It returns 0 if nothing is to be read.
func (c *cluster) oldestContainer(rows []proxmox.GuestRow, online map[string]bool, now time.Time) int {
	oldest := 0
	for _, row := range rows {
		read := c.addresses.containers[row.VMID]
		if read != nil && read.tried && online[row.Host] && (oldest == 0 || read.triedAt.Before(c.addresses.containers[oldest].triedAt)) {
			oldest = row.VMID
		}
	}
	if oldest == 0 || !c.budget.tryAcquire(kindContainer, now) {
		return 0
	}
	return oldest
}

// readContainer reads the addresses of a container. A read that the poll has no time for is not
// counted as tried, unless that happens repeatedly.
func (c *cluster) readContainer(ctx context.Context, row proxmox.GuestRow, read *guestAddresses, now time.Time) {
	if ctx.Err() != nil {
		return
	}
	config, err := c.client.ContainerConfig(ctx, row.Host, row.VMID)
	read.failures++
	switch {
	case err == nil:
		read.addresses, read.row, read.failures = config.Network().Addresses(), fingerprintOf(row), 0
	case errors.Is(err, proxmox.ErrNotFound):
		read.addresses = nil
	case ctx.Err() != nil && read.failures < maxHangingReads:
		return // the time was too short
	default:
		read.nextRead = now.Add(maxRetryDelay)
	}
	read.tried, read.triedAt = true, now
}

// readContainers reads the configurations of new and changed containers and, as the call budget
// allows, of others. It reports whether it made a call.
func (c *cluster) readContainers(ctx context.Context, rows []proxmox.GuestRow, online map[string]bool, now time.Time) (called bool) {
	seen, oldest := map[int]bool{}, c.oldestContainer(rows, online, now)
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
		unchanged := read.row == fingerprintOf(row) || now.Before(read.nextRead)
		if read.tried && unchanged && row.VMID != oldest || !online[row.Host] {
			continue
		}
		called = true
		group.Go(func() error {
			c.readContainer(ctx, row, read, now)
			return nil
		})
	}
	_ = group.Wait() // errors are handled per read
	for vmid := range c.addresses.containers {
		if !seen[vmid] {
			delete(c.addresses.containers, vmid)
		}
	}
	return called
}
