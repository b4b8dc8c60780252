// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package poll

import (
	"context"
	"errors"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/observed"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

const (
	// maxParallelReads limits the parallel reads of a Cluster. A Host has three workers for
	// all its clients.
	maxParallelReads = 3
	// firstReadTimeout limits the reads of configurations in the first poll instead of
	// ReadTimeout, because the first Snapshot waits for all of them.
	firstReadTimeout = 15 * time.Second
	// agentDelay is the uptime after which the agent of a guest is expected to run.
	agentDelay = 2 * time.Minute
	// agentStartTimeout limits how long addresses are considered unknown after startup
	// because agents were not read yet. Some configured agents may never respond.
	agentStartTimeout = time.Minute
)

// reading is a Fact that a poll keeps current.
type reading struct {
	fact Fact
	host string // of a guest
	// stamp is what the resource list shows of it. The Fact is read again when that changes.
	stamp any
	// unreadable is true while the Host is offline or the guest does not run.
	unreadable bool
}

// round is the reads of one poll.
type round struct {
	*Cluster
	seen map[Fact]bool
	// changed is true if a value changed.
	changed bool
	// incomplete is true if something was not read yet.
	incomplete bool
}

// readRelease reads the release and, before PVE 9.2, which Hosts are in maintenance, and marks
// their rows. From 9.2 on the rows show it.
func (r *round) readRelease(ctx context.Context, rows []proxmox.HostRow) {
	r.refresh(ctx, r.ReadTimeout, []reading{{fact: factVersion}})
	if r.version().AtLeast(9, 2) {
		return
	}
	r.refresh(ctx, r.ReadTimeout, []reading{{fact: factMaintenance}})
	hosts, _ := valueOf[[]string](r.Cluster, factMaintenance)
	for n := range rows {
		rows[n].Maintenance = rows[n].Maintenance || slices.Contains(hosts, rows[n].Name)
	}
}

// readDetails reads everything else that is due.
func (r *round) readDetails(ctx context.Context, resources proxmox.Resources, configTimeout time.Duration) {
	online := make(map[string]bool, len(resources.Hosts))
	for _, host := range resources.Hosts {
		online[host.Name] = host.Online
	}
	timeout := r.ReadTimeout
	r.refresh(ctx, timeout, []reading{{fact: FactPermissions}}, r.factReadings(resources.Hosts)) // they decide about notes
	r.refresh(ctx, configTimeout, r.configReadings(resources.Guests, online)...)
	r.refresh(ctx, timeout, hardwareReadings(resources.Hosts))
	if r.watchesAddresses.Load() {
		r.refresh(ctx, timeout, []reading{{fact: factSDN}}, containerReadings(resources.Guests, online))
		r.refresh(ctx, timeout, r.agentReadings(resources.Guests, online))
		if !r.incomplete && !r.complete {
			r.complete, r.changed = true, true
		}
	}
	r.cache.Keep(func(fact Fact) bool { return r.seen[fact] || kinds[fact.kind].onDemand || fact == factAgents })
}

// factReadings returns the other Facts of the Cluster and its Hosts, including those requested on demand.
// Those of a Host are read when it is back online: it may have other hardware or bridges.
func (r *round) factReadings(hosts []proxmox.HostRow) []reading {
	readings := []reading{{fact: FactOptions}, {fact: FactSecurityGroups}, {fact: FactVNets}, {fact: factMappings}}
	online := map[string]bool{"": true}
	for _, row := range hosts {
		online[row.Name] = row.Online
		for _, fact := range []Fact{FactBridges(row.Name), FactTopology(row.Name)} {
			readings = append(readings, reading{fact: fact, stamp: row.Online, unreadable: !row.Online})
		}
	}
	for fact := range r.cache.All() {
		if kinds[fact.kind].onDemand {
			readings = append(readings, reading{fact: fact, unreadable: !online[fact.on]})
		}
	}
	return readings
}

// hardwareReadings returns the hardware of all Hosts. Another number of CPUs means other hardware.
func hardwareReadings(hosts []proxmox.HostRow) []reading {
	readings := make([]reading, len(hosts))
	for n, row := range hosts {
		readings[n] = reading{fact: factHardware(row.Name), stamp: row.CPUs, unreadable: !row.Online || row.CPUs == 0}
	}
	return readings
}

// configReadings returns the configurations of all VMs and templates: first those of VMs in our range
// and of templates. Those of other users are needed for their PCI devices and CPUs.
func (r *round) configReadings(rows []proxmox.GuestRow, online map[string]bool) [][]reading {
	var ours, others []reading
	before := r.Last(r.region)
	for _, row := range rows {
		if row.Kind != proxmox.KindQEMU {
			continue
		}
		if last, _ := before.Guest(row.VMID); !row.HasResources() {
			row.Template = last.Template // such a row has no template flag either
		}
		config := reading{fact: factConfig(row.VMID), host: row.Host, stamp: observed.FingerprintOf(row), unreadable: !online[row.Host]}
		if row.Template || r.Own.Contains(row.VMID) {
			ours = append(ours, config)
		} else {
			config.stamp = observed.FingerprintOf(row).DevicesOnly()
			others = append(others, config)
		}
	}
	return [][]reading{ours, others}
}

// containerReadings returns the configurations of containers, which contain their addresses.
func containerReadings(rows []proxmox.GuestRow, online map[string]bool) []reading {
	var readings []reading
	for _, row := range rows {
		if row.Kind == proxmox.KindLXC && !row.Template {
			readings = append(readings, reading{fact: factContainer(row.VMID), host: row.Host, stamp: observed.FingerprintOf(row), unreadable: !online[row.Host]})
		}
	}
	return readings
}

// agentReadings returns the agents of VMs of other users. It omits VMs that stopped, because their
// addresses may change with the next start.
func (r *round) agentReadings(rows []proxmox.GuestRow, online map[string]bool) []reading {
	var readings []reading
	for _, row := range rows {
		config, known := valueOf[*proxmox.VMConfig](r.Cluster, factConfig(row.VMID))
		if row.Status == observed.StatusStopped || !known || !config.Network().AgentEnabled() || r.Own.Contains(row.VMID) {
			continue
		}
		runs := online[row.Host] && row.Status == observed.StatusRunning && row.UptimeSeconds >= int64(agentDelay/time.Second)
		readings = append(readings, reading{fact: factAgent(row.VMID), host: row.Host, unreadable: !runs})
	}
	return readings
}

// refresh reads what is due, one group after the other, until the timeout. The rest is still due
// with the next poll.
func (r *round) refresh(ctx context.Context, timeout time.Duration, groups ...[]reading) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	for _, readings := range groups {
		lanes := r.lanes(r.due(readings))
		changed := make([]bool, len(lanes))
		var parallel errgroup.Group
		parallel.SetLimit(maxParallelReads)
		for n, lane := range lanes {
			parallel.Go(func() error {
				for _, one := range lane {
					changed[n] = ctx.Err() == nil && r.read(ctx, one) || changed[n]
				}
				return nil
			})
		}
		_ = parallel.Wait() // read logs errors
		r.changed = r.changed || slices.Contains(changed, true)
		r.incomplete = r.incomplete || slices.ContainsFunc(readings, r.isMissing)
	}
}

