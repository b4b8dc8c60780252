// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"context"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"time"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/backoff"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// Facts are the properties of a Cluster that are not in the resource list and rarely
// change. They are read at first contact, then one at a time as the call budget allows, and
// earlier after Invalidate. Facts are immutable.
type Facts struct {
	// User is the user or token that Proxmox authenticated.
	User string
	// Permissions are our privileges by path.
	Permissions proxmox.Permissions
	// Roles are the privileges of all roles by name; nil before the first Invalidate.
	Roles map[string][]string
	// SecurityGroups are the firewall's groups by name.
	SecurityGroups map[string]bool
	// VNets are the SDN's virtual networks by name.
	VNets map[string]proxmox.VNet
	// Bridges are the bridges and vnets for NICs by Host and name.
	Bridges map[string]map[string]proxmox.Bridge
	// InterfaceAddresses are the addresses of all interfaces by Host.
	InterfaceAddresses map[string][]netip.Addr
	// Pools reports whether a resource pool exists, for each pool passed to Invalidate.
	Pools map[string]bool
	// Snippets are the volumes on each storage passed to Invalidate.
	Snippets map[StorageKey]map[string]bool
	// Directories are the visible directory mappings by ID; nil before the first
	// Invalidate.
	Directories map[string]proxmox.DirectoryMapping
	// USB are the visible USB mappings by ID; nil before the first Invalidate.
	USB map[string]proxmox.USBMapping
	// Topologies are the layouts that pve-hook published in the notes of Hosts. Hosts
	// without one are omitted.
	Topologies map[string]PublishedTopology
	// HAGroups are the HA groups by name; nil before the first Invalidate, and from 9.0 on.
	HAGroups map[string]proxmox.HAGroup
	// HARules are the HA rules by name, without their resources; nil before the first
	// Invalidate, and before 9.0.
	HARules map[string]proxmox.HARule
}

// Fact identifies one of the Facts for Invalidate.
type Fact struct{ kind, of, on string }

// Facts that exist once per Cluster.
var (
	// FactOptions are the datacenter options, which include the allowed tags.
	FactOptions = Fact{kind: "options"}
	// FactPermissions are our privileges.
	FactPermissions = Fact{kind: "permissions"}
	// FactRoles are the roles. They are read on demand.
	FactRoles = Fact{kind: "roles"}
	// FactSecurityGroups are the security groups of the firewall.
	FactSecurityGroups = Fact{kind: "security groups"}
	// FactVNets are the virtual networks of the SDN.
	FactVNets = Fact{kind: "vnets"}
	// FactDirectories are the directory mappings. They are read on demand.
	FactDirectories = Fact{kind: "directories"}
	// FactUSB are the USB mappings. They are read on demand.
	FactUSB = Fact{kind: "usb"}
	// FactHAGroups are the HA groups of releases before 9.0. They are read on demand.
	FactHAGroups = Fact{kind: "HA groups"}
	// FactHARules are the HA rules of releases from 9.0 on. They are read on demand.
	FactHARules = Fact{kind: "HA rules"}
)

// Kinds of Facts that exist once per Host.
const (
	kindBridges  = "bridges"
	kindTopology = "topology"
)

// FactBridges returns the Fact for the bridges of a Host.
func FactBridges(host string) Fact { return Fact{kind: kindBridges, of: host} }

// FactTopology returns the Fact for the topology in the notes of a Host.
func FactTopology(host string) Fact { return Fact{kind: kindTopology, of: host} }

// FactPool returns the Fact for the existence of a resource pool. It is read on demand.
func FactPool(pool string) Fact { return Fact{kind: "pool", of: pool} }

// FactSnippets returns the Fact for the snippets on a storage of a Host. It is read on
// demand. Without Datastore.Allocate on the storage, Proxmox omits snippets from the list.
func FactSnippets(key StorageKey) Fact {
	return Fact{kind: "snippets", of: key.Storage, on: key.Host}
}

// isOnDemand reports whether a Fact is read only after Invalidate requested it.
func (f Fact) isOnDemand() bool {
	switch f.kind {
	case "pool", "snippets", FactDirectories.kind, FactUSB.kind, FactRoles.kind, FactHAGroups.kind, FactHARules.kind:
		return true
	}
	return false
}

