// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package inventory_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

func addr(text string) netip.Addr { return netip.MustParseAddr(text) }

// owners returns the owner of each address; empty for none.
func owners(v inventory.View, addresses ...string) []string {
	var out []string
	for _, text := range addresses {
		owner, _ := v.Addresses().Owner(addr(text))
		out = append(out, owner)
	}
	return out
}

// clusterWithAddresses returns a Cluster with addresses from every source.
func clusterWithAddresses() *cluster {
	c := newCluster("r", host("pve1", 16, 64))
	office := vm(100, "pve1", "running", 2, 4)
	office.UptimeSeconds = 3600
	c.setGuests(office, vm(101, "pve1", "stopped", 2, 4), container(102, 1, 1), template(900), vm(20001, "pve1", "running", 2, 4))
	c.change(func() {
		c.configs[100] = config("name", "office", "agent", "1")
		c.configs[101] = config("ipconfig0", "ip=10.0.0.11/24,gw=10.0.0.1,ip6=fd00::11/64")
		c.configs[102] = config("net0", "name=eth0,bridge=vmbr0,ip=10.0.0.12/24")
		c.configs[900] = config("template", "1", "ipconfig0", "ip=10.0.0.90/24")
		c.configs[20001] = config("ipconfig0", "ip=10.0.0.20/24")
		c.bridge = proxmox.Bridge{CIDR4: netip.MustParsePrefix("10.0.0.2/24"), Gateway4: addr("10.0.0.1")}
		c.addresses = []netip.Addr{addr("10.0.0.2"), addr("10.0.0.3")}
		c.sdn = []proxmox.SDNAddress{{Address: addr("10.0.0.30"), VMID: 100, VNet: "blue"}, {Address: addr("10.0.0.31"), VNet: "blue"}}
		c.agents = map[int][]netip.Addr{100: {addr("10.0.0.10")}}
	})
	return c
}

// Offerings with address pools wait for the first read, so it must not wait for the next
// interval.
func TestWatchAddressesStartsPoll(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		i, _ := newInventory(t, clusterWithAddresses())
		go func() { _ = i.Start(t.Context()) }()
		refresh(t, i)
		g.Expect(i.View().Snapshots["r"].AddressesKnown).To(BeFalse(), "addresses are known before WatchAddresses")
		i.WatchAddresses() // the clock does not advance
		synctest.Wait()
		g.Expect(i.View().Snapshots["r"].AddressesKnown).To(BeTrue(), "the addresses were not read")
	})
}

func TestAddressesOwner(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	c := clusterWithAddresses()
	i, _ := newWatched(t, c)
	v := i.View()
	g.Expect(v.Snapshots["r"].AddressesKnown).To(BeTrue(), "the addresses are not known after a poll")
	got := owners(v, "10.0.0.2", "10.0.0.10", "10.0.0.11", "fd00::11", "10.0.0.12", "10.0.0.20", "10.0.0.30", "10.0.0.31", "10.0.0.90", "10.0.0.1", "10.0.0.3", "10.0.0.99")
	want := []string{
		"host pve1 in region r", "VM 100 in region r", "VM 101 in region r", "VM 101 in region r", "container 102 in region r", "VM 20001 in region r",
		"VM 100 in region r", "the gateway of vnet blue in region r", "", "the gateway of host pve1 in region r", "host pve1 in region r", "",
	}
	g.Expect(got).To(Equal(want))
	if _, conflict := v.Addresses().Conflict(addr("10.0.0.20"), "r", 20001); conflict {
		t.Error("a VM conflicts with itself")
	}
	if owner, conflict := v.Addresses().Conflict(addr("10.0.0.11"), "r", 20001); !conflict || owner != "VM 101 in region r" {
		t.Errorf("the conflicting owner is %q", owner)
	}
	i.Ledger().ObserveDeleted("r", 101)
	g.Expect(owners(i.View(), "10.0.0.11")[0]).To(BeEmpty(), "a deleted guest still has its address")
}

// Our VMs on a host that was removed from the cluster never run again. Others may be restored.
func TestAddressesOfRemovedHost(t *testing.T) {
	t.Parallel()
	c := clusterWithAddresses()
	i, _ := newWatched(t, c)
	c.change(func() { c.resources.Hosts = []proxmox.HostRow{host("pve2", 16, 64)} })
	refresh(t, i)
	NewWithT(t).Expect(owners(i.View(), "10.0.0.20", "10.0.0.11")).To(Equal([]string{"", "VM 101 in region r"}))
}

