// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package poll

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/utils/clock"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/due"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/observed"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// pollTimeout limits one poll. A Cluster that hangs counts as unreachable.
const pollTimeout = 30 * time.Second

// Options of a Cluster.
type Options struct {
	// Interval is the time between two polls. ReadTimeout limits each kind of reads of a poll.
	Interval, ReadTimeout time.Duration
	// Own is the range of our VMIDs.
	Own   observed.VMIDRange
	Clock clock.Clock
	Log   logr.Logger
	// Last returns the last Snapshot; nil if there is none.
	Last func(region string) *observed.Snapshot
	// Finished gets the duration of each poll and its error.
	Finished func(region string, took time.Duration, err error)
	// Accept gets what was read, and when the poll began.
	Accept func(observed.Result, time.Time)
}

// Cluster polls one Cluster. Polls never overlap.
type Cluster struct {
	Options

	client proxmox.Client
	region string
	wake   chan struct{} // starts the next poll early
	// watchesAddresses is true after WatchAddresses.
	watchesAddresses atomic.Bool

	mu      sync.Mutex
	current *pollCall // in progress
	next    *pollCall // requested during the current one
	budget  *callBudget
	// cache has what is read besides the resource list.
	cache *due.Cache[Fact, any]

	// Only the poll in progress uses the rest.
	facts *observed.Facts
	// agentsStarted is when the first agent was read.
	agentsStarted time.Time
	// complete is true once all addresses were read. It stays true after that: new guests are
	// read with the next poll, and launches do not wait for it.
	complete bool
}

// pollCall is one poll that several callers may wait for.
type pollCall struct {
	poll func() error
	done chan struct{}
	err  error
}

// New returns a Cluster that reads nothing before Run or Refresh. Without a client, it never reads.
func New(client proxmox.Client, region string, options Options) *Cluster {
	return &Cluster{
		Options: options,
		client:  client,
		region:  region,
		wake:    make(chan struct{}, 1),
		budget:  newCallBudget(options.Interval, options.Clock.Now()),
		cache:   due.New[Fact, any](options.Clock, func(fact Fact) due.Policy { return kinds[fact.kind].Policy }),
	}
}

// WatchAddresses makes the cluster also read what only address pools need: container configurations,
// guest agents and the IPAM of Proxmox. The first call starts a poll.
func (c *Cluster) WatchAddresses() {
	if !c.watchesAddresses.Swap(true) {
		c.wake <- struct{}{} // buffered, and sent only once
	}
}