// factRetry is the backoff for a Fact that cannot be read.
var factRetry = backoff.Exponential{Initial: time.Minute, Max: time.Hour}

const (
	// minFactAge is the age below which an invalidated Fact is not read again.
	minFactAge = 30 * time.Second
	// The age of a Fact is multiplied by its weight. Our privileges are read more often than
	// other Facts: they change most often and affect most checks. Topologies rarely change
	// without a restart of the Host, after which they are read anyway.
	permissionsWeight = 8
	defaultWeight     = 2
	topologyWeight    = 1
)

// factCache caches the Facts of a Cluster. Only the poll in progress uses it.
type factCache struct {
	known  *Facts
	states map[Fact]*factState
}

// factState is the outcome of the last read of a Fact.
type factState struct {
	at          time.Time
	failures    int
	invalidated bool
}

func newFactCache() factCache { return factCache{states: map[Fact]*factState{}} }

// all returns the Facts to maintain for these Hosts, including those requested on demand.
func (f *factCache) all(hosts []string) []Fact {
	facts := []Fact{FactOptions, FactPermissions, FactSecurityGroups, FactVNets}
	for _, host := range hosts {
		facts = append(facts, FactBridges(host), FactTopology(host))
	}
	for fact := range f.states {
		if fact.isOnDemand() && (fact.on == "" || slices.Contains(hosts, fact.on)) {
			facts = append(facts, fact)
		}
	}
	return facts
}

// dropOffline drops the state of the Facts of Hosts that are offline, so they are read when
// the Host is back: it may have other hardware or bridges. Their last values remain.
func (f *factCache) dropOffline(online []string) {
	maps.DeleteFunc(f.states, func(fact Fact, _ *factState) bool {
		return (fact.kind == kindBridges || fact.kind == kindTopology) && !slices.Contains(online, fact.of)
	})
}

// due returns the Facts to read now: never read, failed with the backoff elapsed, or
// invalidated. If there are none and acquire grants a slot of the call budget, it returns
// the oldest Fact.
func (f *factCache) due(now time.Time, hosts []string, invalidated map[Fact]bool, acquire func() bool) []Fact {
	f.dropOffline(hosts)
	f.invalidate(invalidated)
	var due []Fact
	var oldest Fact
	var maxAge time.Duration
	for _, fact := range f.all(hosts) {
		state := f.states[fact]
		if state.isDue(now) {
			due = append(due, fact)
			continue
		}
		if age := state.weight(fact) * now.Sub(state.at); age > maxAge {
			oldest, maxAge = fact, age
		}
	}
	if len(due) == 0 && maxAge > 0 && acquire() {
		return []Fact{oldest}
	}
	return due
}

// invalidate marks Facts as invalidated and adds those that are read on demand.
func (f *factCache) invalidate(facts map[Fact]bool) {
	for fact := range facts {
		switch {
		case f.states[fact] != nil:
			f.states[fact].invalidated = true
		case fact.isOnDemand():
			f.states[fact] = &factState{}
		}
	}
}

// isDue reports whether a Fact must be read now, regardless of the call budget.
func (s *factState) isDue(now time.Time) bool {
	if s == nil || s.at.IsZero() {
		return true
	}
	age := now.Sub(s.at)
	if s.failures > 0 {
		return age >= factRetry.Delay(s.failures-1)
	}
	return s.invalidated && age >= minFactAge
}

// weight returns the factor for the age of a Fact when the oldest one is chosen.
func (s *factState) weight(fact Fact) time.Duration {
	switch {
	case s.failures > 0:
		return 0
	case fact == FactPermissions:
		return permissionsWeight
	case fact.kind == kindTopology:
		return topologyWeight
	}
	return defaultWeight
}

// record stores the outcome of a read.
func (f *factCache) record(fact Fact, at time.Time, err error) {
	if f.states[fact] == nil {
		f.states[fact] = &factState{}
	}
	state := f.states[fact]
	state.at, state.invalidated = at, false
	state.failures++
	if err == nil {
		state.failures = 0
	}
}

