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
func (f Fact) onDemand() bool {
	return f.kind == "pool" || f.kind == "snippets" || f == FactDirectories
}

const (
	// factRetry is how soon one that could not be read is tried again, and longer
	// each time.
	factRetry    = time.Minute
	maxFactRetry = time.Hour
	// doubtPause is how long a Fact that is doubted is believed once it was read.
	doubtPause = 30 * time.Second
	// permissionsWeight lets privileges have their turn more often than the rest:
	// they are what changes most, and what hurts most.
	permissionsWeight = 4
)

// facts keeps the Facts of a Cluster and when each was read. Only the poll under
// way touches it.
type facts struct {
	known *Facts
	read  map[Fact]*factReading
}

// factReading is how the last reading of a Fact went.
type factReading struct {
	at       time.Time
	failures int
	doubted  bool
}

func newFacts() facts { return facts{read: map[Fact]*factReading{}} }

// wanted are all Facts to keep, of these Hosts, and those that were asked for before.
func (f *facts) wanted(hosts []string) []Fact {
	all := []Fact{FactOptions, FactPermissions, FactSecurityGroups, FactVNets}
	for _, host := range hosts {
		all = append(all, FactBridges(host))
	}
	for fact := range f.read {
		if fact.onDemand() && (fact.on == "" || slices.Contains(hosts, fact.on)) {
			all = append(all, fact)
		}
	}
	return all
}

// due lists what to read now: what was never read, what failed and may be tried
// again, what is doubted, and when it is a Fact's turn, what has waited longest.
func (f *facts) due(now time.Time, hosts []string, doubts map[Fact]bool, turn func() bool) []Fact {
	f.doubt(doubts)
	var due []Fact
	var longest Fact
	var waited time.Duration
	for _, fact := range f.wanted(hosts) {
		reading := f.read[fact]
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
func (f *facts) doubt(doubts map[Fact]bool) {
	for fact := range doubts {
		switch {
		case f.read[fact] != nil:
			f.read[fact].doubted = true
		case fact.onDemand():
			f.read[fact] = &factReading{}
		}
	}
}

// isDue tells whether a Fact must be read now, whoever's turn it is.
func (r *factReading) isDue(now time.Time) bool {
	if r == nil || r.at.IsZero() {
		return true
	}
	age := now.Sub(r.at)
	if r.failures > 0 {
		return age >= min(factRetry<<min(r.failures-1, 10), maxFactRetry)
	}
	return r.doubted && age >= doubtPause
}

// weight is how much a Fact's age counts when turns are taken.
func (r *factReading) weight(fact Fact) time.Duration {
	switch {
	case r.failures > 0:
		return 0
	case fact == FactPermissions:
		return permissionsWeight
	}
	return 1
}

// note keeps how a reading went, and the Facts that it changed.
func (f *facts) note(fact Fact, at time.Time, err error) {
	if f.read[fact] == nil {
		f.read[fact] = &factReading{}
	}
	reading := f.read[fact]
	reading.at, reading.doubted = at, false
	reading.failures++
	if err == nil {
		reading.failures = 0
	}
}

// change replaces the Facts by a copy with that change.
func (f *facts) change(apply func(*Facts)) {
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
