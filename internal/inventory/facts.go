// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"context"
	"maps"
	"reflect"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// Facts are what a Cluster has and lets us do, beside the rows of its poll. They
// change seldom, so that they are read at first contact, then one at a time in
// turn, and sooner when somebody doubts them. Facts are never changed once made.
type Facts struct {
	// User is whom the Cluster takes us for.
	User string
	// Permissions are ours, by path.
	Permissions proxmox.Permissions
	// SecurityGroups of the firewall, by name.
	SecurityGroups map[string]bool
	// VNets of the SDN, by name.
	VNets map[string]proxmox.VNet
	// Bridges and vnets that NICs can be attached to, by Host and name.
	Bridges map[string]map[string]proxmox.Bridge
	// Pools tells of each pool that somebody asked about whether it exists.
	Pools map[string]bool
	// Snippets on the storages that somebody asked about, by volume.
	Snippets map[StorageKey]map[string]bool
	// Directories are the directory mappings that we may see, by ID; nil before somebody
	// asked.
	Directories map[string]proxmox.DirectoryMapping
}

// Fact names one of the Facts, for Doubt.
type Fact struct{ kind, of, on string }

// The Facts that there is one of in a Cluster.
var (
	// FactOptions are the datacenter options, which say what tags are allowed.
	FactOptions = Fact{kind: "options"}
	// FactPermissions are our privileges.
	FactPermissions = Fact{kind: "permissions"}
	// FactSecurityGroups are the groups of the firewall.
	FactSecurityGroups = Fact{kind: "security groups"}
	// FactVNets are the virtual networks of the SDN.
	FactVNets = Fact{kind: "vnets"}
	// FactDirectories are the directory mappings. They are not known before somebody asked.
	FactDirectories = Fact{kind: "directories"}
)

// FactBridges are the bridges of a Host.
func FactBridges(host string) Fact { return Fact{kind: "bridges", of: host} }

// FactPool is whether a pool exists. It is not known before somebody asked.
func FactPool(pool string) Fact { return Fact{kind: "pool", of: pool} }

// FactSnippets are the snippets on a storage of a Host. They are not known before
// somebody asked, and then only as far as Datastore.Allocate on the storage shows them.
func FactSnippets(key StorageKey) Fact {
	return Fact{kind: "snippets", of: key.Storage, on: key.Host}
}

// onDemand tells whether a Fact is read only once somebody asked for it.
func (f Fact) isOnDemand() bool {
	return f.kind == "pool" || f.kind == "snippets" || f == FactDirectories
}

const (
	// factRetry is how soon one that could not be read is tried again, and longer
	// each time.
	factRetryDelay    = time.Minute
	maxFactRetryDelay = time.Hour
	// doubtPause is how long a Fact that is doubted is believed once it was read.
	minFactAge = 30 * time.Second
	// permissionsWeight lets privileges have their turn more often than the rest:
	// they are what changes most, and what hurts most.
	permissionsWeight = 4
)

// facts keeps the Facts of a Cluster and when each was read. Only the poll under
// way touches it.
type factCache struct {
	known  *Facts
	states map[Fact]*factState
}

// factReading is how the last reading of a Fact went.
type factState struct {
	at          time.Time
	failures    int
	invalidated bool
}

func newFactCache() factCache { return factCache{states: map[Fact]*factState{}} }

// wanted are all Facts to keep, of these Hosts, and those that were asked for before.
func (f *factCache) all(hosts []string) []Fact {
	all := []Fact{FactOptions, FactPermissions, FactSecurityGroups, FactVNets}
	for _, host := range hosts {
		all = append(all, FactBridges(host))
	}
	for fact := range f.states {
		if fact.isOnDemand() && (fact.on == "" || slices.Contains(hosts, fact.on)) {
			all = append(all, fact)
		}
	}
	return all
}

// due lists what to read now: what was never read, what failed and may be tried
// again, what is doubted, and when it is a Fact's turn, what has waited longest.
func (f *factCache) due(now time.Time, hosts []string, doubts map[Fact]bool, turn func() bool) []Fact {
	f.invalidate(doubts)
	var due []Fact
	var longest Fact
	var waited time.Duration
	for _, fact := range f.all(hosts) {
		reading := f.states[fact]
		if reading.isDue(now) {
			due = append(due, fact)
			continue
		}
		if age := reading.weight(fact) * now.Sub(reading.at); age > waited {
			longest, waited = fact, age
		}
	}
	if len(due) == 0 && waited > 0 && turn() {
		return []Fact{longest}
	}
	return due
}

// doubt marks what was doubted. What is read on demand is known from then on that
// somebody asks.
func (f *factCache) invalidate(doubts map[Fact]bool) {
	for fact := range doubts {
		switch {
		case f.states[fact] != nil:
			f.states[fact].invalidated = true
		case fact.isOnDemand():
			f.states[fact] = &factState{}
		}
	}
}

// isDue tells whether a Fact must be read now, whoever's turn it is.
func (r *factState) isDue(now time.Time) bool {
	if r == nil || r.at.IsZero() {
		return true
	}
	age := now.Sub(r.at)
	if r.failures > 0 {
		return age >= min(factRetryDelay<<min(r.failures-1, 10), maxFactRetryDelay)
	}
	return r.invalidated && age >= minFactAge
}