// update replaces the Facts by a changed copy.
func (f *factCache) update(apply func(*Facts)) {
	next := &Facts{}
	if f.known != nil {
		*next = *f.known
		next.Bridges, next.Pools, next.Snippets = maps.Clone(f.known.Bridges), maps.Clone(f.known.Pools), maps.Clone(f.known.Snippets)
		next.InterfaceAddresses, next.Topologies = maps.Clone(f.known.InterfaceAddresses), maps.Clone(f.known.Topologies)
	}
	if next.Bridges == nil {
		next.Bridges, next.Pools, next.Snippets = map[string]map[string]proxmox.Bridge{}, map[string]bool{}, map[StorageKey]map[string]bool{}
		next.InterfaceAddresses, next.Topologies = map[string][]netip.Addr{}, map[string]PublishedTopology{}
	}
	apply(next)
	f.known = next
}

// Invalidate requests that Facts of a Cluster are read again with its next poll, unless
// they were read in the last 30 seconds. Use it for Facts that caused a failed check,
// because they may have been fixed.
func (i *Inventory) Invalidate(region string, facts ...Fact) {
	c, ok := i.clusters[region]
	if !ok {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, fact := range facts {
		c.invalidated[fact] = true
	}
}

func (c *cluster) takeInvalidated() map[Fact]bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	facts := c.invalidated
	c.invalidated = map[Fact]bool{}
	return facts
}

// readFacts reads the Facts that are due and reports whether any changed. A Fact that
// cannot be read keeps its last value.
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
	started := readParallel(ctx, len(due), func(n int) { changes[n], errs[n] = c.readFact(ctx, due[n]) })
	before := c.facts.known
	options := c.info.options
	for n, fact := range due {
		if !started[n] {
			continue
		}
		c.facts.record(fact, c.inventory.options.Clock.Now(), errs[n])
		if errs[n] != nil {
			c.inventory.options.Log.V(1).Info("reading a fact of the Proxmox cluster failed", "region", c.region, "fact", fact, "error", errs[n].Error())
			continue
		}
		c.facts.update(changes[n])
	}
	if reflect.DeepEqual(before, c.facts.known) {
		c.facts.known = before // equal pointers make Snapshots cheap to compare
		return !reflect.DeepEqual(options, c.info.options)
	}
	return true
}

// readFact reads one Fact and returns a function that sets it.
func (c *cluster) readFact(ctx context.Context, fact Fact) (func(*Facts), error) {
	switch fact.kind {
	case FactOptions.kind:
		options, err := c.client.Options(ctx)
		return func(*Facts) { c.info.options = options }, err
	case FactPermissions.kind:
		permissions, err := c.client.Permissions(ctx)
		return func(f *Facts) { f.User, f.Permissions = c.client.User(), permissions }, err
	case FactRoles.kind:
		roles, err := c.client.Roles(ctx)
		return func(f *Facts) { f.Roles = roles }, err
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
	case FactUSB.kind:
		mappings, err := c.client.USBMappings(ctx)
		return func(f *Facts) {
			f.USB = byName(mappings, func(m proxmox.USBMapping) string { return m.ID })
		}, err
	case FactHAGroups.kind, FactHARules.kind:
		return c.readHA(ctx, fact)
	case kindBridges:
		bridges, err := c.client.Bridges(ctx, fact.of)
		if err != nil {
			return nil, err
		}
		addresses, err := c.client.InterfaceAddresses(ctx, fact.of)
		return func(f *Facts) {
			f.Bridges[fact.of] = byName(bridges, func(b proxmox.Bridge) string { return b.Name })
			f.InterfaceAddresses[fact.of] = addresses
		}, err
	case kindTopology:
		return c.readTopology(ctx, fact.of)
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

// readHA reads the HA groups or rules. The resources of rules change with every VM.
func (c *cluster) readHA(ctx context.Context, fact Fact) (func(*Facts), error) {
	if fact == FactHAGroups {
		groups, err := c.client.HAGroups(ctx)
		return func(f *Facts) { f.HAGroups = byName(groups, func(g proxmox.HAGroup) string { return g.Name }) }, err
	}
	rules, err := c.client.HARules(ctx)
	for n := range rules {
		rules[n].Resources, rules[n].Digest = nil, ""
	}
	return func(f *Facts) { f.HARules = byName(rules, func(r proxmox.HARule) string { return r.Name }) }, err
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
