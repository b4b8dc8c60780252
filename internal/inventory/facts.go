// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"maps"
	"slices"
	"time"

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
