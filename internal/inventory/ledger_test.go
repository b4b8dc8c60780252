// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package inventory_test

import (
	"errors"
	"fmt"
	"sync"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/observed"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

var errFull = errors.New("full")

// firstFit chooses the first Host and VMID with capacity for two CPUs and 4 GiB.
func firstFit(hosts ...string) inventory.DecideFunc {
	return func(v inventory.View) (inventory.Reservation, error) {
		for _, h := range hosts {
			if free := hostState(v, h).Free; free.CPUs < 2 || free.MemoryBytes < 4*gib {
				continue
			}
			for vmid := ownRange.From; vmid <= ownRange.To; vmid++ {
				if !v.IsVMIDTaken("r", vmid) {
					return inventory.Reservation{NodePool: "p", Region: "r", Host: h, VMID: vmid, Amount: amount(2, 4)}, nil
				}
			}
		}
		return inventory.Reservation{}, errFull
	}
}

func reserve(t *testing.T, i *inventory.Inventory, claim string) inventory.Reservation {
	t.Helper()
	r, err := i.Ledger().Reserve(claim, firstFit("pve1"))
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	return r
}

func TestReserveConcurrently(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	c := newCluster("r", host("pve1", 16, 65), host("pve2", 16, 65))
	i, _ := newPolled(t, c)

	const claims = 100
	var all sync.WaitGroup
	var mu sync.Mutex
	vmids, failed := map[int]bool{}, 0
	for n := range claims {
		all.Go(func() {
			r, err := i.Ledger().Reserve(fmt.Sprint("claim-", n), firstFit("pve1", "pve2"))
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				failed++
				return
			}
			g.Expect(vmids).NotTo(HaveKey(r.VMID))
			vmids[r.VMID] = true
		})
	}
	all.Go(func() { // concurrent polls must keep the reservations
		for range 20 {
			g.Expect(i.Refresh(t.Context(), "r")).To(Succeed())
		}
	})
	all.Wait()
	g.Expect(vmids).To(HaveLen(16))
	g.Expect(failed).To(Equal(claims - 16))
	for _, h := range i.View().Hosts() {
		g.Expect(h.Free.CPUs).To(BeZero(), h.Name)
	}
}

func TestReserveIdempotent(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	i, clock := newPolled(t, newCluster("r", host("pve1", 2, 8)))
	first := reserve(t, i, "a")
	g.Expect(first).To(And(HaveField("ClaimUID", "a"), HaveField("CreatedAt", BeTemporally("==", clock.Now()))))
	// The Host is full now; the claim keeps its reservation.
	again, err := i.Ledger().Reserve("a", func(inventory.View) (inventory.Reservation, error) {
		t.Error("decide was called for a claim with a reservation")
		return inventory.Reservation{}, errFull
	})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(again).To(Equal(first), "the second call")
	g.Expect(i.Ledger().Reserve("b", firstFit("pve1"))).Error().To(MatchError(errFull), "a second claim")
	i.Ledger().Release("a")
	reserve(t, i, "b")
	g.Expect(i.Ledger().Reserve("c", func(inventory.View) (inventory.Reservation, error) { return first, nil })).Error().
		To(HaveOccurred(), "the VMID of another claim was reserved")
	g.Expect(i.Ledger().Reserve("", firstFit("pve1"))).Error().To(HaveOccurred(), "a claim without a UID got a reservation")
}

// TestReserveFulfilled follows a launch through consecutive polls.
func TestReserveFulfilled(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	c := newCluster("r", host("pve1", 16, 65))
	c.permissions = proxmox.Permissions{"/vms": {"VM.Audit": true}}
	i, _ := newPolled(t, c)
	vmid := reserve(t, i, "a").VMID
	locked := vm(vmid, "pve1", "stopped", 2, 32)
	locked.Lock = "clone"
	type guests = []proxmox.GuestRow
	for _, step := range []struct {
		name      string
		guests    guests
		fulfilled bool
		free      observed.Amount
	}{
		{"not_visible", nil, false, amount(14, 60)},
		{"row_without_resources", guests{rowWithoutResources(vmid)}, false, amount(14, 60)},
		{"clone_with_size_of_template", guests{vm(vmid, "pve1", "stopped", 1, 1)}, false, amount(14, 60)},
		{"clone_of_larger_template", guests{locked}, false, amount(14, 32)},
		{"row_without_resources_again", guests{rowWithoutResources(vmid)}, false, amount(14, 32)},
		{"configured", guests{vm(vmid, "pve1", "stopped", 2, 4)}, true, amount(14, 60)},
		{"running", guests{vm(vmid, "pve1", "running", 2, 4)}, true, amount(14, 60)},
		{"destroyed_by_admin", nil, true, amount(16, 64)},
	} {
		c.setGuests(step.guests...)
		refresh(t, i)
		v := i.View()
		g.Expect(v.Reservations["a"].Fulfilled).To(Equal(step.fulfilled), "%s: fulfilled", step.name)
		g.Expect(hostState(v, "pve1").Free).To(Equal(step.free), step.name)
		g.Expect(v.NodePoolVMs("r", "pve1", "p")).To(Equal(1), step.name)
		g.Expect(v.IsVMIDTaken("r", vmid)).To(BeTrue(), "%s: the VMID is free before its release", step.name)
	}
	g.Expect(i.View().IsVMIDTaken("q", vmid)).To(BeFalse(), "in another region")
	i.Ledger().Release("a")
	g.Expect(i.View().IsVMIDTaken("r", vmid)).To(BeFalse(), "the VMID is taken after its release")

	vmid = reserve(t, i, "b").VMID
	c.setGuests(vm(vmid, "pve1", "running", 1, 2)) // resized by an admin
	refresh(t, i)
	g.Expect(i.View().Reservations["b"].Fulfilled).To(BeTrue())
	g.Expect(hostState(i.View(), "pve1").Free.CPUs).To(Equal(15), "only the running VM counts")
}

