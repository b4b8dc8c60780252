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
	c.configs[100] = config("name", "office", "agent", "1")
	c.configs[101] = config("ipconfig0", "ip=10.0.0.11/24,gw=10.0.0.1,ip6=fd00::11/64")
	c.configs[102] = config("net0", "name=eth0,bridge=vmbr0,ip=10.0.0.12/24")
	c.configs[900] = config("template", "1", "ipconfig0", "ip=10.0.0.90/24")
	c.configs[20001] = config("ipconfig0", "ip=10.0.0.20/24")
	c.bridge = proxmox.Bridge{CIDR4: netip.MustParsePrefix("10.0.0.2/24"), Gateway4: addr("10.0.0.1")}
	c.addresses = []netip.Addr{addr("10.0.0.2"), addr("10.0.0.3")}
	c.sdn = []proxmox.SDNAddress{{Address: addr("10.0.0.30"), VMID: 100, VNet: "blue"}, {Address: addr("10.0.0.31"), VNet: "blue"}}
	c.agents = map[int][]netip.Addr{100: {addr("10.0.0.10")}}
	return c
}

func addressesKnown(i *inventory.Inventory) bool { return i.View().Snapshots["r"].AddressesKnown }

// Offerings with address pools wait for the first read, so it must not wait for the next
// interval.
func TestWatchAddresses(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		c := clusterWithAddresses()
		i, _ := newInventory(t, c)
		go func() { _ = i.Start(t.Context()) }()
		refresh(t, i)
		g.Expect(addressesKnown(i)).To(BeFalse(), "before WatchAddresses")
		g.Expect(c.takeCalls()).NotTo(ContainElement(Or(HavePrefix("agent"), HavePrefix("container"), Equal("sdn"))))
		i.WatchAddresses() // the clock does not advance
		synctest.Wait()
		g.Expect(addressesKnown(i)).To(BeTrue())
	})
}

func TestAddressesOwner(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	c := clusterWithAddresses()
	i, clock := newWatched(t, c)
	for address, want := range map[string]string{
		"10.0.0.1": "the gateway of host pve1 in region r", "10.0.0.2": "host pve1 in region r", "10.0.0.3": "host pve1 in region r",
		"10.0.0.10": "VM 100 in region r", "10.0.0.11": "VM 101 in region r", "fd00::11": "VM 101 in region r",
		"10.0.0.12": "container 102 in region r", "10.0.0.20": "VM 20001 in region r", "10.0.0.30": "VM 100 in region r",
		"10.0.0.31": "the gateway of vnet blue in region r", "10.0.0.90": "", "10.0.0.99": "",
	} {
		g.Expect(owners(i.View(), address)).To(Equal([]string{want}), address)
	}
	_, conflict := i.View().Addresses().Conflict(addr("10.0.0.20"), "r", 20001)
	g.Expect(conflict).To(BeFalse(), "a VM conflicts with itself")
	owner, conflict := i.View().Addresses().Conflict(addr("10.0.0.11"), "r", 20001)
	g.Expect(conflict).To(BeTrue())
	g.Expect(owner).To(Equal("VM 101 in region r"))

	c.change(func() { c.configs[102] = config("net0", "name=eth0,bridge=vmbr0,ip=10.0.0.60/24") })
	pollFor(t, i, clock, time.Hour)
	g.Expect(owners(i.View(), "10.0.0.60", "10.0.0.12")).To(Equal([]string{"container 102 in region r", ""}))
	// Our VMs on a host that was removed from the cluster never run again. Others may be restored.
	c.change(func() { c.resources.Hosts = []proxmox.HostRow{host("pve2", 16, 64)} })
	refresh(t, i)
	g.Expect(owners(i.View(), "10.0.0.20", "10.0.0.11")).To(Equal([]string{"", "VM 101 in region r"}))
	i.Ledger().ObserveDeleted("r", 101)
	g.Expect(owners(i.View(), "10.0.0.11")).To(Equal([]string{""}), "a deleted guest")
}

