// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package inventory_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

func addr(text string) netip.Addr { return netip.MustParseAddr(text) }

// owners tells who has each of the addresses; empty for nobody.
func owners(v inventory.View, addresses ...string) []string {
	var out []string
	for _, text := range addresses {
		owner, _ := v.Addresses().Owner(addr(text))
		out = append(out, owner)
	}
	return out
}

// crowded is a Cluster where addresses are had in all ways that there are.
func crowded() *cluster {
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
		c.sdn = []proxmox.SDNAddress{{Address: addr("10.0.0.30"), VMID: 100, VNet: "blue"}, {Address: addr("10.0.0.31"), VNet: "blue"}}
		c.agents = map[int][]netip.Addr{100: {addr("10.0.0.10")}}
	})
	return c
}

// Offerings with pools wait for the first reading: it does not wait for the next turn.
func TestAddressesAreReadAsSoonAsTheyAreWanted(t *testing.T) {
	t.Parallel()
	i, _ := newInventory(t, crowded())
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); _ = i.Start(ctx) }()
	defer func() { stop(); <-done }()
	refresh(t, i)
	if i.View().Snapshots["r"].AddressesKnown {
		t.Fatal("addresses are known that nobody asked for")
	}
	i.WatchAddresses() // and the clock stands still
	for deadline := time.Now().Add(30 * time.Second); !i.View().Snapshots["r"].AddressesKnown; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the addresses were not read")
		}
	}
}

func TestAddressesOfEverybodyCount(t *testing.T) {
	t.Parallel()
	c := crowded()
	i, _ := newInventory(t, c)
	i.WatchAddresses()
	refresh(t, i)
	v := i.View()
	if !v.Snapshots["r"].AddressesKnown {
		t.Error("the addresses are not known after a reading")
	}
	got := owners(v, "10.0.0.2", "10.0.0.10", "10.0.0.11", "fd00::11", "10.0.0.12", "10.0.0.20", "10.0.0.30", "10.0.0.31", "10.0.0.90", "10.0.0.1", "10.0.0.99")
	want := []string{
		"host pve1 in region r", "VM 100 in region r", "VM 101 in region r", "VM 101 in region r", "container 102 in region r", "VM 20001 in region r",
		"VM 100 in region r", "the gateway of vnet blue in region r", "", "the gateway of host pve1 in region r", "",
	}
	if !slices.Equal(got, want) {
		t.Errorf("the owners are %q,\nwant %q", got, want)
	}
	if _, rival := v.Addresses().Conflict(addr("10.0.0.20"), "r", 20001); rival {
		t.Error("a VM is its own rival")
	}
	if who, rival := v.Addresses().Conflict(addr("10.0.0.11"), "r", 20001); !rival || who != "VM 101 in region r" {
		t.Errorf("the rival is %q", who)
	}
	i.Ledger().ObserveDeleted("r", 101)
	if got := owners(i.View(), "10.0.0.11"); got[0] != "" {
		t.Errorf("a guest that is gone has its address still: %q", got)
	}
}

func TestWithoutPoolsNobodyElseIsAsked(t *testing.T) {
	t.Parallel()
	c := crowded()
	i, clock := newInventory(t, c)
	for range 3 {
		refresh(t, i)
		clock.Step(time.Minute)
	}
	if i.View().Snapshots["r"].AddressesKnown {
		t.Error("addresses count as known that nobody asked for")
	}
	for _, call := range c.takeCalls() {
		if strings.HasPrefix(call, "agent") || strings.HasPrefix(call, "container") || call == "sdn" {
			t.Errorf("asked for %q", call)
		}
	}
	i.WatchAddresses()
	refresh(t, i)
	if !i.View().Snapshots["r"].AddressesKnown {
		t.Error("the addresses are not known after a reading")
	}
}

func TestAnAgentIsAskedOncePerStart(t *testing.T) {
	t.Parallel()
	c := crowded()
	i, clock := newInventory(t, c)
	i.WatchAddresses()
	asked := func() int {
		count := 0
		for _, call := range c.takeCalls() {
			if strings.HasPrefix(call, "agent") {
				count++
			}
		}
		return count
	}
	poll := func(times int) int {
		for range times {
			clock.Step(10 * time.Second)
			refresh(t, i)
		}
		return asked()
	}
	if n := poll(60); n != 1 {
		t.Errorf("asked %d times in ten minutes, want once", n)
	}
	c.change(func() { c.resources.Guests[0].Status = "stopped" })
	if n := poll(2); n != 0 {
		t.Errorf("asked a guest that is stopped %d times", n)
	}
	if got := owners(i.View(), "10.0.0.10"); got[0] != "" {
		t.Errorf("a stopped guest has the address that it told: %q", got)
	}
	c.change(func() { c.resources.Guests[0].Status, c.resources.Guests[0].UptimeSeconds = "running", 5 })
	if n := poll(2); n != 0 {
		t.Errorf("asked a guest that has just started %d times", n)
	}
	c.change(func() { c.resources.Guests[0].UptimeSeconds = 600 })
	if n := poll(6); n != 1 {
		t.Errorf("asked %d times after the start, want once", n)
	}
}

