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

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// DefaultInterval between two polls of a Cluster. Proxmox itself refreshes the
// figures behind /cluster/resources every ten seconds.
const DefaultInterval = 10 * time.Second

// Options of an Inventory. The zero value works.
type Options struct {
	// Interval between two polls of a Cluster.
	Interval time.Duration
	// DetailRange is the range of our VMIDs: their configuration is read, and they
	// count even when they are stopped.
	DetailRange VMIDRange
	Settings    Settings
	Clock       clock.Clock
	Log         logr.Logger
	// Registerer takes the metrics; nil for none.
	Registerer prometheus.Registerer
}

// Inventory keeps the View up to date. All methods are safe for concurrent use.
type Inventory struct {
	options  Options
	clusters map[string]*cluster
	metrics  *metrics

	view           atomic.Pointer[View]
	watchAddresses atomic.Bool

	// mu guards what follows. No I/O happens while it is held.
	mu               sync.Mutex
	snapshots        map[string]*Snapshot
	failures         map[string]error
	reservations     map[string]Reservation
	deleted          map[vmidKey]time.Time
	recentlyReleased map[netip.Addr]time.Time
	generation       uint64
	subscribers      map[int]chan Event
	nextSubscriber   int
	loggedHosts      map[string]bool // host names already reported
}

// New makes an Inventory of these Clusters. It reads nothing before Start or Refresh.
func New(clients []proxmox.Client, options Options) (*Inventory, error) {
	if options.Interval <= 0 {
		options.Interval = DefaultInterval
	}
	if options.Clock == nil {
		options.Clock = clock.RealClock{}
	}
	i := &Inventory{
		options:      options,
		clusters:     make(map[string]*cluster, len(clients)),
		snapshots:    map[string]*Snapshot{},
		failures:     map[string]error{},
		reservations: map[string]Reservation{},
		deleted:      map[vmidKey]time.Time{},
		subscribers:  map[int]chan Event{},
		loggedHosts:  map[string]bool{},
	}
	for _, client := range clients {
		region := client.Region()
		if _, twice := i.clusters[region]; twice {
			return nil, fmt.Errorf("making the inventory, region %q is configured twice", region)
		}
		i.clusters[region] = newCluster(i, client)
	}
	i.publish(true)
	var err error
	if i.metrics, err = newMetrics(i, options.Registerer); err != nil {
		return nil, fmt.Errorf("registering the inventory's metrics, %w", err)
	}
	return i, nil
}

// Start polls every Cluster until the context ends.
func (i *Inventory) Start(ctx context.Context) error {
	var running sync.WaitGroup
	for _, c := range i.clusters {
		running.Go(func() { c.run(ctx) })
	}
	running.Wait()
	return nil
}

// NeedLeaderElection says that every replica keeps its own view: polling only
// reads, and a new leader starts with a fresh view.
func (i *Inventory) NeedLeaderElection() bool { return false }

// Regions lists the configured Clusters, read or not.
func (i *Inventory) Regions() []string { return slices.Sorted(maps.Keys(i.clusters)) }

// View is what is known now. It costs one atomic load.
func (i *Inventory) View() View { return *i.view.Load() }

// WatchAddresses makes the Inventory read from now on what only address pools need:
// containers, guest agents, and the Cluster's own IPAM. Until that was done once,
// Snapshot.AddressesKnown is false; the first time it is done at once.
func (i *Inventory) WatchAddresses() {
	if i.watchAddresses.Swap(true) {
		return
	}
	for _, c := range i.clusters {
		c.wake <- struct{}{} // there is room for it, and it comes once
	}
}

// Generation is larger whenever something relevant changed.
func (i *Inventory) Generation() uint64 { return i.view.Load().Generation }

// Refresh polls a Cluster now and waits for it. A poll under way may have begun
// before the change that the caller wants to see, so the next one is awaited;
// callers at the same time share it.
func (i *Inventory) Refresh(ctx context.Context, region string) error {
	c, ok := i.clusters[region]
	if !ok {
		return fmt.Errorf("refreshing the inventory, region %q is not configured", region)
	}
	return c.refresh(ctx)
}

// RefreshAll polls all Clusters at the same time, each as Refresh does.
func (i *Inventory) RefreshAll(ctx context.Context) error {
	errs := make(chan error, len(i.clusters))
	for _, c := range i.clusters {
		go func() { errs <- c.refresh(ctx) }()
	}
	var all error
	for range i.clusters {
		all = errors.Join(all, <-errs)
	}
	return all
}

