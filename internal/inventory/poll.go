// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// pollTimeout bounds one poll; a Cluster that hangs is as good as dead.
const pollTimeout = 30 * time.Second

// cluster polls one Cluster. Polls never overlap.
type cluster struct {
	inventory *Inventory
	client    proxmox.Client
	region    string
	wake      chan struct{} // ends the pause before the next poll

	mu          sync.Mutex
	current     *pollCall // the poll under way
	next        *pollCall // the one that was asked for meanwhile
	invalidated map[Fact]bool
	budget      *callBudget

	// Only the poll under way touches what follows.
	configs   configCache
	info      clusterInfo
	hardware  hardwareCache
	facts     factCache
	addresses *addressCache
}

// flight is one poll that several callers may wait for.
type pollCall struct {
	poll func() error
	done chan struct{}
	err  error
}

func newCluster(i *Inventory, client proxmox.Client) *cluster {
	return &cluster{
		inventory:   i,
		client:      client,
		region:      client.Region(),
		wake:        make(chan struct{}, 1),
		invalidated: map[Fact]bool{},
		budget:      newCallBudget(i.options.Interval),
		configs:     configCache{entries: map[int]*configEntry{}},
		hardware:    hardwareCache{},
		facts:       newFactCache(),
		addresses:   newAddressCache(),
	}
}

// run polls until the context ends.
func (c *cluster) run(ctx context.Context) {
	for {
		<-c.joinPoll(ctx, false).done
		timer := c.inventory.options.Clock.NewTimer(c.inventory.options.Interval)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-c.wake:
			timer.Stop()
		case <-timer.C():
		}
	}
}

// refresh waits for a poll that begins after the call.
func (c *cluster) refresh(ctx context.Context) error {
	// Others may wait for the same poll, so it does not end with this caller.
	f := c.joinPoll(context.WithoutCancel(ctx), true)
	select {
	case <-f.done:
		return f.err
	case <-ctx.Done():
		return fmt.Errorf("waiting for the poll of %s, %w", c.region, ctx.Err())
	}
}

// join gives the poll under way, or starts one. With fresh, it must not have
// begun before.
func (c *cluster) joinPoll(ctx context.Context, fresh bool) *pollCall {
	c.mu.Lock()
	defer c.mu.Unlock()
	f := &pollCall{poll: func() error { return c.poll(ctx) }, done: make(chan struct{})}
	switch {
	case c.current == nil:
		c.current = f
		go c.execute(c.current)
		return c.current
	case !fresh:
		return c.current
	case c.next == nil:
		c.next = f
	}
	return c.next
}

// fly polls, and starts the next poll if one was asked for meanwhile.
func (c *cluster) execute(f *pollCall) {
	f.err = f.poll()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.current, c.next = c.next, nil
	if c.current != nil {
		go c.execute(c.current)
	}
	close(f.done)
}

// poll reads the Cluster once and publishes what it found: first the rows, so
// that a Host that hangs on the details delays nobody, then the details. Only the
// very first Snapshot waits for them: without its configuration a VM of ours
// cannot be told from another, and would seem to be missing.
func (c *cluster) poll(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, pollTimeout)
	defer cancel()
	began := c.inventory.options.Clock.Now()
	resources, err := c.readResources(ctx)
	if errors.Is(ctx.Err(), context.Canceled) {
		return ctx.Err() // we are going down: no verdict on the Cluster
	}
	c.inventory.metrics.observePoll(c.region, c.inventory.options.Clock.Since(began), err)
	if err != nil {
		c.info = c.info.dueAgain() // it may come back as another release
		c.inventory.recordFailure(c.region, err)
		return fmt.Errorf("polling region %s, %w", c.region, err)
	}
	c.readVersion(ctx)
	c.readMappings(ctx)
	c.readMaintenance(ctx, resources.Hosts)
	c.configs.update(resources.Guests, c.inventory.options.DetailRange)
	if c.inventory.View().Snapshots[c.region] == nil {
		c.readFacts(ctx, resources, readTimeout)
		c.readConfigs(ctx, resources, firstReadTimeout)
		c.readHardware(ctx, resources.Hosts)
		c.readAddresses(ctx, resources, readTimeout)
		c.accept(resources, began)
		return nil
	}
	c.accept(resources, began)
	facts := c.readFacts(ctx, resources, readTimeout)
	configs, hosts := c.readConfigs(ctx, resources, readTimeout), c.readHardware(ctx, resources.Hosts)
	if others := c.readAddresses(ctx, resources, readTimeout); facts || configs || hosts || others {
		c.accept(resources, began)
	}
	return nil
}

func (c *cluster) accept(resources proxmox.Resources, began time.Time) {
	c.inventory.accept(PollResult{
		Region:            c.region,
		Taken:             c.inventory.options.Clock.Now(),
		Version:           c.info.version,
		Options:           c.info.options,
		Facts:             c.facts.known,
		Resources:         resources,
		Configs:           c.configs.configs(),
		Mappings:          c.info.mappings,
		Hardware:          c.hardware.known(),
		ReportedAddresses: c.addresses.reported(),
		Complete:          c.addressesComplete(resources),
	}, began)
}

// read makes the one call of a poll, and refuses an answer that cannot be true:
// Proxmox leaves out what the token may not see, without an error.
func (c *cluster) readResources(ctx context.Context) (proxmox.Resources, error) {
	resources, err := c.client.Resources(ctx)
	if err != nil {
		return proxmox.Resources{}, err
	}
	if len(resources.Hosts) == 0 {
		return proxmox.Resources{}, errors.New("the answer lists no Host")
	}
	before := c.inventory.View().Snapshots[c.region]
	if before == nil {
		return resources, nil
	}
	if lostHostSizes(before, resources.Hosts) {
		return proxmox.Resources{}, errors.New("the answer lost the figures of every Host: the token needs Sys.Audit on /nodes")
	}
	if len(before.Guests) > 0 && len(resources.Guests) == 0 {
		return resources, c.checkVMAudit(ctx, len(before.Guests))
	}
	return resources, nil
}

// lostFigures tells whether all Hosts that are online came without figures,
// though there were some before.
func lostHostSizes(before *Snapshot, rows []proxmox.HostRow) bool {
	lost := false
	for _, row := range rows {
		if !row.Online {
			continue
		}
		if row.CPUs > 0 || before.Hosts[row.Name].CPUs == 0 {
			return false
		}
		lost = true
	}
	return lost
}

// mayAudit asks for proof when all guests vanished at once: a token that lost
// VM.Audit gets an empty list, not an error.
func (c *cluster) checkVMAudit(ctx context.Context, vanished int) error {
	permissions, err := c.client.Permissions(ctx)
	if err != nil {
		return fmt.Errorf("all %d guests vanished at once, checking the token's privileges, %w", vanished, err)
	}
	for _, privileges := range permissions {
		if _, ok := privileges["VM.Audit"]; ok {
			return nil
		}
	}
	return fmt.Errorf("all %d guests vanished at once: the token needs VM.Audit on /vms", vanished)
}
