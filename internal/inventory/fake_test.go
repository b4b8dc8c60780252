// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package inventory_test

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	testclock "k8s.io/utils/clock/testing"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

const gib = int64(1) << 30

var (
	start    = time.Date(2026, 11, 15, 8, 0, 0, 0, time.UTC)
	ownRange = inventory.VMIDRange{From: 20000, To: 20999}
)

// cluster is a fake proxmox.Client. The embedded interface makes unexpected calls panic.
type cluster struct {
	proxmox.Client
	region string

	mu          sync.Mutex
	resources   proxmox.Resources
	permissions proxmox.Permissions
	mappings    []proxmox.PCIMapping
	drained     []string
	noDrained   error  // of every read of drained
	release     string // default 9.2
	hardware    map[string]proxmox.HostInfo
	notes       map[string]string // by Host
	groups      []string
	noSDN       error
	configs     map[int]proxmox.VMConfig
	failure     error
	unreadable  map[int]error
	hanging     map[int]bool   // containers; set before the first poll
	bridge      proxmox.Bridge // of every Host; the name is set by Bridges
	addresses   []netip.Addr   // of every Host
	sdn         []proxmox.SDNAddress
	agents      map[int][]netip.Addr
	// agentFailure is the error of every agent.
	agentFailure error
	calls        []string
	before       func() // called at the start of Resources, without the lock
	during       func() // called after Resources read its response
	onConfig     func() // called with each config read; set before the first poll
	onBridges    func() // called with each read of bridges; set before the first poll
	onAgent      func() // called with each agent read; set before the first poll
}

func newCluster(region string, hosts ...proxmox.HostRow) *cluster {
	return &cluster{
		region:     region,
		resources:  proxmox.Resources{Hosts: hosts},
		configs:    map[int]proxmox.VMConfig{},
		unreadable: map[int]error{},
	}
}

func (c *cluster) Region() string { return c.region }

func (c *cluster) Resources(context.Context) (proxmox.Resources, error) {
	c.mu.Lock()
	before, during := c.before, c.during
	c.mu.Unlock()
	if before != nil {
		before()
	}
	c.mu.Lock()
	c.calls = append(c.calls, "resources")
	response, err := proxmox.Resources{
		Hosts:    slices.Clone(c.resources.Hosts),
		Guests:   slices.Clone(c.resources.Guests),
		Storages: slices.Clone(c.resources.Storages),
	}, c.failure
	c.mu.Unlock()
	if during != nil {
		during()
	}
	return response, err
}

func (c *cluster) Version(context.Context) (proxmox.Version, error) {
	c.record("version")
	release := cmp.Or(c.release, "9.2")
	return proxmox.Version{Release: release, Full: release + ".11"}, nil
}

func (c *cluster) Options(context.Context) (proxmox.ClusterOptions, error) {
	c.record("options")
	return proxmox.ClusterOptions{MACPrefix: "BC:24:11"}, nil
}

func (c *cluster) PCIMappings(context.Context) ([]proxmox.PCIMapping, error) {
	c.record("mappings")
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.mappings), nil
}

func (c *cluster) Maintenance(context.Context) ([]string, error) {
	c.record("maintenance")
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.drained), c.noDrained
}

func (c *cluster) User() string { return "kubernetes@pve!karpenter" }

func (c *cluster) SecurityGroups(context.Context) ([]string, error) {
	c.record("groups")
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.groups), nil
}

func (c *cluster) VNets(context.Context) ([]proxmox.VNet, error) {
	c.record("vnets")
	return nil, c.noSDN
}

func (c *cluster) InterfaceAddresses(context.Context, string) ([]netip.Addr, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.addresses), nil
}