func TestAddressesNotReadWithoutWatch(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	c := clusterWithAddresses()
	i, clock := newInventory(t, c)
	for range 3 {
		refresh(t, i)
		clock.Step(time.Minute)
	}
	g.Expect(i.View().Snapshots["r"].AddressesKnown).To(BeFalse(), "addresses are known without WatchAddresses")
	g.Expect(c.takeCalls()).NotTo(ContainElement(Or(HavePrefix("agent"), HavePrefix("container"), Equal("sdn"))))
	i.WatchAddresses()
	refresh(t, i)
	g.Expect(i.View().Snapshots["r"].AddressesKnown).To(BeTrue(), "the addresses are not known after a poll")
}

func TestAgentReadOncePerStart(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	c := clusterWithAddresses()
	i, clock := newInventory(t, c)
	i.WatchAddresses()
	poll := func(times time.Duration) int {
		pollFor(t, i, clock, times*10*time.Second)
		return len(c.takeReads("agent"))
	}
	g.Expect(poll(60)).To(BeEquivalentTo(1))
	c.change(func() { c.resources.Guests[0].Status = "stopped" })
	g.Expect(poll(2)).To(BeZero())
	g.Expect(owners(i.View(), "10.0.0.10")[0]).To(BeEmpty(), "a stopped guest still has the address from its agent")
	c.change(func() { c.resources.Guests[0].Status, c.resources.Guests[0].UptimeSeconds = "running", 5 })
	g.Expect(poll(2)).To(BeZero())
	c.change(func() { c.resources.Guests[0].UptimeSeconds = 600 })
	g.Expect(poll(6)).To(BeEquivalentTo(1))
}

// A guest keeps its addresses while its agent or its status cannot be read.
func TestAgentAddressesKept(t *testing.T) {
	t.Parallel()
	for name, fail := range map[string]func(*cluster){
		"agent_fails":    func(c *cluster) { c.agents, c.agentFailure = nil, errors.New("QEMU guest agent is not running") },
		"status_unknown": func(c *cluster) { c.resources.Guests[0] = rowWithoutResources(100) },
		"host_offline":   func(c *cluster) { c.resources.Hosts[0].Online = false },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := clusterWithAddresses()
			i, clock := newWatched(t, c)
			c.takeCalls()
			c.change(func() { fail(c) })
			pollFor(t, i, clock, 2*time.Hour)
			g := NewWithT(t)
			g.Expect(len(c.takeReads("agent")) > 0).To(Equal(name == "agent_fails"))
			g.Expect(owners(i.View(), "10.0.0.10")[0]).To(Equal("VM 100 in region r"), "the owner of its address")
		})
	}
}

func TestContainerAddressChanged(t *testing.T) {
	t.Parallel()
	c := clusterWithAddresses()
	i, clock := newWatched(t, c)
	c.change(func() { c.configs[102] = config("net0", "name=eth0,bridge=vmbr0,ip=10.0.0.60/24") })
	pollFor(t, i, clock, time.Hour)
	NewWithT(t).Expect(owners(i.View(), "10.0.0.60", "10.0.0.12")).To(Equal([]string{"container 102 in region r", ""}))
}

func TestAgentReadsBeforeAddressesKnown(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	c := clusterWithAddresses()
	addVM := func(vmid int) {
		c.change(func() {
			row := vm(vmid, "pve1", "running", 1, 1)
			row.UptimeSeconds = 3600
			c.resources.Guests = append(c.resources.Guests, row)
			c.configs[vmid] = config("agent", "1")
			c.agents[vmid] = []netip.Addr{addr(fmt.Sprintf("10.0.1.%d", vmid-100))}
		})
	}
	addVM(110)
	addVM(111)
	early := false
	i, clock := newInventory(t, c)
	c.onAgent = func() { early = early || i.View().Snapshots["r"].AddressesKnown }
	refresh(t, i) // first Snapshot without agents
	i.WatchAddresses()
	refresh(t, i)
	g.Expect(early).To(BeFalse(), "addresses are known before all agents were read")
	g.Expect(owners(i.View(), "10.0.0.10", "10.0.1.10", "10.0.1.11")).To(Equal([]string{"VM 100 in region r", "VM 110 in region r", "VM 111 in region r"}))

	// After that, one agent is read per poll.
	addVM(112)
	addVM(113)
	c.takeCalls()
	for n := 1; n <= 2; n++ {
		clock.Step(time.Minute)
		refresh(t, i)
		g.Expect(c.takeReads("agent")).To(HaveLen(1))
	}
}

