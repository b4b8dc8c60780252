// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package poll

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/backoff"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/due"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/hosttopology"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/observed"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// kind is how the Facts of a kind are read, and when.
type kind struct {
	due.Policy
	// budget limits the reads of Facts that did not change visibly; zero for none.
	budget ReadKind
	// onDemand is true for Facts that are read only after Invalidate requested them.
	onDemand bool
	// timeouts is how often the poll may have no time for a read until nothing waits for it.
	timeouts int

	read func(context.Context, *Cluster, reading) (any, error)
	// set sets the value in the result of a poll, whose Facts are not nil.
	set func(*observed.Result, Fact, any)
}

// The policies of all kinds. The longest interval of a ReadKind is for a Cluster where it has only one Fact.
var (
	factKind = kind{
		budget: ReadKind{"fact", 4 * time.Minute},
		Policy: due.Policy{MinAge: 30 * time.Second, Retry: backoff.Exponential{Initial: time.Minute, Max: time.Hour}},
	}
	onDemandKind = kind{budget: factKind.budget, Policy: factKind.Policy, onDemand: true}
	// Our privileges change most often and affect most checks.
	permissionsKind = kind{budget: ReadKind{"permissions", 12 * time.Minute}, Policy: factKind.Policy}
	versionKind     = kind{budget: ReadKind{"release", time.Hour}}
	mappingsKind    = kind{budget: ReadKind{"mappings", 5 * time.Minute}}
	maintenanceKind = kind{budget: ReadKind{"maintenance", time.Minute}}
	hardwareKind    = kind{Policy: due.Policy{Retry: backoff.Exponential{Initial: 10 * time.Minute, Max: 10 * time.Minute}}}
	// configKind finds changes that rows do not show: disks, notes, networks, devices.
	configKind = kind{
		budget: ReadKind{"config", 150 * time.Second},
		Policy: due.Policy{Retry: backoff.Exponential{Initial: 10 * time.Second, Max: 10 * time.Minute}},
	}
	containerKind = kind{budget: ReadKind{"container", 150 * time.Second}, timeouts: 2}
	sdnKind       = kind{budget: ReadKind{"SDN", time.Minute}}
	// An agent is read once after the VM started and then at most once an hour.
	agentKind  = kind{budget: ReadKind{"agent", 2 * time.Minute}, Policy: due.Policy{MinAge: time.Hour}, timeouts: 2}
	agentsKind = kind{Policy: due.Policy{Retry: backoff.Exponential{Initial: time.Hour, Max: time.Hour}}}
)