// ObserveDeleted takes a guest out of the view at once: the caller has proof that it
// does not exist any more. A poll that began before cannot bring it back.
func (i *Inventory) ObserveDeleted(region string, vmid int) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.deleted[vmidKey{region, vmid}] = i.options.Clock.Now()
	before := i.snapshots[region]
	if _, ok := before.guest(vmid); !ok {
		return
	}
	i.snapshots[region] = before.without(vmid)
	i.publish(true)
}

// accept takes a reading that began at that time as the Cluster's new Snapshot.
func (i *Inventory) accept(reading PollResult, began time.Time) {
	i.mu.Lock()
	defer i.mu.Unlock()
	reading.Resources.Guests = i.withoutDeleted(reading, began)
	before := i.snapshots[reading.Region]
	snapshot := NewSnapshot(reading, before, i.options.DetailRange)
	i.snapshots[reading.Region] = snapshot

	failure, failed := i.failures[reading.Region]
	delete(i.failures, reading.Region)
	switch {
	case before == nil:
		i.options.Log.Info("the Proxmox cluster answers", "region", reading.Region, "version", snapshot.Version.Full,
			"hosts", len(snapshot.Hosts), "guests", len(snapshot.Guests))
	case failed:
		i.options.Log.Info("the Proxmox cluster answers again", "region", reading.Region)
	}
	settled := i.fulfill(reading.Region)
	i.logDuplicateHosts()
	i.publish(settled || isConclusive(failure) || hasChanged(before, snapshot))
}

// withoutGone drops the rows of guests that are known to be gone since the
// reading began, and forgets older proofs: the reading knows better.
func (i *Inventory) withoutDeleted(reading PollResult, began time.Time) []proxmox.GuestRow {
	guests := reading.Resources.Guests
	for key, at := range i.deleted {
		if key.region != reading.Region {
			continue
		}
		if began.After(at) {
			delete(i.deleted, key)
			continue
		}
		guests = slices.DeleteFunc(slices.Clone(guests), func(row proxmox.GuestRow) bool { return row.VMID == key.vmid })
	}
	return guests
}

// failed records that a poll failed. The last good Snapshot stays.
func (i *Inventory) recordFailure(region string, err error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	failure := &PollError{Region: region, Since: i.options.Clock.Now(), Err: err}
	if before, again := errors.AsType[*PollError](i.failures[region]); again {
		failure.Since, failure.Count = before.Since, before.Count
	} else {
		i.options.Log.Error(err, "the Proxmox cluster does not answer, its last view stays", "region", region)
	}
	failure.Count++
	changed := isConclusive(failure) != isConclusive(i.failures[region])
	i.failures[region] = failure
	i.publish(changed)
}

// publish makes the current state the View. The caller holds the lock.
func (i *Inventory) publish(changed bool) {
	if changed {
		i.generation++
	}
	view := NewView(maps.Clone(i.snapshots), maps.Clone(i.failures), maps.Clone(i.reservations), i.options.Settings)
	view.Generation, view.recentlyReleased = i.generation, i.recentlyReleased
	i.view.Store(&view)
	if changed {
		i.notify()
	}
}

// reportAmbiguous tells once that a Host's name is used in two Clusters: zone
// labels then need the region beside them.
func (i *Inventory) logDuplicateHosts() {
	regions := map[string]string{}
	for _, region := range slices.Sorted(maps.Keys(i.snapshots)) {
		for host := range i.snapshots[region].Hosts {
			if other, taken := regions[host]; taken && !i.loggedHosts[host] {
				i.loggedHosts[host] = true
				i.options.Log.Info("two Clusters have a Host of the same name, which is one zone to Kubernetes: select by region too",
					"host", host, "regions", []string{other, region})
				if a, b := i.options.Settings.For(other, host).PriceFactor, i.options.Settings.For(region, host).PriceFactor; a != b {
					i.options.Log.Info("they have different price factors, and Karpenter knows one price for a zone: the higher one counts for both",
						"host", host, "factors", []float64{a, b})
				}
			}
			regions[host] = region
		}
	}
}

// Event tells that the View changed; the object is its generation. Its type fits
// source.TypedChannel, so that a controller can watch the Inventory.
type Event = event.TypedGenericEvent[uint64]

// Subscribe gives a channel that gets an Event after each relevant change, until
// the context ends; then it is closed. Events that were not yet received merge
// into one: what counts is the View at the time of reading.
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

// notify wakes the subscribers. The caller holds the lock.
func (i *Inventory) notify() {
	for _, events := range i.subscribers {
		select {
		case events <- Event{Object: i.generation}:
		default:
		}
	}
}
