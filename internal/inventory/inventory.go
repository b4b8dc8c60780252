// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/backoff"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/declared"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/observed"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/poll"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// DefaultPollInterval is the default time between two polls of a Cluster. Proxmox refreshes
// the data behind /cluster/resources every ten seconds.
const DefaultPollInterval = 10 * time.Second

// defaultReadTimeout is the default of Options.ReadTimeout.
const defaultReadTimeout = 5 * time.Second

// Options configure an Inventory. The zero value is valid.
type Options struct {
	// Interval is the time between two polls of a Cluster.
	PollInterval time.Duration
	// ReadTimeout limits each kind of reads of one poll, in real time; the next poll
	// continues. It is 5 s by default.
	ReadTimeout time.Duration
	// DetailRange is the range of our VMIDs. Stopped VMs in it count as allocated.
	DetailRange observed.VMIDRange
	Settings    declared.Settings
	Clock       clock.Clock
	Log         logr.Logger
	// Registerer registers the metrics; nil for none.
	Registerer prometheus.Registerer
}

// Inventory polls the Clusters and keeps the View current. All methods are safe for
// concurrent use.
type Inventory struct {
	options  Options
	clusters map[string]*poll.Cluster
	metrics  *metrics

	view atomic.Pointer[View]

	// mu guards the rest, including the ledger. No I/O is done while it is held.
	mu        sync.Mutex
	ledger    *Ledger
	snapshots map[string]*observed.Snapshot
	failures  map[string]error
	records   declared.Records
	// leads is true after SetSleeping: this process writes the records about sleeping Hosts.
	leads          bool
	generation     uint64
	subscribers    map[int]chan Event
	nextSubscriber int
	loggedHosts    map[string]bool // see logDuplicateHosts
}

// New returns an Inventory of the clients' Clusters. It reads nothing before Start or
// Refresh. It fails if two clients have the same region or if the metrics are already
// registered.
func New(clients []proxmox.Client, options Options) (*Inventory, error) {
	if options.PollInterval <= 0 {
		options.PollInterval = DefaultPollInterval
	}
	if options.ReadTimeout <= 0 {
		options.ReadTimeout = defaultReadTimeout
	}
	if options.Clock == nil {
		options.Clock = clock.RealClock{}
	}
	i := &Inventory{
		options:     options,
		clusters:    make(map[string]*poll.Cluster, len(clients)),
		snapshots:   map[string]*observed.Snapshot{},
		failures:    map[string]error{},
		subscribers: map[int]chan Event{},
		loggedHosts: map[string]bool{},
	}
	i.ledger = &Ledger{
		clock: options.Clock, view: i.View, publish: i.publish, mu: &i.mu, snapshots: i.snapshots,
		reservations: map[string]Reservation{},
		deleted:      map[vmidKey]time.Time{},
		released:     backoff.NewHolds[netip.Addr](options.Clock, backoff.Exponential{}),
	}
	for _, client := range clients {
		region := client.Region()
		if _, twice := i.clusters[region]; twice {
			return nil, fmt.Errorf("creating the inventory: region %q is configured twice", region)
		}
		i.addCluster(client, region)
	}
	i.publish(true)
	var err error
	if i.metrics, err = newMetrics(options.Clock, options.Registerer, i.Regions(), i.View); err != nil {
		return nil, fmt.Errorf("registering the inventory metrics: %w", err)
	}
	return i, nil
}

// addCluster adds a Cluster, which is never polled without a client.
func (i *Inventory) addCluster(client proxmox.Client, region string) {
	i.clusters[region] = poll.New(client, region, poll.Options{
		Interval: i.options.PollInterval, ReadTimeout: i.options.ReadTimeout, Own: i.options.DetailRange, Clock: i.options.Clock, Log: i.options.Log,
		Last:     func(region string) *observed.Snapshot { return i.View().Snapshots[region] },
		Finished: i.finishPoll,
		Accept:   i.accept,
	})
}

// Start polls every Cluster until the context ends.
func (i *Inventory) Start(ctx context.Context) error {
	var running sync.WaitGroup
	for _, c := range i.clusters {
		running.Go(func() { c.Run(ctx) })
	}
	running.Wait()
	return nil
}