// due returns the readings to make: those that are due and, of each kind, the oldest one if the call
// budget grants a slot. Only one agent is read in a poll, unless addresses are still unknown.
func (r *round) due(readings []reading) []reading {
	var due, oldest []reading
	ages := map[ReadKind]time.Duration{}
	agent := false
	for _, one := range readings {
		r.seen[one.fact] = true
		r.cache.Expect(one.fact, one.stamp)
		kind := kinds[one.fact.kind]
		_, age, isDue := r.cache.Peek(one.fact)
		switch isAgent := one.fact.kind == kindAgent; {
		case one.unreadable || isAgent && agent && r.complete:
		case isDue:
			due, agent = append(due, one), agent || isAgent
		case kind.budget.every > 0 && age >= kind.MinAge && age > ages[kind.budget]:
			ages[kind.budget] = age
			oldest = append(slices.DeleteFunc(oldest, func(o reading) bool { return kinds[o.fact.kind].budget == kind.budget }), one)
		}
	}
	for _, one := range oldest {
		if r.budget.tryAcquire(kinds[one.fact.kind].budget, r.Clock.Now()) {
			due = append(due, one)
		}
	}
	return due
}

// lanes returns the readings that may be made in parallel. An agent that does not respond blocks one
// of its Host's three workers for three seconds, so the agents of a Host are read one by one.
func (r *round) lanes(readings []reading) [][]reading {
	var lanes [][]reading
	agents := map[string]int{}
	for _, one := range readings {
		lane, ok := agents[one.host]
		if one.fact.kind != kindAgent || !ok {
			lane = len(lanes)
			lanes = append(lanes, nil)
		}
		if one.fact.kind == kindAgent {
			agents[one.host] = lane
			if r.agentsStarted.IsZero() {
				r.agentsStarted = r.Clock.Now()
			}
		}
		lanes[lane] = append(lanes[lane], one)
	}
	return lanes
}

