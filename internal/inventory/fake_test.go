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
	"github.com/onsi/gomega/types"
	testclock "k8s.io/utils/clock/testing"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/observed"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

const gib = int64(1) << 30

var (
	start    = time.Date(2026, 11, 15, 8, 0, 0, 0, time.UTC)
	ownRange = observed.VMIDRange{From: 20000, To: 20999}
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
	release     string                      // default 9.2
	hardware    map[string]proxmox.HostInfo // by Host
	notes       map[string]string           // by Host
	groups      []string
	configs     map[int]proxmox.VMConfig
	unreadable  map[int]error
	hanging     int            // VMID of a container; set before the first poll
	bridge      proxmox.Bridge // of every Host; the name is set by Bridges
	addresses   []netip.Addr   // of every Host
	sdn         []proxmox.SDNAddress
	agents      map[int][]netip.Addr
	failures    map[string]error  // by kind of call
	on          map[string]func() // called with each call of a kind, without the lock; set before the first poll
	during      func()            // called after Resources read its response
	calls       []string
}

func newCluster(region string, hosts ...proxmox.HostRow) *cluster {
	return &cluster{
		region: region, resources: proxmox.Resources{Hosts: hosts}, release: "9.2", configs: map[int]proxmox.VMConfig{},
		unreadable: map[int]error{}, failures: map[string]error{}, on: map[string]func(){},
	}
}

// answer records a call and returns its value, and the error for its kind of call.
func answer[T any](c *cluster, value *T, call string, args ...any) (T, error) {
	c.mu.Lock()
	c.calls = append(c.calls, fmt.Sprintf(call, args...))
	c.mu.Unlock()
	kind, _, _ := strings.Cut(call, " ")
	if hook := c.on[kind]; hook != nil {
		hook()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return *value, c.failures[kind]
}

func (c *cluster) Region() string { return c.region }

func (c *cluster) User() string { return "kubernetes@pve!karpenter" }

func (c *cluster) Resources(context.Context) (proxmox.Resources, error) {
	response, err := answer(c, &c.resources, "resources")
	c.mu.Lock()
	response.Hosts, response.Guests = slices.Clone(response.Hosts), slices.Clone(response.Guests)
	response.Storages = slices.Clone(response.Storages)
	during := c.during
	c.mu.Unlock()
	if during != nil {
		during()
	}
	return response, err
}

func (c *cluster) Version(context.Context) (proxmox.Version, error) {
	release, err := answer(c, &c.release, "version")
	return proxmox.Version{Release: release}, err
}

func (c *cluster) Options(context.Context) (proxmox.ClusterOptions, error) {
	return answer(c, &proxmox.ClusterOptions{MACPrefix: "BC:24:11"}, "options")
}

func (c *cluster) PCIMappings(context.Context) ([]proxmox.PCIMapping, error) {
	return answer(c, &c.mappings, "mappings")
}

func (c *cluster) Maintenance(context.Context) ([]string, error) {
	return answer(c, &c.drained, "maintenance")
}

func (c *cluster) SecurityGroups(context.Context) ([]string, error) {
	return answer(c, &c.groups, "groups")
}

func (c *cluster) VNets(context.Context) ([]proxmox.VNet, error) {
	return answer(c, new([]proxmox.VNet), "vnets")
}

func (c *cluster) Permissions(context.Context) (proxmox.Permissions, error) {
	return answer(c, &c.permissions, "permissions")
}

func (c *cluster) SDNAddresses(context.Context) ([]proxmox.SDNAddress, error) {
	return answer(c, &c.sdn, "sdn")
}

func (c *cluster) InterfaceAddresses(context.Context, string) ([]netip.Addr, error) {
	return c.addresses, nil
}

func (c *cluster) Bridges(ctx context.Context, host string) ([]proxmox.Bridge, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	bridge, err := answer(c, &c.bridge, "bridges %s", host)
	bridge.Name, bridge.Type = "vmbr0", "bridge"
	return []proxmox.Bridge{bridge}, err
}

func (c *cluster) HostInfo(_ context.Context, host string) (proxmox.HostInfo, error) {
	hardware, err := answer(c, &c.hardware, "hardware %s", host)
	return hardware[host], err
}

func (c *cluster) HostNotes(_ context.Context, host string) (string, error) {
	notes, err := answer(c, &c.notes, "notes %s", host)
	return notes[host], err
}

func (c *cluster) PoolExists(_ context.Context, pool string) (bool, error) {
	return answer(c, new(pool == "karpenter"), "pool %s", pool)
}

func (c *cluster) Volumes(_ context.Context, host, storage, content string) ([]proxmox.Volume, error) {
	return answer(c, &[]proxmox.Volume{{ID: storage + ":snippets/" + host + ".yaml"}}, "%s %s/%s", content, host, storage)
}

func (c *cluster) VMConfig(_ context.Context, host string, vmid int) (proxmox.VMConfig, error) {
	configs, err := answer(c, &c.configs, "config %s/%d", host, vmid)
	config, ok := configs[vmid]
	if !ok {
		err = proxmox.ErrNotFound
	}
	return config, cmp.Or(c.unreadable[vmid], err)
}

func (c *cluster) ContainerConfig(ctx context.Context, host string, vmid int) (proxmox.VMConfig, error) {
	configs, err := answer(c, &c.configs, "container %s/%d", host, vmid)
	if c.hanging == vmid {
		<-ctx.Done()
		return proxmox.VMConfig{}, ctx.Err()
	}
	return configs[vmid], cmp.Or(c.unreadable[vmid], err)
}

func (c *cluster) GuestAddresses(_ context.Context, host string, vmid int) ([]netip.Addr, error) {
	agents, err := answer(c, &c.agents, "agent %s/%d", host, vmid)
	return agents[vmid], err
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

func amount(cpus int, memoryGiB int64) observed.Amount {
	return observed.Amount{CPUs: cpus, MemoryBytes: memoryGiB * gib}
}

// hostState returns the state of a Host of region r.
func hostState(v inventory.View, host string) inventory.HostState {
	state, _ := v.Host("r", host)
	return state
}

// guestOf returns a guest of region r.
func guestOf(i *inventory.Inventory, vmid int) observed.Guest {
	guest, _ := i.View().Guest("r", vmid)
	return guest
}

// snapshotOf returns a Snapshot without an Inventory.
func snapshotOf(previous *observed.Snapshot, hosts []proxmox.HostRow, guests ...proxmox.GuestRow) *observed.Snapshot {
	return observed.NewSnapshot(observed.Result{
		Region: "r", Taken: start, Resources: proxmox.Resources{Hosts: hosts, Guests: guests},
	}, previous, ownRange)
}

// unusable returns why a Host of region r accepts no new VMs; empty if it accepts them.
func unusable(v inventory.View, host string) string {
	return hostState(v, host).Obstacle(inventory.Launch).Message
}

// haveReasons succeeds if a Host has exactly the reasons.
func haveReasons(reasons ...inventory.HostReason) types.GomegaMatcher {
	return WithTransform(func(h inventory.HostState) []inventory.HostReason {
		out := []inventory.HostReason{}
		for _, c := range h.Conditions {
			out = append(out, c.Reason)
		}
		return out
	}, ConsistOf(reasons))
}