func TestAgentTimeout(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	c := clusterWithAddresses()
	c.agentFailure = context.DeadlineExceeded // of the poll: other reads used all of its time
	i, clock := newWatched(t, c)
	g.Expect(i.View().Snapshots["r"].AddressesKnown).To(BeFalse(), "addresses are known before an agent responded")
	clock.Step(2 * time.Minute)
	refresh(t, i)
	g.Expect(i.View().Snapshots["r"].AddressesKnown).To(BeTrue(), "addresses are unknown after the agent timeout")
}

func TestAgentForbidden(t *testing.T) {
	t.Parallel()
	c := clusterWithAddresses()
	c.agentFailure = &proxmox.ForbiddenError{Path: "/vms/100", Privilege: "VM.GuestAgent.Audit"}
	second := vm(103, "pve1", "running", 1, 1)
	second.UptimeSeconds = 3600
	c.change(func() {
		c.resources.Guests = append(c.resources.Guests, second)
		c.configs[103] = config("agent", "enabled=1")
	})
	i, clock := newInventory(t, c)
	i.WatchAddresses()
	pollFor(t, i, clock, 5*time.Minute)
	NewWithT(t).Expect(c.takeReads("agent")).To(HaveLen(1))
}

func TestReserveAddresses(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	c := newCluster("r", host("pve1", 16, 64))
	i, clock := newPolled(t, c)
	decide := func(vmid int) inventory.DecideFunc {
		return func(inventory.View) (inventory.Reservation, error) {
			return inventory.Reservation{Region: "r", Host: "pve1", VMID: vmid, Addresses: []netip.Addr{addr("10.0.0.5")}}, nil
		}
	}
	g.Expect(i.Ledger().Reserve("a", decide(20001))).Error().NotTo(HaveOccurred())
	g.Expect(i.Ledger().Reserve("b", decide(20002))).Error().To(MatchError(ContainSubstring("address 10.0.0.5 is taken by NodeClaim a")),
		"the second reservation")
	i.Ledger().Release("a")
	g.Expect(i.View().Addresses().IsRecentlyReleased(addr("10.0.0.5"))).To(BeTrue())
	g.Expect(owners(i.View(), "10.0.0.5")[0]).To(BeEmpty())
	g.Expect(i.Ledger().Reserve("b", decide(20002))).Error().NotTo(HaveOccurred(), "a recently released address was rejected")
	i.Ledger().Release("b")
	clock.Step(time.Hour)
	i.Ledger().Restore(inventory.Reservation{ClaimUID: "c", Region: "r", Host: "pve1", VMID: 20003, Addresses: []netip.Addr{addr("10.0.0.6")}})
	g.Expect(owners(i.View(), "10.0.0.6")[0]).To(Equal("NodeClaim c"), "a restored reservation belongs")
	i.Ledger().Release("c")
	g.Expect(i.View().Addresses().IsRecentlyReleased(addr("10.0.0.5"))).To(BeFalse(), "an address is still recently released after an hour")
}

func TestAddressesKnownWithNewGuest(t *testing.T) {
	t.Parallel()
	c := clusterWithAddresses()
	i, _ := newWatched(t, c)
	unknown := false
	c.onConfig = func() { unknown = unknown || !i.View().Snapshots["r"].AddressesKnown }
	c.change(func() { c.resources.Guests = append(c.resources.Guests, vm(20002, "pve1", "running", 2, 4)) })
	refresh(t, i)
	NewWithT(t).Expect(unknown).To(BeFalse(), "addresses became unknown while a new guest was read")
}

func TestAddressesKnownWithUnreadableContainer(t *testing.T) {
	t.Parallel()
	c := clusterWithAddresses()
	c.unreadable[102] = errors.New("broken")
	i, _ := newWatched(t, c)
	NewWithT(t).Expect(i.View().Snapshots["r"].AddressesKnown).To(BeTrue(), "an unreadable container keeps all addresses unknown")
}

// The other addresses do not wait for ever for a container whose host hangs.
func TestAddressesKnownWithHangingContainer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := clusterWithAddresses()
		c.hanging = map[int]bool{102: true}
		i, _ := newInventory(t, c)
		i.WatchAddresses()
		for n := 1; n <= 3; n++ {
			refresh(t, i)
			NewWithT(t).Expect(i.View().Snapshots["r"].AddressesKnown).To(Equal(n == 3))
		}
	})
}