// A Reservation is replaced in one step. Restore with what was read before does not undo it.
func TestReplace(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	c := newCluster("r", host("pve1", 4, 9))
	i, _ := newPolled(t, c)
	parked := inventory.Reservation{ClaimUID: "a", NodePool: "p", Region: "r", Host: "pve1", VMID: ownRange.From}
	i.Ledger().Restore(parked)
	reserve(t, i, "b")

	g.Expect(i.Ledger().Replace("a", firstFit("pve2"))).Error().To(MatchError(errFull))
	g.Expect(i.View().Reservations["a"].VMID).To(Equal(parked.VMID), "after a failed decision the reservation")
	before := i.View().Generation
	planned, err := i.Ledger().Replace("a", firstFit("pve1"))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(planned).To(And(HaveField("VMID", parked.VMID), HaveField("Amount", amount(2, 4))))
	i.Ledger().Restore(parked) // read before
	v := i.View()
	g.Expect(v.Reservations["a"]).To(Equal(planned))
	g.Expect(v.Generation).To(Equal(before + 1))
	g.Expect(hostState(v, "pve1").Free.CPUs).To(BeZero())
	g.Expect(v.NodePoolVMs("r", "pve1", "p")).To(Equal(2))
}

func TestRestore(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	c := newCluster("r", host("pve1", 4, 9))
	c.setGuests(vm(20001, "pve1", "running", 2, 4))
	i, _ := newPolled(t, c)
	pending := inventory.Reservation{ClaimUID: "b", NodePool: "p", Region: "r", Host: "pve1", VMID: 20002, Amount: amount(8, 16), Fulfilled: true}
	running := inventory.Reservation{ClaimUID: "a", NodePool: "p", Region: "r", Host: "pve1", VMID: 20001, Amount: amount(2, 4)}
	before := i.View().Generation
	i.Ledger().Restore(running, pending)
	pending.VMID = 20003
	i.Ledger().Restore(running, pending) // ignored: the claims have reservations

	v := i.View()
	g.Expect(v.Generation).To(Equal(before+1), "all are restored in one change: each one rebuilds the View")
	g.Expect(v.Reservations["a"].Fulfilled).To(BeTrue(), "the reservation of a running VM is not fulfilled")
	g.Expect(v.Reservations["b"]).To(And(HaveField("VMID", 20002), HaveField("Fulfilled", false)), "as first restored")
	g.Expect(hostState(v, "pve1").Free).To(Equal(amount(-6, -12)))
	g.Expect(v.NodePoolVMs("r", "pve1", "p")).To(BeEquivalentTo(2), "want two VMs of the NodePool")
}

// The disks of VMs on a Host that failed before the controller started are on the shared storage
// already, and must not count twice.
func TestRestoreOnOfflineHost(t *testing.T) {
	t.Parallel()
	c := newCluster("r", host("pve2", 4, 9), proxmox.HostRow{Name: "pve1"})
	c.setGuests(rowWithoutResources(20001))
	for _, name := range []string{"pve1", "pve2"} {
		c.resources.Storages = append(c.resources.Storages, proxmox.StorageRow{Name: "ceph", Host: name, Type: "rbd", Shared: true, Available: name == "pve2", TotalBytes: 1000 * gib, UsedBytes: 100 * gib})
	}
	i, _ := newPolled(t, c)
	before, _ := i.View().Storage("r", "pve2", "ceph")
	i.Ledger().Restore(inventory.Reservation{
		ClaimUID: "a", Region: "r", Host: "pve1", VMID: 20001, Amount: amount(2, 4), Storage: "ceph", DiskBytes: 100 * gib,
		Disks: []inventory.ReservedDisk{{Storage: "ceph", Bytes: 100 * gib}},
	})
	after, _ := i.View().Storage("r", "pve2", "ceph")
	NewWithT(t).Expect(after).To(And(Equal(before), HaveField("Available", true)))
}

// BenchmarkReserve makes and releases one Reservation in a ledger of a thousand, with 100 Hosts and 5000 guests.
func BenchmarkReserve(b *testing.B) {
	c := newCluster("r")
	for h := range 100 {
		name := fmt.Sprintf("pve%d", h)
		c.resources.Hosts = append(c.resources.Hosts, host(name, 128, 1024))
		for g := range 50 {
			c.resources.Guests = append(c.resources.Guests, vm(100+h*50+g, name, "running", 2, 4))
		}
	}
	i, err := inventory.New([]proxmox.Client{c}, inventory.Options{})
	if err != nil {
		b.Fatal(err)
	}
	if err := i.Refresh(b.Context(), "r"); err != nil {
		b.Fatal(err)
	}
	decide := func(vmid int) inventory.DecideFunc {
		return func(inventory.View) (inventory.Reservation, error) {
			return inventory.Reservation{Region: "r", Host: fmt.Sprintf("pve%d", vmid%100), VMID: vmid, Amount: amount(2, 4)}, nil
		}
	}
	for n := range 1000 {
		if _, err := i.Ledger().Reserve(fmt.Sprint("existing-", n), decide(20000+n)); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := i.Ledger().Reserve("new", decide(30000)); err != nil {
			b.Fatal(err)
		}
		i.Ledger().Release("new")
	}
}