func TestNoAddressIsKnownBeforeTheAgentsWereAsked(t *testing.T) {
	t.Parallel()
	c := crowded()
	more := func(vmid int) {
		c.change(func() {
			row := vm(vmid, "pve1", "running", 1, 1)
			row.UptimeSeconds = 3600
			c.resources.Guests = append(c.resources.Guests, row)
			c.configs[vmid] = config("agent", "1")
			c.agents[vmid] = []netip.Addr{addr(fmt.Sprintf("10.0.1.%d", vmid-100))}
		})
	}
	more(110)
	more(111)
	early := false
	i, clock := newInventory(t, c)
	c.onAgent = func() { early = early || i.View().Snapshots["r"].AddressesKnown }
	refresh(t, i) // there is a Snapshot, and nobody was asked
	i.WatchAddresses()
	refresh(t, i)
	if early {
		t.Error("addresses counted as known while agents were still to be asked")
	}
	if got, want := owners(i.View(), "10.0.0.10", "10.0.1.10", "10.0.1.11"), []string{"VM 100 in region r", "VM 110 in region r", "VM 111 in region r"}; !slices.Equal(got, want) {
		t.Errorf("the owners are %q, want %q", got, want)
	}

	// From then on they are asked in turn.
	more(112)
	more(113)
	c.takeCalls()
	for n := 1; n <= 2; n++ {
		clock.Step(time.Minute)
		refresh(t, i)
		if asked := slices.DeleteFunc(c.takeCalls(), func(call string) bool { return !strings.HasPrefix(call, "agent") }); len(asked) != 1 {
			t.Errorf("poll %d asked %v, want one", n, asked)
		}
	}
}

func TestAgentsThatDoNotAnswerHoldNobodyUpForLong(t *testing.T) {
	t.Parallel()
	c := crowded()
	c.agentFailure = context.DeadlineExceeded // of the poll: others took all of its time
	i, clock := newInventory(t, c)
	i.WatchAddresses()
	refresh(t, i)
	if i.View().Snapshots["r"].AddressesKnown {
		t.Error("addresses count as known while an agent is still to answer")
	}
	clock.Step(2 * time.Minute)
	refresh(t, i)
	if !i.View().Snapshots["r"].AddressesKnown {
		t.Error("an agent that hangs keeps all addresses unknown")
	}
}

func TestARefusedAgentIsLeftAlone(t *testing.T) {
	t.Parallel()
	c := crowded()
	c.agentFailure = &proxmox.ForbiddenError{Path: "/vms/100", Privilege: "VM.GuestAgent.Audit"}
	second := vm(103, "pve1", "running", 1, 1)
	second.UptimeSeconds = 3600
	c.change(func() {
		c.resources.Guests = append(c.resources.Guests, second)
		c.configs[103] = config("agent", "enabled=1")
	})
	i, clock := newInventory(t, c)
	i.WatchAddresses()
	for range 30 {
		clock.Step(10 * time.Second)
		refresh(t, i)
	}
	asked := slices.DeleteFunc(c.takeCalls(), func(call string) bool { return !strings.HasPrefix(call, "agent") })
	if len(asked) != 1 {
		t.Errorf("asked %v, want once", asked)
	}
}

func TestPromisedAddressesAreTakenUntilTheyComeBack(t *testing.T) {
	t.Parallel()
	c := newCluster("r", host("pve1", 16, 64))
	i, clock := newInventory(t, c)
	refresh(t, i)
	promise := func(vmid int) inventory.DecideFunc {
		return func(inventory.View) (inventory.Reservation, error) {
			return inventory.Reservation{Region: "r", Host: "pve1", VMID: vmid, Addresses: []netip.Addr{addr("10.0.0.5")}}, nil
		}
	}
	if _, err := i.Ledger().Reserve("a", promise(20001)); err != nil {
		t.Fatal(err)
	}
	if _, err := i.Ledger().Reserve("b", promise(20002)); err == nil || !strings.Contains(err.Error(), "address 10.0.0.5 is taken by claim a") {
		t.Errorf("the second promise gave %v", err)
	}
	i.Ledger().Release("a")
	if v := i.View(); !v.Addresses().IsRecentlyReleased(addr("10.0.0.5")) || owners(v, "10.0.0.5")[0] != "" {
		t.Error("an address that came back does not rest")
	}
	if _, err := i.Ledger().Reserve("b", promise(20002)); err != nil {
		t.Errorf("an address that rests is refused: %v", err)
	}
	i.Ledger().Release("b")
	clock.Step(time.Hour)
	i.Ledger().Restore(inventory.Reservation{ClaimUID: "c", Region: "r", Host: "pve1", VMID: 20003, Addresses: []netip.Addr{addr("10.0.0.6")}})
	if got := owners(i.View(), "10.0.0.6"); got[0] != "claim c" {
		t.Errorf("a restored promise belongs to %q", got)
	}
	i.Ledger().Release("c")
	if i.View().Addresses().IsRecentlyReleased(addr("10.0.0.5")) {
		t.Error("an address rests for ever")
	}
}

func TestANewGuestDoesNotMakeAddressesUnknown(t *testing.T) {
	t.Parallel()
	c := crowded()
	i, _ := newInventory(t, c)
	i.WatchAddresses()
	refresh(t, i)
	unknown := false
	c.onConfig = func() { unknown = unknown || !i.View().Snapshots["r"].AddressesKnown }
	c.change(func() { c.resources.Guests = append(c.resources.Guests, vm(20002, "pve1", "running", 2, 4)) })
	refresh(t, i)
	if unknown {
		t.Error("while a new guest is read, nothing could be launched")
	}
}

func TestAContainerThatCannotBeReadHoldsNobodyUp(t *testing.T) {
	t.Parallel()
	c := crowded()
	c.unreadable[102] = errors.New("broken")
	i, _ := newInventory(t, c)
	i.WatchAddresses()
	refresh(t, i)
	if !i.View().Snapshots["r"].AddressesKnown {
		t.Error("one container that cannot be read keeps all addresses unknown")
	}
}
