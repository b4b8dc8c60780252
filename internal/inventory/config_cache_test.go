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

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/poll"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

func TestConfigInFirstSnapshot(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	c := newCluster("r", host("pve1", 16, 64), host("pve2", 16, 64))
	c.setGuests(vm(100, "pve1", "running", 2, 4), template(900), vm(20001, "pve1", "running", 2, 4), vm(20002, "pve2", "running", 2, 4), container(20003, 1, 1))
	c.resources.Hosts[1].Online = false
	names := map[int]string{100: "vm", 900: "tpl", 20001: "node"}
	for vmid, name := range names {
		c.configs[vmid] = config("name", name)
	}
	var i *inventory.Inventory
	early := false
	c.on["config"] = func() { early = early || i.View().Snapshots["r"] != nil }
	i, _ = newInventory(t, c)
	refresh(t, i)
	g.Expect(early).To(BeFalse(), "the first Snapshot was published before the configs were read")
	g.Expect(c.takeReads("config")).To(Equal([]string{"config pve1/100", "config pve1/20001", "config pve1/900"}))
	for vmid, name := range names {
		g.Expect(guestOf(i, vmid).Config.Name()).To(Equal(name))
	}
	g.Expect(i.View().Snapshots["r"]).To(And(HaveField("Version.Release", "9.2"), HaveField("Options.MACPrefix", "BC:24:11")))
}

func TestConfigReadAfterRowChange(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	c := newCluster("r", host("pve1", 16, 64), host("pve2", 16, 64))
	c.setGuests(vm(20001, "pve1", "stopped", 2, 4), vm(100, "pve1", "running", 2, 4))
	c.configs[20001], c.configs[100] = config("name", "a"), config("hostpci0", "mapping=gpu")
	i, _ := newPolled(t, c)
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
		g.Expect(c.takeReads("config")).To(HaveLen(1), "%s changed", name)
		c.change(func() { c.resources.Guests[0].UptimeSeconds++ })
		refresh(t, i)
		g.Expect(c.takeReads("config")).To(BeEmpty(), "nothing changed after %s", name)
	}
	c.change(func() { c.resources.Guests[1].Lock, c.resources.Guests[1].Tags = "backup", []string{"nightly"} })
	refresh(t, i)
	g.Expect(c.takeReads("config")).To(BeEmpty(), "backup of a VM that is not ours")
	c.change(func() { c.resources.Guests[1].Status = "stopped" })
	refresh(t, i)
	g.Expect(c.takeReads("config")).To(HaveLen(1), "a VM that is not ours was stopped")
}

func TestConfigUnreadable(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	c := newCluster("r", host("pve1", 16, 64))
	c.setGuests(vm(20001, "pve1", "running", 2, 4), vm(20002, "pve1", "running", 2, 4))
	c.configs[20001], c.configs[20002] = config("name", "a"), config("name", "b")
	c.unreadable[20001] = errors.Join(proxmox.ErrHostUnreachable)
	i, clock := newPolled(t, c)
	g.Expect(i.View().Failures["r"]).To(Succeed())
	g.Expect(hostState(i.View(), "pve1")).To(And(haveReasons(), HaveField("Free.CPUs", 12)), "both VMs count")
	g.Expect(guestOf(i, 20002).Config).NotTo(BeNil())

	// It is retried with backoff.
	c.takeCalls()
	pollFor(t, i, clock, 10*time.Minute)
	retries := slices.DeleteFunc(c.takeReads("config"), func(call string) bool { return call != "config pve1/20001" })
	g.Expect(len(retries)).To(And(BeNumerically(">=", 4), BeNumerically("<=", 10)))
	c.change(func() { delete(c.unreadable, 20001) })
	clock.Step(10 * time.Minute)
	refresh(t, i)
	g.Expect(guestOf(i, 20001).Config).NotTo(BeNil(), "the config is readable again")

	// The last config remains unless the VM is confirmed deleted.
	c.change(func() {
		c.unreadable[20001] = errors.New("forbidden")
		c.resources.Guests[0].Tags = []string{"x"}
	})
	refresh(t, i)
	g.Expect(guestOf(i, 20001).Config).NotTo(BeNil(), "a new one could not be read")
	c.change(func() {
		c.unreadable[20001] = proxmox.ErrNotFound
		c.resources.Guests[0].Tags = nil
	})
	refresh(t, i)
	g.Expect(guestOf(i, 20001).Config).To(BeNil(), "the VM was deleted")
}