func TestAgentReadOncePerStart(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	c := clusterWithAddresses()
	i, clock := newWatched(t, c)
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
		"agent_fails":    func(c *cluster) { c.agents, c.failures["agent"] = nil, errors.New("QEMU guest agent is not running") },
		"status_unknown": func(c *cluster) { c.resources.Guests[0] = rowWithoutResources(100) },
		"host_offline":   func(c *cluster) { c.resources.Hosts[0].Online = false },
	} {
		g := NewWithT(t)
		c := clusterWithAddresses()
		i, clock := newWatched(t, c)
		c.takeCalls()
		c.change(func() { fail(c) })
		pollFor(t, i, clock, 2*time.Hour)
		g.Expect(len(c.takeReads("agent")) > 0).To(Equal(name == "agent_fails"), name)
		g.Expect(owners(i.View(), "10.0.0.10")).To(Equal([]string{"VM 100 in region r"}), name)
	}
}

// addVM adds a VM with an agent.
func addVM(c *cluster, vmid int) {
	c.change(func() {
		row := vm(vmid, "pve1", "running", 1, 1)
		row.UptimeSeconds = 3600
		c.resources.Guests = append(c.resources.Guests, row)
		c.configs[vmid] = config("agent", "1")
		c.agents[vmid] = []netip.Addr{addr(fmt.Sprintf("10.0.1.%d", vmid-100))}
	})
}

func TestAgentReadsBeforeAddressesKnown(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	c := clusterWithAddresses()
	addVM(c, 110)
	addVM(c, 111)
	early := false
	i, clock := newInventory(t, c)
	c.on["agent"] = func() { early = early || addressesKnown(i) }
	refresh(t, i) // first Snapshot without agents
	i.WatchAddresses()
	refresh(t, i)
	g.Expect(early).To(BeFalse(), "addresses are known before all agents were read")
	g.Expect(owners(i.View(), "10.0.0.10", "10.0.1.10", "10.0.1.11")).To(Equal([]string{"VM 100 in region r", "VM 110 in region r", "VM 111 in region r"}))

	// After that, one agent is read per poll.
	addVM(c, 112)
	addVM(c, 113)
	c.takeCalls()
	for range 2 {
		clock.Step(time.Minute)
		refresh(t, i)
		g.Expect(c.takeReads("agent")).To(HaveLen(1))
	}
}

func TestAgentFailure(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	c := clusterWithAddresses()
	c.failures["agent"] = context.DeadlineExceeded // of the poll: other reads used all of its time
	i, clock := newWatched(t, c)
	g.Expect(addressesKnown(i)).To(BeFalse(), "before an agent responded")
	clock.Step(2 * time.Minute)
	refresh(t, i)
	g.Expect(addressesKnown(i)).To(BeTrue(), "after the agent timeout")

	c = clusterWithAddresses()
	c.failures["agent"] = &proxmox.ForbiddenError{Path: "/vms/100", Privilege: "VM.GuestAgent.Audit"}
	addVM(c, 103)
	i, clock = newWatched(t, c)
	pollFor(t, i, clock, 5*time.Minute)
	g.Expect(c.takeReads("agent")).To(HaveLen(1), "forbidden")
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

func TestAddressesKnown(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	c := clusterWithAddresses()
	c.unreadable[102] = errors.New("broken")
	i, _ := newWatched(t, c)
	g.Expect(addressesKnown(i)).To(BeTrue(), "with an unreadable container")
	unknown := false
	c.on["config"] = func() { unknown = unknown || !addressesKnown(i) }
	c.change(func() { c.resources.Guests = append(c.resources.Guests, vm(20002, "pve1", "running", 2, 4)) })
	refresh(t, i)
	g.Expect(unknown).To(BeFalse(), "while a new guest was read")
}

// The other addresses do not wait for ever for a container whose host hangs.
func TestAddressesKnownWithHangingContainer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := clusterWithAddresses()
		c.hanging = 102
		i, _ := newInventory(t, c)
		i.WatchAddresses()
		for n := 1; n <= 3; n++ {
			refresh(t, i)
			NewWithT(t).Expect(addressesKnown(i)).To(Equal(n == 3))
		}
	})
}