// weight is how much a Fact's age counts when turns are taken.
func (r *factState) weight(fact Fact) time.Duration {
	switch {
	case r.failures > 0:
		return 0
	case fact == FactPermissions:
		return permissionsWeight
	}
	return 1
}

// note keeps how a reading went, and the Facts that it changed.
func (f *factCache) record(fact Fact, at time.Time, err error) {
	if f.states[fact] == nil {
		f.states[fact] = &factState{}
	}
	reading := f.states[fact]
	reading.at, reading.invalidated = at, false
	reading.failures++
	if err == nil {
		reading.failures = 0
	}
}

// change replaces the Facts by a copy with that change.
func (f *factCache) update(apply func(*Facts)) {
	next := &Facts{}
	if f.known != nil {
		*next = *f.known
		next.Bridges, next.Pools, next.Snippets = maps.Clone(f.known.Bridges), maps.Clone(f.known.Pools), maps.Clone(f.known.Snippets)
	}
	if next.Bridges == nil {
		next.Bridges, next.Pools, next.Snippets = map[string]map[string]proxmox.Bridge{}, map[string]bool{}, map[StorageKey]map[string]bool{}
	}
	apply(next)
	f.known = next
}

// Doubt asks that some Facts of a Cluster are read again with its next poll, unless
// they were a moment ago: a decision rests on them that somebody may have mended.
func (i *Inventory) Invalidate(region string, doubted ...Fact) {
	c, ok := i.clusters[region]
	if !ok {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, fact := range doubted {
		c.invalidated[fact] = true
	}
}

func (c *cluster) takeInvalidated() map[Fact]bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	doubts := c.invalidated
	c.invalidated = map[Fact]bool{}
	return doubts
}

// readFacts reads the Facts that are due, and tells whether that changed any. One
// that cannot be read leaves what was known before in force.
func (c *cluster) readFacts(ctx context.Context, resources proxmox.Resources, timeout time.Duration) bool {
	var hosts []string
	for _, host := range resources.Hosts {
		if host.Online {
			hosts = append(hosts, host.Name)
		}
	}
	now := c.inventory.options.Clock.Now()
	due := c.facts.due(now, hosts, c.takeInvalidated(), func() bool { return c.budget.tryAcquire(kindFact, now) })
	if len(due) == 0 {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	changes := make([]func(*Facts), len(due))
	errs := make([]error, len(due))
	var group errgroup.Group
	group.SetLimit(maxParallelReads)
	for n, fact := range due {
		group.Go(func() error {
			changes[n], errs[n] = c.readFact(ctx, fact)
			return nil
		})
	}
	_ = group.Wait() // each read keeps its own error
	before := c.facts.known
	options := c.info.options
	for n, fact := range due {
		c.facts.record(fact, c.inventory.options.Clock.Now(), errs[n])
		if errs[n] != nil {
			c.inventory.options.Log.V(1).Info("reading a fact of the Cluster failed", "region", c.region, "fact", fact, "error", errs[n].Error())
			continue
		}
		c.facts.update(changes[n])
	}
	if reflect.DeepEqual(before, c.facts.known) {
		c.facts.known = before // the same one, so that Snapshots compare quickly
		return !reflect.DeepEqual(options, c.info.options)
	}
	return true
}

// readFact makes one call and gives what it changes.
func (c *cluster) readFact(ctx context.Context, fact Fact) (func(*Facts), error) {
	switch fact.kind {
	case FactOptions.kind:
		options, err := c.client.Options(ctx)
		return func(*Facts) { c.info.options = options }, err
	case FactPermissions.kind:
		permissions, err := c.client.Permissions(ctx)
		return func(f *Facts) { f.User, f.Permissions = c.client.User(), permissions }, err
	case FactSecurityGroups.kind:
		groups, err := c.client.SecurityGroups(ctx)
		return func(f *Facts) { f.SecurityGroups = setOf(groups) }, err
	case FactVNets.kind:
		vnets, err := c.client.VNets(ctx)
		return func(f *Facts) { f.VNets = byName(vnets, func(v proxmox.VNet) string { return v.Name }) }, err
	case FactDirectories.kind:
		mappings, err := c.client.DirectoryMappings(ctx)
		return func(f *Facts) {
			f.Directories = byName(mappings, func(m proxmox.DirectoryMapping) string { return m.ID })
		}, err
	case "bridges":
		bridges, err := c.client.Bridges(ctx, fact.of)
		return func(f *Facts) {
			f.Bridges[fact.of] = byName(bridges, func(b proxmox.Bridge) string { return b.Name })
		}, err
	case "snippets":
		volumes, err := c.client.Volumes(ctx, fact.on, fact.of, fact.kind)
		snippets := make(map[string]bool, len(volumes))
		for _, volume := range volumes {
			snippets[volume.ID] = true
		}
		return func(f *Facts) { f.Snippets[StorageKey{Host: fact.on, Storage: fact.of}] = snippets }, err
	default:
		exists, err := c.client.PoolExists(ctx, fact.of)
		return func(f *Facts) { f.Pools[fact.of] = exists }, err
	}
}

func setOf(names []string) map[string]bool {
	out := make(map[string]bool, len(names))
	for _, name := range names {
		out[name] = true
	}
	return out
}

func byName[V any](values []V, name func(V) string) map[string]V {
	out := make(map[string]V, len(values))
	for _, value := range values {
		out[name(value)] = value
	}
	return out
}