// NeedLeaderElection returns false: every replica polls, so a new leader starts with a
// current View.
func (i *Inventory) NeedLeaderElection() bool { return false }

// Regions returns the regions of all configured Clusters in order, whether or not they
// were read.
func (i *Inventory) Regions() []string { return slices.Sorted(maps.Keys(i.clusters)) }

// View returns the current state. It costs one atomic load.
func (i *Inventory) View() View { return *i.view.Load() }

// Ledger returns the ledger of Reservations and deletions.
func (i *Inventory) Ledger() *Ledger { return i.ledger }

// WatchAddresses makes the Inventory also read what only address pools need: container
// configurations, guest agents and the IPAM of Proxmox. The first call starts a poll.
// Snapshot.AddressesKnown is false until everything was read once.
func (i *Inventory) WatchAddresses() {
	for _, c := range i.clusters {
		c.WatchAddresses()
	}
}

// Refresh polls a Cluster and waits for the result. A poll in progress may have begun
// before the change that the caller wants to see, so Refresh waits for the next one;
// concurrent callers share it. It fails if the region is not configured, the poll fails
// or the context ends.
func (i *Inventory) Refresh(ctx context.Context, region string) error {
	c, ok := i.clusters[region]
	if !ok {
		return fmt.Errorf("refreshing the inventory: region %q is not configured", region)
	}
	return c.Refresh(ctx)
}

// RefreshAll refreshes all Clusters in parallel and returns their errors joined.
func (i *Inventory) RefreshAll(ctx context.Context) error {
	errs := make(chan error, len(i.clusters))
	for _, c := range i.clusters {
		go func() { errs <- c.Refresh(ctx) }()
	}
	var all error
	for range i.clusters {
		all = errors.Join(all, <-errs)
	}
	return all
}

// Invalidate requests that Facts of a Cluster are read again with its next poll, unless
// they were read in the last 30 seconds. Use it for Facts that caused a failed check,
// because they may have been fixed.
func (i *Inventory) Invalidate(region string, facts ...poll.Fact) {
	if c, ok := i.clusters[region]; ok {
		c.Invalidate(facts...)
	}
}

// InvalidateConfig records that this process changed the configuration of a VM, which the list of
// VMs may not show. It is read again with the next poll.
func (i *Inventory) InvalidateConfig(region string, vmid int) {
	if c, ok := i.clusters[region]; ok {
		c.InvalidateConfig(vmid)
	}
}

// HasCurrentConfig reports whether the View has the configuration of a VM, with all changes of this
// process.
func (i *Inventory) HasCurrentConfig(region string, vmid int) bool {
	c, ok := i.clusters[region]
	guest, listed := i.View().Guest(region, vmid)
	return ok && listed && c.IsCurrentConfig(vmid, guest.Config)
}

// TryAcquire reports whether the caller may make a background read of this kind in a
// Cluster now, and uses a slot of the call budget if so. It returns false for a region
// that is not configured.
func (i *Inventory) TryAcquire(region string, kind poll.ReadKind) bool {
	c, ok := i.clusters[region]
	return ok && c.TryAcquire(kind)
}

// Event reports that the View changed; the object is its generation. The type fits
// source.TypedChannel, so controllers can watch the Inventory.
type Event = event.TypedGenericEvent[uint64]

// Subscribe returns a channel that receives an Event after each relevant change. The
// channel is closed when the context ends. Events that were not received yet are merged
// into one.
func (i *Inventory) Subscribe(ctx context.Context) <-chan Event {
	events := make(chan Event, 1)
	i.mu.Lock()
	defer i.mu.Unlock()
	id := i.nextSubscriber
	i.nextSubscriber++
	i.subscribers[id] = events
	context.AfterFunc(ctx, func() {
		i.mu.Lock()
		defer i.mu.Unlock()
		delete(i.subscribers, id)
		close(events)
	})
	return events
}

// SetSettings replaces the host settings.
func (i *Inventory) SetSettings(settings declared.Settings) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.options.Settings = settings
	i.publish(true)
}

