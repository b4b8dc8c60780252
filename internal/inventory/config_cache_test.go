// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package inventory_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// configCalls returns the config reads among the calls.
func configCalls(calls []string) []string {
	reads := slices.DeleteFunc(calls, func(call string) bool { return len(call) < 7 || call[:7] != "config " })
	slices.Sort(reads)
	return reads
}

func TestConfigReadForOnlineVMs(t *testing.T) {
	t.Parallel()
	c := newCluster("r", host("pve1", 16, 64), host("pve2", 16, 64))
	offline := vm(20002, "pve2", "running", 2, 4)
	c.setGuests(vm(100, "pve1", "running", 2, 4), template(900), vm(20001, "pve1", "running", 2, 4), offline, container(20003, 1, 1))
	c.change(func() {
		c.resources.Hosts[1].Online = false
		c.configs[100] = config("name", "vm")
		c.configs[900] = config("name", "tpl")
		c.configs[20001] = config("name", "node")
	})
	i, _ := newInventory(t, c)
	refresh(t, i)
	if got, want := configCalls(c.takeCalls()), []string{"config pve1/100", "config pve1/20001", "config pve1/900"}; !slices.Equal(got, want) {
		t.Errorf("read %v, want %v", got, want)
	}
	v := i.View()
	for vmid, name := range map[int]string{100: "vm", 900: "tpl", 20001: "node"} {
		if g, _ := v.Guest("r", vmid); g.Config == nil || g.Config.Name() != name {
			t.Errorf("guest %d has config %v", vmid, g.Config)
		}
	}
	if s := v.Snapshots["r"]; s.Version.Release != "9.2" || s.Options.MACPrefix != "BC:24:11" {
		t.Errorf("the snapshot has %+v, %+v", s.Version, s.Options)
	}
}

func TestConfigInFirstSnapshot(t *testing.T) {
	t.Parallel()
	c := newCluster("r", host("pve1", 16, 64))
	c.setGuests(vm(20001, "pve1", "running", 2, 4))
	c.configs[20001] = config("name", "node")
	var i *inventory.Inventory
	early := false
	c.onConfig = func() { early = early || i.View().Snapshots["r"] != nil }
	i, _ = newInventory(t, c)
	refresh(t, i)
	if early {
		t.Error("the first Snapshot was published before the configs were read")
	}
	if g, _ := i.View().Guest("r", 20001); g.Config == nil {
		t.Error("the config is missing")
	}
}

func TestConfigReadAfterRowChange(t *testing.T) {
	t.Parallel()
	c := newCluster("r", host("pve1", 16, 64), host("pve2", 16, 64))
	c.setGuests(vm(20001, "pve1", "stopped", 2, 4))
	c.configs[20001] = config("name", "a")
	i, _ := newInventory(t, c)
	refresh(t, i)
	c.takeCalls()
	for name, change := range map[string]func(*proxmox.GuestRow){
		"status":   func(r *proxmox.GuestRow) { r.Status = "running" },
		"lock":     func(r *proxmox.GuestRow) { r.Lock = "backup" },
		"tags":     func(r *proxmox.GuestRow) { r.Tags = []string{"x"} },
		"host":     func(r *proxmox.GuestRow) { r.Host = "pve2" },
		"name":     func(r *proxmox.GuestRow) { r.Name = "other" },
		"template": func(r *proxmox.GuestRow) { r.Template = true },
		"memory":   func(r *proxmox.GuestRow) { r.MemoryBytes *= 2 },
	} {
		c.change(func() { change(&c.resources.Guests[0]) })
		refresh(t, i)
		if got := configCalls(c.takeCalls()); len(got) != 1 {
			t.Errorf("%s changed: read %v, want one config", name, got)
		}
		c.change(func() { c.resources.Guests[0].UptimeSeconds++ })
		refresh(t, i)
		if got := configCalls(c.takeCalls()); len(got) != 0 {
			t.Errorf("nothing changed after %s: read %v, want none", name, got)
		}
	}
}