// kinds are the Facts of a Cluster by kind.
var kinds = map[string]kind{
	factVersion.kind:     ofCluster(versionKind, proxmox.Client.Version, func(r *observed.Result, v proxmox.Version) { r.Version = v }),
	factMappings.kind:    define(mappingsKind, readPCIMappings, func(r *observed.Result, _ Fact, v []proxmox.PCIMapping) { r.Mappings = v }),
	factMaintenance.kind: define(maintenanceKind, readHostsInMaintenance, func(*observed.Result, Fact, []string) {}),
	FactOptions.kind:     ofCluster(factKind, proxmox.Client.Options, func(r *observed.Result, v proxmox.ClusterOptions) { r.Options = v }),
	FactPermissions.kind: ofCluster(permissionsKind, proxmox.Client.Permissions, func(r *observed.Result, v proxmox.Permissions) { r.Facts.Permissions = v }),
	FactRoles.kind:       ofCluster(onDemandKind, proxmox.Client.Roles, func(r *observed.Result, v map[string][]string) { r.Facts.Roles = v }),
	FactSecurityGroups.kind: define(factKind, func(ctx context.Context, c *Cluster, _ reading) (map[string]bool, error) {
		groups, err := c.client.SecurityGroups(ctx)
		return setOf(groups), err
	}, func(r *observed.Result, _ Fact, v map[string]bool) { r.Facts.SecurityGroups = v }),
	FactVNets.kind: ofCluster(factKind, named(proxmox.Client.VNets, func(v proxmox.VNet) string { return v.Name }),
		func(r *observed.Result, v map[string]proxmox.VNet) { r.Facts.VNets = v }),
	FactDirectories.kind: ofCluster(onDemandKind, named(proxmox.Client.DirectoryMappings, func(m proxmox.DirectoryMapping) string { return m.ID }),
		func(r *observed.Result, v map[string]proxmox.DirectoryMapping) { r.Facts.Directories = v }),
	FactUSB.kind: ofCluster(onDemandKind, named(proxmox.Client.USBMappings, func(m proxmox.USBMapping) string { return m.ID }),
		func(r *observed.Result, v map[string]proxmox.USBMapping) { r.Facts.USB = v }),
	FactHAGroups.kind: ofCluster(onDemandKind, named(proxmox.Client.HAGroups, func(g proxmox.HAGroup) string { return g.Name }),
		func(r *observed.Result, v map[string]proxmox.HAGroup) { r.Facts.HAGroups = v }),
	FactHARules.kind: ofCluster(onDemandKind, named(readHARules, func(rule proxmox.HARule) string { return rule.Name }),
		func(r *observed.Result, v map[string]proxmox.HARule) { r.Facts.HARules = v }),
	FactPool("").kind: define(onDemandKind, func(ctx context.Context, c *Cluster, r reading) (bool, error) {
		return c.client.PoolExists(ctx, r.fact.of)
	},
		func(r *observed.Result, f Fact, v bool) { r.Facts.Pools[f.of] = v }),
	FactSnippets(observed.StorageKey{}).kind: define(onDemandKind, readSnippets, func(r *observed.Result, f Fact, v map[string]bool) {
		r.Facts.Snippets[observed.StorageKey{Host: f.on, Storage: f.of}] = v
	}),
	FactBridges("").kind: define(factKind, readBridges, func(r *observed.Result, f Fact, v hostBridges) {
		r.Facts.Bridges[f.of], r.Facts.InterfaceAddresses[f.of] = v.bridges, v.addresses
	}),
	FactTopology("").kind: define(factKind, readTopology, func(r *observed.Result, f Fact, v observed.PublishedTopology) {
		if v != (observed.PublishedTopology{}) {
			r.Facts.Topologies[f.of] = v
		}
	}),
	factHardware("").kind: define(hardwareKind, readHostHardware, func(r *observed.Result, f Fact, v proxmox.HostInfo) { r.Hardware[f.of] = v }),
	factConfig(0).kind:    define(configKind, readVMConfig, func(r *observed.Result, f Fact, v *proxmox.VMConfig) { r.Configs[f.vmid] = v }),
	factContainer(0).kind: define(containerKind, readContainer, setGuestAddresses),
	kindAgent:             define(agentKind, readAgent, setGuestAddresses),
	factAgents.kind:       agentsKind,
	factSDN.kind: define(sdnKind, func(ctx context.Context, c *Cluster, r reading) ([]proxmox.SDNAddress, error) {
		addresses, err := c.client.SDNAddresses(ctx) // a Cluster without SDN returns an error or an empty list
		return orLast(c, r.fact, addresses, err)
	}, func(r *observed.Result, _ Fact, v []proxmox.SDNAddress) { r.ReportedAddresses.SDN = v }),
}

// define returns a kind whose values have a type.
func define[V any](k kind, read func(context.Context, *Cluster, reading) (V, error), set func(*observed.Result, Fact, V)) kind {
	k.read = func(ctx context.Context, c *Cluster, r reading) (any, error) { return read(ctx, c, r) }
	k.set = func(r *observed.Result, f Fact, value any) { set(r, f, value.(V)) } //nolint:forcetypeassert // read returned it
	return k
}

// ofCluster defines a kind that a Cluster has once.
func ofCluster[V any](k kind, read func(proxmox.Client, context.Context) (V, error), set func(*observed.Result, V)) kind {
	return define(k, func(ctx context.Context, c *Cluster, _ reading) (V, error) { return read(c.client, ctx) },
		func(r *observed.Result, _ Fact, v V) { set(r, v) })
}

// named returns a function that reads a list by name.
func named[V any](list func(proxmox.Client, context.Context) ([]V, error), name func(V) string) func(proxmox.Client, context.Context) (map[string]V, error) {
	return func(client proxmox.Client, ctx context.Context) (map[string]V, error) {
		values, err := list(client, ctx)
		return byName(values, name), err
	}
}

func setGuestAddresses(r *observed.Result, f Fact, v []netip.Addr) {
	r.ReportedAddresses.Guests[f.vmid] = v
}

func readPCIMappings(ctx context.Context, c *Cluster, r reading) ([]proxmox.PCIMapping, error) {
	mappings, err := c.client.PCIMappings(ctx)
	slices.SortFunc(mappings, func(a, b proxmox.PCIMapping) int { return strings.Compare(a.ID, b.ID) })
	return orLast(c, r.fact, mappings, err)
}