func TestConfigSweep(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	c := newCluster("r", host("pve1", 16, 64))
	c.setGuests(vm(20001, "pve1", "running", 2, 4), vm(20002, "pve1", "running", 2, 4), template(900))
	rename := func(name string) {
		for _, guest := range c.resources.Guests {
			c.configs[guest.VMID] = config("name", name)
		}
	}
	rename("before")
	i, clock := newPolled(t, c)
	c.change(func() { rename("after") })
	generation := i.View().Generation
	pollFor(t, i, clock, 10*time.Minute) // one at a time
	for _, guest := range c.resources.Guests {
		g.Expect(guestOf(i, guest.VMID).Config.Name()).To(Equal("after"), "guest %d after ten minutes", guest.VMID)
	}
	g.Expect(i.View().Generation).To(Equal(generation + 3))
	c.setGuests(rowWithoutResources(900))
	for range 2 {
		refresh(t, i)
		g.Expect(guestOf(i, 900)).To(And(HaveField("Template", true), HaveField("Config", Not(BeNil()))))
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
	newPolled(t, c)
	reads := slices.DeleteFunc(c.takeCalls(), func(call string) bool { return !strings.HasPrefix(call, "config ") })
	NewWithT(t).Expect(reads[:2]).To(ConsistOf("config pve1/900", "config pve1/20001"))
}

// A poll that has no time for all configurations and facts continues with the next one: they
// are neither known nor failed.
func TestPollContinuesReads(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
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
		c.on["config"] = func() { time.Sleep(7 * time.Second) }
		c.on["bridges"] = func() { time.Sleep(2 * time.Second) }
		i, clock := newWatched(t, c)
		g.Expect(c.takeReads("config")).To(HaveLen(9))
		g.Expect(i.View().Snapshots["r"].AddressesKnown).To(BeFalse())
		pollFor(t, i, clock, 10*time.Second)
		g.Expect(i.View().Snapshots["r"].AddressesKnown).To(BeTrue(), "addresses are not known after the second poll")
		pollFor(t, i, clock, 20*time.Second) // less than the backoff of a failed read
		g.Expect(i.View().Snapshots["r"].Facts.Bridges).To(HaveLen(len(hosts)))
	})
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

func TestCallBudgetIdle(t *testing.T) {
	t.Parallel()
	for _, release := range []string{"8.4", "9.2"} {
		g := NewWithT(t)
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
			for _, kind := range []poll.ReadKind{poll.ReadBootDrives, poll.ReadImages} {
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
			g.Expect(minute).To(BeNumerically("<=", 8), "%d calls in a minute, want at most 8: %v in all", minute, made)
		}
		for _, name := range []string{"config", "agent", "sdn", "permissions", "mappings", "version", "{boot", "{images"} {
			g.Expect(made).To(HaveKey(name))
		}
		g.Expect(made["maintenance"] > 0).To(Equal(release == "8.4"))
	}
}

func TestVersionReadAfterOutage(t *testing.T) {
	t.Parallel()
	c := newCluster("r", host("pve1", 16, 64))
	i, clock := newInventory(t, c)
	reads := func() int { return len(c.takeReads("version")) }
	refresh(t, i)
	refresh(t, i)
	g := NewWithT(t)
	g.Expect(reads()).To(Equal(1))
	c.change(func() { c.failures["resources"] = proxmox.ErrUnreachable })
	_ = i.Refresh(t.Context(), "r")
	c.change(func() { c.failures["resources"] = nil })
	refresh(t, i)
	g.Expect(reads()).To(Equal(1), "the outage may have been an upgrade")
	clock.Step(time.Hour)
	refresh(t, i)
	g.Expect(reads()).To(Equal(1), "after an hour")
}