// Run polls until the context ends.
func (c *Cluster) Run(ctx context.Context) {
	for {
		<-c.joinPoll(ctx, false).done
		timer := c.Clock.NewTimer(c.Interval)
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

// Refresh polls and waits for the result. A poll in progress may have begun before the change that the
// caller wants to see, so Refresh waits for the next one; concurrent callers share it.
func (c *Cluster) Refresh(ctx context.Context) error {
	if c.client == nil {
		return nil
	}
	// Other callers may wait for the same poll, so it must not end with this context.
	call := c.joinPoll(context.WithoutCancel(ctx), true)
	select {
	case <-call.done:
		return call.err
	case <-ctx.Done():
		return fmt.Errorf("waiting for the poll of region %s: %w", c.region, ctx.Err())
	}
}

// joinPoll returns the poll in progress or starts one. With fresh, it returns a poll that
// begins after the call.
func (c *Cluster) joinPoll(ctx context.Context, fresh bool) *pollCall {
	c.mu.Lock()
	defer c.mu.Unlock()
	call := &pollCall{poll: func() error { return c.poll(ctx) }, done: make(chan struct{})}
	switch {
	case c.current == nil:
		c.current = call
		go c.execute(c.current)
		return c.current
	case !fresh:
		return c.current
	case c.next == nil:
		c.next = call
	}
	return c.next
}

// execute polls, then starts the next poll if one was requested.
func (c *Cluster) execute(call *pollCall) {
	call.err = call.poll()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.current, c.next = c.next, nil
	if c.current != nil {
		go c.execute(c.current)
	}
	close(call.done)
}

// poll reads the Cluster once. It publishes the rows before it reads details, so a Host
// that hangs does not delay them. Only the first Snapshot waits for the details: without
// its configuration, a VM cannot be identified as ours and would seem to be missing.
func (c *Cluster) poll(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, pollTimeout)
	defer cancel()
	began := c.Clock.Now()
	resources, err := c.readResources(ctx)
	if errors.Is(ctx.Err(), context.Canceled) {
		return ctx.Err() // shutting down is not a failure of the Cluster
	}
	c.Finished(c.region, c.Clock.Since(began), err)
	if err != nil {
		c.cache.Invalidate(factVersion, factMappings, factMaintenance) // the outage may be an upgrade
		return fmt.Errorf("polling region %s: %w", c.region, err)
	}
	details := &round{Cluster: c, seen: map[Fact]bool{}}
	details.readRelease(ctx, resources.Hosts)
	configTimeout := c.ReadTimeout
	if c.Last(c.region) == nil {
		configTimeout = max(firstReadTimeout, configTimeout)
	} else {
		c.publish(resources, began)
		details.changed = false
	}
	details.readDetails(ctx, resources, configTimeout)
	if details.changed || c.Last(c.region) == nil {
		c.publish(resources, began)
	}
	return nil
}

// publish publishes the resources with everything that was read.
func (c *Cluster) publish(resources proxmox.Resources, began time.Time) {
	maintenance, _ := valueOf[[]string](c, factMaintenance)
	result := observed.NewResult(c.region)
	none := observed.NewResult(c.region).Facts
	for fact, entry := range c.cache.All() {
		if entry.Known {
			kinds[fact.kind].set(&result, fact, entry.Value)
		}
	}
	result.Taken, result.Resources, result.Complete = began, resources, c.complete
	result.MaintenanceUnknown = !result.Version.AtLeast(9, 2) && maintenance == nil
	switch {
	case reflect.DeepEqual(result.Facts, none):
		result.Facts = nil
	case result.Facts.Permissions != nil:
		result.Facts.User = c.client.User()
	}
	if reflect.DeepEqual(result.Facts, c.facts) {
		result.Facts = c.facts // equal pointers make Snapshots cheap to compare
	}
	c.facts = result.Facts
	c.Accept(result, began)
}

// readResources makes the single call of a poll. It rejects implausible responses, because
// Proxmox silently omits what the token may not see.
func (c *Cluster) readResources(ctx context.Context) (proxmox.Resources, error) {
	resources, err := c.client.Resources(ctx)
	if err != nil {
		return proxmox.Resources{}, err
	}
	if len(resources.Hosts) == 0 {
		return proxmox.Resources{}, errors.New("the response lists no hosts")
	}
	before := c.Last(c.region)
	if before == nil {
		return resources, nil
	}
	if lostHostSizes(before, resources.Hosts) {
		return proxmox.Resources{}, errors.New("the response has no sizes for any host: the token needs Sys.Audit on /nodes")
	}
	if len(before.Guests) > 0 && len(resources.Guests) == 0 {
		return resources, c.checkVMAudit(ctx, len(before.Guests))
	}
	return resources, nil
}

// lostHostSizes reports whether all online Hosts are listed without their size although a
// size was known before.
func lostHostSizes(before *observed.Snapshot, rows []proxmox.HostRow) bool {
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

// checkVMAudit returns an error if the token lacks VM.Audit. It is called when all guests
// disappeared in one poll: without VM.Audit, Proxmox returns an empty list and no error.
func (c *Cluster) checkVMAudit(ctx context.Context, missing int) error {
	permissions, err := c.client.Permissions(ctx)
	if err != nil {
		return fmt.Errorf("all %d guests disappeared, checking the token's privileges: %w", missing, err)
	}
	// A resource pool does not grant what an ACL on /vms denies.
	if permissions.HasBelow("/vms", "VM.Audit") || (!permissions.IsDenied("/vms") && permissions.HasBelow("/pool", "VM.Audit")) {
		return nil
	}
	return fmt.Errorf("all %d guests disappeared: the token needs VM.Audit on /vms", missing)
}