// read reads a Fact and reports whether it changed.
func (r *round) read(ctx context.Context, one reading) bool {
	changed, err := r.cache.Read(ctx, one.fact, func(ctx context.Context) (any, error) {
		return kinds[one.fact.kind].read(ctx, r.Cluster, one)
	})
	if err != nil {
		r.logFailure(one.fact, err)
	}
	if one.fact.vmid != 0 && errors.Is(err, proxmox.ErrNotFound) {
		return r.cache.Drop(one.fact)
	}
	return changed
}

// isMissing reports whether a Fact was not read yet. After an error, nothing waits for it, but the
// addresses of a guest are only unknown because the poll had no time for it: that must have happened
// repeatedly, or for the agents in all for agentStartTimeout.
func (r *round) isMissing(one reading) bool {
	if one.unreadable {
		return false
	}
	entry, _, _ := r.cache.Peek(one.fact)
	if one.fact.kind == kindAgent && !r.agentsStarted.IsZero() && r.Clock.Since(r.agentsStarted) >= agentStartTimeout {
		return false
	}
	return !entry.Known && entry.Failures <= kinds[one.fact.kind].timeouts
}

func (c *Cluster) logFailure(fact Fact, err error) {
	c.Log.V(1).Info("reading a fact of the Proxmox cluster failed", "region", c.region, "fact", fact, "error", err.Error())
}

// version returns the release; zero until it was read.
func (c *Cluster) version() proxmox.Version {
	version, _ := valueOf[proxmox.Version](c, factVersion)
	return version
}

// valueOf returns the last value of a Fact; false if it was not read.
func valueOf[V any](c *Cluster, fact Fact) (value V, known bool) {
	entry, _, _ := c.cache.Peek(fact)
	value, known = entry.Value.(V)
	return value, known && entry.Known
}

// orLast returns the last value of a Fact instead of an error. Such a Fact is not read again before
// the call budget grants a slot: few need it, or it may never be readable.
func orLast[V any](c *Cluster, fact Fact, value V, err error) (V, error) { //nolint:unparam // the results are those of kind.read
	if err != nil {
		c.logFailure(fact, err)
		value, _ = valueOf[V](c, fact)
	}
	return value, nil
}

// Invalidate requests that Facts are read again with the next poll, unless they were read in the
// last 30 seconds.
func (c *Cluster) Invalidate(facts ...Fact) { c.cache.Invalidate(facts...) }

// InvalidateConfig requests that the configuration of a VM is read again with the next poll.
func (c *Cluster) InvalidateConfig(vmid int) { c.cache.Invalidate(factConfig(vmid)) }

// IsCurrentConfig reports whether a configuration is what was last read of the VM, and was not
// invalidated since.
func (c *Cluster) IsCurrentConfig(vmid int, config *proxmox.VMConfig) bool {
	entry, _, _ := c.cache.Peek(factConfig(vmid))
	return entry.Known && !entry.Changed && entry.Value == config
}