func TestConfigUnreadable(t *testing.T) {
	t.Parallel()
	c := newCluster("r", host("pve1", 16, 64))
	c.setGuests(vm(20001, "pve1", "running", 2, 4), vm(20002, "pve1", "running", 2, 4))
	c.configs[20001], c.configs[20002] = config("name", "a"), config("name", "b")
	c.unreadable[20001] = errors.Join(proxmox.ErrHostUnreachable)
	i, clock := newInventory(t, c)
	refresh(t, i)
	v := i.View()
	if ok, reason := v.Usable("r", "pve1"); !ok || v.Failures["r"] != nil {
		t.Errorf("an unreadable config made the Host unusable: %s", reason)
	}
	if hostState(v, "pve1").Free.CPUs != 12 {
		t.Errorf("%d CPUs free, want 12: both VMs count", hostState(v, "pve1").Free.CPUs)
	}
	if g, _ := v.Guest("r", 20002); g.Config == nil {
		t.Error("the other VM's config is missing")
	}

	// It is retried with backoff.
	c.takeCalls()
	tries := 0
	for range 60 {
		clock.Step(10 * time.Second)
		refresh(t, i)
		for _, call := range configCalls(c.takeCalls()) {
			if call == "config pve1/20001" {
				tries++
			}
		}
	}
	if tries < 4 || tries > 10 {
		t.Errorf("%d tries in ten minutes, want 4 to 10", tries)
	}
	c.change(func() { delete(c.unreadable, 20001) })
	clock.Step(10 * time.Minute)
	refresh(t, i)
	if g, _ := i.View().Guest("r", 20001); g.Config == nil {
		t.Error("the config is readable again, but was not read")
	}

	// The last config remains unless the VM is confirmed deleted.
	c.change(func() {
		c.unreadable[20001] = errors.New("forbidden")
		c.resources.Guests[0].Tags = []string{"x"}
	})
	refresh(t, i)
	if g, _ := i.View().Guest("r", 20001); g.Config == nil {
		t.Error("the last config was dropped because a new one could not be read")
	}
	c.change(func() {
		c.unreadable[20001] = proxmox.ErrNotFound
		c.resources.Guests[0].Tags = nil
	})
	refresh(t, i)
	if g, _ := i.View().Guest("r", 20001); g.Config != nil {
		t.Error("the config of a deleted VM remains")
	}
}

func TestConfigOfTemplateWithoutResources(t *testing.T) {
	t.Parallel()
	c := newCluster("r", host("pve1", 16, 64))
	c.setGuests(template(900))
	c.configs[900] = config("name", "tpl", "template", "1")
	i, _ := newInventory(t, c)
	refresh(t, i)
	c.setGuests(rowWithoutResources(900))
	for range 2 {
		refresh(t, i)
		if g, _ := i.View().Guest("r", 900); !g.Template || g.Config == nil {
			t.Errorf("the template is %+v, want it unchanged", g)
		}
	}
}

func TestConfigSweep(t *testing.T) {
	t.Parallel()
	c := newCluster("r", host("pve1", 16, 64))
	c.setGuests(vm(20001, "pve1", "running", 2, 4), vm(20002, "pve1", "running", 2, 4), template(900))
	for _, vmid := range []int{20001, 20002, 900} {
		c.configs[vmid] = config("name", "before")
	}
	i, clock := newInventory(t, c)
	refresh(t, i)
	c.change(func() {
		for _, vmid := range []int{20001, 20002, 900} {
			c.configs[vmid] = config("name", "after")
		}
	})
	generation := i.View().Generation
	pollFor(t, i, clock, 10*time.Minute) // one at a time
	for _, vmid := range []int{20001, 20002, 900} {
		if g, _ := i.View().Guest("r", vmid); g.Config.Name() != "after" {
			t.Errorf("guest %d still has its old config after ten minutes", vmid)
		}
	}
	if i.View().Generation != generation+3 {
		t.Errorf("the generation rose by %d, want 3", i.View().Generation-generation)
	}
}

func TestConfigReadOursFirst(t *testing.T) {
	t.Parallel()
	c := newCluster("r", host("pve1", 64, 512))
	guests := []proxmox.GuestRow{template(900), vm(20001, "pve1", "running", 1, 1)}
	for n := range 20 {
		guests = append(guests, vm(100+n, "pve1", "running", 1, 1))
	}
	c.setGuests(guests...)
	i, _ := newInventory(t, c)
	refresh(t, i)
	reads := slices.DeleteFunc(c.takeCalls(), func(call string) bool { return !strings.HasPrefix(call, "config ") })
	for _, ours := range []string{"config pve1/900", "config pve1/20001"} {
		if n := slices.Index(reads, ours); n < 0 || n > 1 {
			t.Errorf("%q is read number %d of %d", ours, n+1, len(reads))
		}
	}
}

// A poll that has no time for all configurations and facts continues with the next one: they
// are neither known nor failed.
func TestPollContinuesReads(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		hosts := make([]proxmox.HostRow, 10)
		guests := make([]proxmox.GuestRow, len(hosts))
		for n := range hosts {
			hosts[n] = host(fmt.Sprintf("pve%d", n), 16, 64)
			guests[n] = vm(100+n, hosts[n].Name, "running", 1, 1)
		}
		c := newCluster("r", hosts...)
		c.setGuests(guests...)
		for _, guest := range guests {
			c.configs[guest.VMID] = config("name", "other")
		}
		c.onConfig = func() { time.Sleep(7 * time.Second) }
		c.onBridges = func() { time.Sleep(2 * time.Second) }
		i, clock := newInventory(t, c)
		i.WatchAddresses()
		refresh(t, i)
		snapshot := i.View().Snapshots["r"]
		if count := len(configCalls(c.takeCalls())); count != 9 || snapshot.AddressesKnown {
			t.Errorf("the first poll read %d configs, want 9; addresses are known: %v", count, snapshot.AddressesKnown)
		}
		pollFor(t, i, clock, 10*time.Second)
		if snapshot := i.View().Snapshots["r"]; !snapshot.AddressesKnown {
			t.Error("addresses are not known after the second poll")
		}
		pollFor(t, i, clock, 20*time.Second) // less than the backoff of a failed read
		if known := i.View().Snapshots["r"].Facts.Bridges; len(known) != len(hosts) {
			t.Errorf("bridges of %d hosts are known, want %d", len(known), len(hosts))
		}
	})
}