func (c *cluster) Bridges(ctx context.Context, host string) ([]proxmox.Bridge, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	c.record("bridges " + host)
	if c.onBridges != nil {
		c.onBridges()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	bridge := c.bridge
	bridge.Name, bridge.Type = "vmbr0", "bridge"
	return []proxmox.Bridge{bridge}, nil
}

func (c *cluster) HostNotes(_ context.Context, host string) (string, error) {
	c.record("notes " + host)
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.notes[host], nil
}

func (c *cluster) PoolExists(_ context.Context, pool string) (bool, error) {
	c.record("pool " + pool)
	return pool == "karpenter", nil
}

func (c *cluster) Volumes(_ context.Context, host, storage, content string) ([]proxmox.Volume, error) {
	c.record(fmt.Sprintf("%s %s/%s", content, host, storage))
	return []proxmox.Volume{{ID: storage + ":snippets/" + host + ".yaml"}}, nil
}

func (c *cluster) Permissions(context.Context) (proxmox.Permissions, error) {
	c.record("permissions")
	return c.permissions, nil
}

func (c *cluster) VMConfig(_ context.Context, host string, vmid int) (proxmox.VMConfig, error) {
	c.record(fmt.Sprintf("config %s/%d", host, vmid))
	if c.onConfig != nil {
		c.onConfig()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.unreadable[vmid]; err != nil {
		return proxmox.VMConfig{}, err
	}
	config, ok := c.configs[vmid]
	if !ok {
		return proxmox.VMConfig{}, proxmox.ErrNotFound
	}
	return config, nil
}

func (c *cluster) record(call string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.calls = append(c.calls, call)
}

// takeCalls returns and clears the recorded calls.
func (c *cluster) takeCalls() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	calls := c.calls
	c.calls = nil
	return calls
}

// takeReads returns the recorded calls of a kind, sorted, and clears all.
func (c *cluster) takeReads(kind string) []string {
	reads := slices.DeleteFunc(c.takeCalls(), func(call string) bool { return call != kind && !strings.HasPrefix(call, kind+" ") })
	slices.Sort(reads)
	return reads
}

// change changes the fake's state under its lock.
func (c *cluster) change(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f()
}

func (c *cluster) setGuests(guests ...proxmox.GuestRow) {
	c.change(func() { c.resources.Guests = guests })
}

func host(name string, cpus int, memoryGiB int64) proxmox.HostRow {
	return proxmox.HostRow{Name: name, Online: true, CPUs: cpus, MemoryBytes: memoryGiB * gib}
}

func vm(vmid int, hostName, status string, cpus int, memoryGiB int64) proxmox.GuestRow {
	return proxmox.GuestRow{
		VMID: vmid, Kind: proxmox.KindQEMU, Name: "vm-" + strconv.Itoa(vmid), Host: hostName,
		Status: status, CPUs: cpus, MemoryBytes: memoryGiB * gib,
	}
}

// container returns a running container on pve1.
func container(vmid int, cpus int, memoryGiB int64) proxmox.GuestRow {
	row := vm(vmid, "pve1", "running", cpus, memoryGiB)
	row.Kind = proxmox.KindLXC
	return row
}

// template returns a template on pve1.
func template(vmid int) proxmox.GuestRow {
	row := vm(vmid, "pve1", "stopped", 2, 2)
	row.Template = true
	return row
}

// rowWithoutResources returns a row on pve1 as Proxmox lists a new guest or a guest on an
// offline Host.
func rowWithoutResources(vmid int) proxmox.GuestRow {
	return proxmox.GuestRow{VMID: vmid, Kind: proxmox.KindQEMU, Host: "pve1", Status: "unknown"}
}

func config(options ...string) proxmox.VMConfig {
	c := proxmox.VMConfig{Options: map[string]string{}, Digest: fmt.Sprint(options)}
	for n := 0; n < len(options); n += 2 {
		c.Options[options[n]] = options[n+1]
	}
	return c
}

// newInventory returns an Inventory with a fake clock.
func newInventory(t *testing.T, clusters ...*cluster) (*inventory.Inventory, *testclock.FakeClock) {
	t.Helper()
	clock := testclock.NewFakeClock(start)
	return newInventoryWith(t, inventory.Options{Clock: clock}, clusters...), clock
}

// newPolled returns an Inventory after its first poll.
func newPolled(t *testing.T, clusters ...*cluster) (*inventory.Inventory, *testclock.FakeClock) {
	t.Helper()
	i, clock := newInventory(t, clusters...)
	refresh(t, i)
	return i, clock
}

// newWatched returns an Inventory after its first poll, which read addresses.
func newWatched(t *testing.T, clusters ...*cluster) (*inventory.Inventory, *testclock.FakeClock) {
	t.Helper()
	i, clock := newInventory(t, clusters...)
	i.WatchAddresses()
	refresh(t, i)
	return i, clock
}

func newInventoryWith(t *testing.T, options inventory.Options, clusters ...*cluster) *inventory.Inventory {
	t.Helper()
	clients := make([]proxmox.Client, 0, len(clusters))
	for _, c := range clusters {
		clients = append(clients, c)
	}
	options.DetailRange = ownRange
	i, err := inventory.New(clients, options)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	return i
}

// pollFor advances the clock with a poll every ten seconds.
func pollFor(t *testing.T, i *inventory.Inventory, clock *testclock.FakeClock, duration time.Duration) {
	t.Helper()
	for range duration / inventory.DefaultPollInterval {
		clock.Step(inventory.DefaultPollInterval)
		refresh(t, i)
	}
}

// refresh polls region r.
func refresh(t *testing.T, i *inventory.Inventory) {
	t.Helper()
	NewWithT(t).Expect(i.Refresh(t.Context(), "r")).To(Succeed())
}

func amount(cpus int, memoryGiB int64) inventory.Amount {
	return inventory.Amount{CPUs: cpus, MemoryBytes: memoryGiB * gib}
}

// hostState returns the state of a Host of region r.
func hostState(v inventory.View, host string) inventory.HostState {
	state, _ := v.Host("r", host)
	return state
}

// guestOf returns a guest of region r.
func guestOf(i *inventory.Inventory, vmid int) inventory.Guest {
	guest, _ := i.View().Guest("r", vmid)
	return guest
}

// snapshotOf returns a Snapshot without an Inventory.
func snapshotOf(previous *inventory.Snapshot, hosts []proxmox.HostRow, guests ...proxmox.GuestRow) *inventory.Snapshot {
	return inventory.NewSnapshot(inventory.PollResult{
		Region: "r", Taken: start, Resources: proxmox.Resources{Hosts: hosts, Guests: guests},
	}, previous, ownRange)
}

func (c *cluster) HostInfo(_ context.Context, host string) (proxmox.HostInfo, error) {
	c.record("hardware " + host)
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.hardware[host], nil
}

func (c *cluster) SDNAddresses(context.Context) ([]proxmox.SDNAddress, error) {
	c.record("sdn")
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.sdn, nil
}

func (c *cluster) ContainerConfig(ctx context.Context, host string, vmid int) (proxmox.VMConfig, error) {
	c.record(fmt.Sprintf("container %s/%d", host, vmid))
	if c.hanging[vmid] {
		<-ctx.Done()
		return proxmox.VMConfig{}, ctx.Err()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.configs[vmid], c.unreadable[vmid]
}

func (c *cluster) GuestAddresses(_ context.Context, host string, vmid int) ([]netip.Addr, error) {
	c.record(fmt.Sprintf("agent %s/%d", host, vmid))
	if c.onAgent != nil {
		c.onAgent()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.agents[vmid], c.agentFailure
}
