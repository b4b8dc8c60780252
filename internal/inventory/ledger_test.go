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
	var (
		all    sync.WaitGroup
		mu     sync.Mutex
		vmids  = map[int]string{}
		failed int
	)
	for n := range claims {
		all.Go(func() {
			uid := fmt.Sprintf("claim-%d", n)
			r, err := i.Ledger().Reserve(uid, firstFit("pve1", "pve2"))
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				failed++
				return
			}
			other, taken := vmids[r.VMID]
			g.Expect(taken).To(BeFalse(), "%s and %s got VMID %d", uid, other, r.VMID)
			vmids[r.VMID] = uid
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
	g.Expect(first.CreatedAt.Equal(clock.Now())).To(BeTrue(), "want claim UID and time set")
	g.Expect(first.ClaimUID).To(Equal("a"), "want claim UID and time set")
	// The Host is full now; the claim keeps its reservation.
	again, err := i.Ledger().Reserve("a", func(inventory.View) (inventory.Reservation, error) {
		t.Error("decide was called for a claim with a reservation")
		return inventory.Reservation{}, errFull
	})
	g.Expect(err).NotTo(HaveOccurred(), "the second call")
	g.Expect(again).To(Equal(first), "the second call")
	g.Expect(i.Ledger().Reserve("b", firstFit("pve1"))).Error().To(MatchError(errFull), "a second claim")
	i.Ledger().Release("a")
	reserve(t, i, "b")
}

func TestReserveInvalid(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	c := newCluster("r", host("pve1", 16, 64))
	c.setGuests(vm(20005, "pve1", "stopped", 1, 1))
	i, _ := newPolled(t, c)
	_, err := i.Ledger().Reserve("a", func(inventory.View) (inventory.Reservation, error) {
		return inventory.Reservation{Region: "r", Host: "pve1", VMID: 20005}, nil
	})
	g.Expect(err).To(HaveOccurred(), "the VMID of a guest was reserved")
	g.Expect(i.Ledger().Reserve("", firstFit("pve1"))).Error().To(HaveOccurred(), "a claim without a UID got a reservation")
}

// TestReserveFulfilled follows a launch through consecutive polls.
func locked(row proxmox.GuestRow, lock string) proxmox.GuestRow {
	row.Lock = lock
	return row
}

func TestReserveFulfilled(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	c := newCluster("r", host("pve1", 16, 65))
	i, _ := newPolled(t, c)
	vmid := reserve(t, i, "a").VMID
	for _, step := range []struct {
		name      string
		guests    []proxmox.GuestRow
		fulfilled bool
		cpus      int
	}{
		{"not_visible", nil, false, 14},
		{"row_without_resources", []proxmox.GuestRow{rowWithoutResources(vmid)}, false, 14},
		{"clone_with_size_of_template", []proxmox.GuestRow{vm(vmid, "pve1", "stopped", 1, 1)}, false, 14},
		{"clone_of_larger_template", []proxmox.GuestRow{locked(vm(vmid, "pve1", "stopped", 2, 4), "clone")}, false, 14},
		{"row_without_resources_again", []proxmox.GuestRow{rowWithoutResources(vmid)}, false, 14},
		{"configured", []proxmox.GuestRow{vm(vmid, "pve1", "stopped", 2, 4)}, true, 14},
		{"running", []proxmox.GuestRow{vm(vmid, "pve1", "running", 2, 4)}, true, 14},
		{"destroyed_by_admin", nil, true, 16},
	} {
		c.setGuests(step.guests...)
		c.change(func() { c.permissions = proxmox.Permissions{"/vms": {"VM.Audit": true}} })
		refresh(t, i)
		v := i.View()
		g.Expect(v.Reservations["a"].Fulfilled).To(Equal(step.fulfilled), "%s: fulfilled", step.name)
		g.Expect(hostState(v, "pve1").Free.CPUs).To(Equal(step.cpus), step.name)
		g.Expect(v.IsVMIDTaken("r", vmid)).To(BeTrue(), "%s: the VMID is free before its release", step.name)
	}
	i.Ledger().Release("a")
	g.Expect(i.View().IsVMIDTaken("r", vmid)).To(BeFalse(), "the VMID is taken after its release")
}

func TestReserveFulfilledByRunningVM(t *testing.T) {
	t.Parallel()
	c := newCluster("r", host("pve1", 16, 65))
	i, _ := newPolled(t, c)
	vmid := reserve(t, i, "a").VMID
	c.setGuests(vm(vmid, "pve1", "running", 1, 2)) // resized by an admin
	refresh(t, i)
	g := NewWithT(t)
	g.Expect(i.View().Reservations["a"].Fulfilled).To(BeTrue())
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

// A thousand Reservations are restored in one change: each one rebuilds the View.
func TestRestoreMany(t *testing.T) {
	t.Parallel()
	i, _ := newPolled(t, newCluster("r", host("pve1", 4, 9)))
	var all []inventory.Reservation
	for n := range 1000 {
		all = append(all, inventory.Reservation{ClaimUID: fmt.Sprint(n), Region: "r", Host: "pve1", VMID: 20000 + n, Amount: amount(2, 4)})
	}
	before := i.View().Generation
	i.Ledger().Restore(all...)
	i.Ledger().Restore(all...) // changes nothing
	NewWithT(t).Expect(i.View()).To(And(HaveField("Reservations", HaveLen(len(all))), HaveField("Generation", before+1)))
}

func TestRestore(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	c := newCluster("r", host("pve1", 4, 9))
	c.setGuests(vm(20001, "pve1", "running", 2, 4))
	i, _ := newPolled(t, c)
	pending := inventory.Reservation{ClaimUID: "b", NodePool: "p", Region: "r", Host: "pve1", VMID: 20002, Amount: amount(8, 16), Fulfilled: true}
	i.Ledger().Restore(inventory.Reservation{ClaimUID: "a", NodePool: "p", Region: "r", Host: "pve1", VMID: 20001, Amount: amount(2, 4)})
	i.Ledger().Restore(pending)
	pending.VMID = 20003
	i.Ledger().Restore(pending) // ignored: the claim has a reservation

	v := i.View()
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