// readHostsInMaintenance returns a list that is not nil once it was read, or the token may not read it.
// After a failure the last known Hosts remain in maintenance.
func readHostsInMaintenance(ctx context.Context, c *Cluster, r reading) ([]string, error) {
	hosts, err := c.client.Maintenance(ctx)
	last, _ := valueOf[[]string](c, r.fact)
	if _, forbidden := errors.AsType[*proxmox.ForbiddenError](err); forbidden && last == nil {
		hosts, err = nil, nil
	}
	if err == nil {
		return append([]string{}, hosts...), nil
	}
	return orLast(c, r.fact, last, err)
}

// readHARules omits the resources of rules, which change with every VM.
func readHARules(client proxmox.Client, ctx context.Context) ([]proxmox.HARule, error) { //nolint:revive // like a method
	rules, err := client.HARules(ctx)
	for n := range rules {
		rules[n].Resources, rules[n].Digest = nil, ""
	}
	return rules, err
}

func readSnippets(ctx context.Context, c *Cluster, r reading) (map[string]bool, error) {
	volumes, err := c.client.Volumes(ctx, r.fact.on, r.fact.of, r.fact.kind)
	snippets := make(map[string]bool, len(volumes))
	for _, volume := range volumes {
		snippets[volume.ID] = true
	}
	return snippets, err
}

// hostBridges are the bridges and the addresses of all interfaces of a Host.
type hostBridges struct {
	bridges   map[string]proxmox.Bridge
	addresses []netip.Addr
}

func readBridges(ctx context.Context, c *Cluster, r reading) (hostBridges, error) {
	bridges, err := c.client.Bridges(ctx, r.fact.of)
	if err != nil {
		return hostBridges{}, err
	}
	addresses, err := c.client.InterfaceAddresses(ctx, r.fact.of)
	return hostBridges{byName(bridges, func(b proxmox.Bridge) string { return b.Name }), addresses}, err
}

// readTopology reads the topology in the notes of a Host. Without Sys.Audit on / the notes
// cannot be read, and the settings or the defaults apply.
func readTopology(ctx context.Context, c *Cluster, r reading) (observed.PublishedTopology, error) {
	host := r.fact.of
	last, _ := valueOf[observed.PublishedTopology](c, r.fact)
	if held, known := valueOf[proxmox.Permissions](c, FactPermissions); known && held != nil && !held.Has("/", "Sys.Audit") {
		return last, nil
	}
	notes, err := c.client.HostNotes(ctx, host)
	if err != nil {
		return observed.PublishedTopology{}, err
	}
	topology, err := hosttopology.Read(notes, host)
	if err == nil {
		return observed.PublishedTopology{Topology: topology}, nil
	}
	problem := fmt.Sprintf("the topology in the notes of host %s is invalid: %v; run \"pve-hook topology --publish\" on the host", host, err)
	if problem != last.Problem {
		c.Log.Info("the topology in the notes of a host is invalid", "region", c.region, "host", host, "error", err.Error())
	}
	return observed.PublishedTopology{Topology: topology, Problem: problem}, nil
}

func readHostHardware(ctx context.Context, c *Cluster, r reading) (proxmox.HostInfo, error) {
	info, err := c.client.HostInfo(ctx, r.fact.of)
	if err == nil && info == (proxmox.HostInfo{}) {
		err = errors.New("the host reports no hardware")
	}
	return info, err
}

func readVMConfig(ctx context.Context, c *Cluster, r reading) (*proxmox.VMConfig, error) {
	config, err := c.client.VMConfig(ctx, r.host, r.fact.vmid)
	return &config, err
}

// readContainer returns the addresses in the configuration of a container. It returns an error only if
// the poll had no time for it.
func readContainer(ctx context.Context, c *Cluster, r reading) ([]netip.Addr, error) {
	config, err := c.client.ContainerConfig(ctx, r.host, r.fact.vmid)
	if ctx.Err() != nil || errors.Is(err, proxmox.ErrNotFound) {
		return nil, err
	}
	return orLast(c, r.fact, config.Network().Addresses(), err)
}

// readAgent returns the addresses that the agent of a VM reports. It returns an error only if the poll
// had no time for it. The privilege for it is optional: after Proxmox denied one agent, none is read
// for an hour.
func readAgent(ctx context.Context, c *Cluster, r reading) ([]netip.Addr, error) {
	if _, _, allowed := c.cache.Peek(factAgents); !allowed {
		last, _ := valueOf[[]netip.Addr](c, r.fact)
		return last, nil
	}
	addresses, err := c.client.GuestAddresses(ctx, r.host, r.fact.vmid)
	if _, forbidden := errors.AsType[*proxmox.ForbiddenError](err); forbidden {
		_, _ = c.cache.Read(ctx, factAgents, func(context.Context) (any, error) { return nil, err })
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return nil, err
	}
	return orLast(c, r.fact, addresses, err)
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