func TestConfigNotReadForBackup(t *testing.T) {
	t.Parallel()
	c := newCluster("r", host("pve1", 16, 64))
	c.setGuests(vm(100, "pve1", "running", 2, 4))
	c.configs[100] = config("hostpci0", "mapping=gpu")
	i, _ := newInventory(t, c)
	refresh(t, i)
	c.takeCalls()
	c.change(func() { c.resources.Guests[0].Lock, c.resources.Guests[0].Tags = "backup", []string{"nightly"} })
	refresh(t, i)
	if got := configCalls(c.takeCalls()); len(got) != 0 {
		t.Errorf("read %v, want none", got)
	}
	c.change(func() { c.resources.Guests[0].Status = "stopped" })
	refresh(t, i)
	if got := configCalls(c.takeCalls()); len(got) != 1 {
		t.Errorf("read %v, want the stopped guest", got)
	}
}

func TestCallBudgetIdle(t *testing.T) {
	t.Parallel()
	for _, release := range []string{"8.4", "9.2"} {
		t.Run(release, func(t *testing.T) {
			t.Parallel()
			testCallBudgetIdle(t, release)
		})
	}
}

// idleCluster returns a Cluster of ten Hosts and 400 VMs with agents, half of them ours.
func idleCluster(release string) *cluster {
	hosts := []proxmox.HostRow{host("pve1", 64, 512)}
	for n := range 9 {
		hosts = append(hosts, host(fmt.Sprintf("other%d", n), 64, 512))
	}
	c := newCluster("r", hosts...)
	c.release = release
	c.hardware = map[string]proxmox.HostInfo{}
	for _, row := range hosts {
		c.hardware[row.Name] = proxmox.HostInfo{Sockets: 1}
	}
	var guests []proxmox.GuestRow
	for n := range 200 {
		for _, vmid := range []int{100 + n, 20000 + n} {
			guest := vm(vmid, "pve1", "running", 1, 1)
			guest.UptimeSeconds = 86400
			guests = append(guests, guest)
			c.configs[vmid] = config("name", "node", "agent", "1")
		}
	}
	c.setGuests(guests...)
	return c
}

func testCallBudgetIdle(t *testing.T, release string) {
	t.Helper()
	c := idleCluster(release)
	i, clock := newInventory(t, c)
	i.WatchAddresses()
	pollFor(t, i, clock, 2*time.Minute)
	c.takeCalls() // ignore startup
	var calls []int
	made := map[string]int{}
	for range 3 * 60 * 6 {
		pollFor(t, i, clock, 10*time.Second)
		here := c.takeCalls()
		for _, kind := range []inventory.ReadKind{inventory.ReadBootDrives, inventory.ReadImages} {
			if i.TryAcquire("r", kind) {
				here = append(here, fmt.Sprintf("%v", kind))
			}
		}
		for _, call := range here {
			name, _, _ := strings.Cut(call, " ")
			made[name]++
		}
		calls = append(calls, len(here))
	}
	for n := range calls[6:] {
		minute := 0
		for _, here := range calls[n : n+6] {
			minute += here
		}
		if minute > 8 {
			t.Fatalf("%d calls in a minute, want at most 8: %v in all", minute, made)
		}
	}
	want := []string{"config", "agent", "sdn", "permissions", "mappings", "version", "{boot", "{images"}
	if release == "8.4" {
		want = append(want, "maintenance")
	}
	for _, name := range want {
		if made[name] == 0 {
			t.Errorf("no %s in three hours: %v", name, made)
		}
	}
}

func TestVersionReadAfterOutage(t *testing.T) {
	t.Parallel()
	c := newCluster("r", host("pve1", 16, 64))
	i, clock := newInventory(t, c)
	reads := func() (n int) {
		for _, call := range c.takeCalls() {
			if call == "version" {
				n++
			}
		}
		return n
	}
	refresh(t, i)
	refresh(t, i)
	if n := reads(); n != 1 {
		t.Errorf("the release was read %d times, want once", n)
	}
	c.change(func() { c.failure = proxmox.ErrUnreachable })
	_ = i.Refresh(t.Context(), "r")
	c.change(func() { c.failure = nil })
	refresh(t, i)
	if n := reads(); n != 1 {
		t.Errorf("after an outage the release was read %d times, want once: it may be an upgrade", n)
	}
	clock.Step(time.Hour)
	refresh(t, i)
	if n := reads(); n != 1 {
		t.Errorf("after an hour the release was read %d times, want once", n)
	}
}