// accept makes the result of a poll that began at the given time the Cluster's Snapshot.
func (i *Inventory) accept(result observed.Result, began time.Time) {
	i.mu.Lock()
	defer i.mu.Unlock()
	result.Resources.Guests = i.ledger.withoutDeleted(result.Region, result.Resources.Guests, began)
	result.Known = i.records.KnownHosts(result.Region)
	before := i.snapshots[result.Region]
	snapshot := observed.NewSnapshot(result, before, i.options.DetailRange)
	i.snapshots[result.Region] = snapshot

	failure, failed := i.failures[result.Region]
	delete(i.failures, result.Region)
	switch {
	case before == nil:
		i.options.Log.Info("connected to the Proxmox cluster", "region", result.Region, "version", snapshot.Version.Full,
			"hosts", len(snapshot.Hosts), "guests", len(snapshot.Guests))
	case failed:
		i.options.Log.Info("reconnected to the Proxmox cluster", "region", result.Region)
	}
	fulfilled := i.ledger.fulfill(result.Region, snapshot)
	i.logDuplicateHosts()
	i.logHostChanges(before, snapshot)
	i.publish(fulfilled || isConclusive(failure) || observed.HasChanged(before, snapshot))
}

// logHostChanges logs the Hosts that went offline or returned since the previous Snapshot,
// which is nil at the start.
func (i *Inventory) logHostChanges(before, now *observed.Snapshot) {
	for _, name := range slices.Sorted(maps.Keys(now.Hosts)) {
		was, is := before.Host(name).OfflineSince, now.Hosts[name].OfflineSince
		switch {
		case was.IsZero() && !is.IsZero():
			i.options.Log.Info("host is offline", "region", now.Region, "host", name)
		case !was.IsZero() && is.IsZero():
			i.options.Log.Info("host is online again", "region", now.Region, "host", name, "offlineSince", was)
		}
	}
}

// finishPoll records the end of a poll. If it failed, the last good Snapshot remains.
func (i *Inventory) finishPoll(region string, took time.Duration, err error) {
	i.metrics.observePoll(region, took, err)
	if err == nil {
		return
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	failure := &PollError{Region: region, Since: i.options.Clock.Now(), Err: err}
	if before, repeated := errors.AsType[*PollError](i.failures[region]); repeated {
		failure.Since, failure.Count = before.Since, before.Count
	} else {
		i.options.Log.Error(err, "polling Proxmox failed, using last snapshot", "region", region)
	}
	failure.Count++
	changed := isConclusive(failure) != isConclusive(i.failures[region])
	i.failures[region] = failure
	i.publish(changed)
}

// publish makes the current state the View and, if it changed, notifies the subscribers.
// The caller holds the lock.
func (i *Inventory) publish(changed bool) {
	if changed {
		i.generation++
	}
	view := NewView(maps.Clone(i.snapshots), maps.Clone(i.failures), maps.Clone(i.ledger.reservations), i.options.Settings, i.records)
	view.Generation, view.released = i.generation, i.ledger.released
	i.view.Store(&view)
	if !changed {
		return
	}
	for _, events := range i.subscribers {
		select {
		case events <- Event{Object: i.generation}:
		default:
		}
	}
}

// logDuplicateHosts logs once per name that two Clusters have a Host of the same name.
// Both are the same zone in Kubernetes. The caller holds the lock.
func (i *Inventory) logDuplicateHosts() {
	regions := map[string]string{}
	for _, region := range slices.Sorted(maps.Keys(i.snapshots)) {
		for host := range i.snapshots[region].Hosts {
			if other, duplicate := regions[host]; duplicate && !i.loggedHosts[host] {
				i.loggedHosts[host] = true
				i.options.Log.Info("two Proxmox clusters have a host of the same name, select by region and zone",
					"host", host, "regions", []string{other, region})
				if a, b := i.options.Settings.For(other, host).PriceFactor, i.options.Settings.For(region, host).PriceFactor; a != b {
					i.options.Log.Info("hosts of the same name have different price factors, using the higher one for both",
						"host", host, "factors", []float64{a, b})
				}
			}
			regions[host] = region
		}
	}
}
