// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package inventory_test

import (
	"errors"
	"fmt"
	"reflect"
	"sync"
	"testing"

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
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestReserveConcurrently(t *testing.T) {
	t.Parallel()
	c := newCluster("r", host("pve1", 16, 65), host("pve2", 16, 65))
	i, _ := newInventory(t, c)
	refresh(t, i)

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
			if other, taken := vmids[r.VMID]; taken {
				t.Errorf("%s and %s got VMID %d", uid, other, r.VMID)
			}
			vmids[r.VMID] = uid
		})
	}
	all.Go(func() { // concurrent polls must keep the reservations
		for range 20 {
			if err := i.Refresh(t.Context(), "r"); err != nil {
				t.Error(err)
			}
		}
	})
	all.Wait()
	if len(vmids) != 16 || failed != claims-16 {
		t.Errorf("%d claims got a reservation and %d did not, want 16 of %d", len(vmids), failed, claims)
	}
	for _, h := range i.View().Hosts() {
		if h.Free.CPUs != 0 {
			t.Errorf("%s has %d CPUs free, want none", h.Name, h.Free.CPUs)
		}
	}
}

func TestReserveIdempotent(t *testing.T) {
	t.Parallel()
	i, clock := newInventory(t, newCluster("r", host("pve1", 2, 8)))
	refresh(t, i)
	first := reserve(t, i, "a")
	if !first.CreatedAt.Equal(clock.Now()) || first.ClaimUID != "a" {
		t.Errorf("the reservation is %+v, want claim UID and time set", first)
	}
	// The Host is full now; the claim keeps its reservation.
	again, err := i.Ledger().Reserve("a", func(inventory.View) (inventory.Reservation, error) {
		t.Error("decide was called for a claim with a reservation")
		return inventory.Reservation{}, errFull
	})
	if err != nil || !reflect.DeepEqual(again, first) {
		t.Errorf("the second call returned %+v (%v), want %+v", again, err, first)
	}
	if _, err := i.Ledger().Reserve("b", firstFit("pve1")); !errors.Is(err, errFull) {
		t.Errorf("a second claim got %v, want the error of decide", err)
	}
	i.Ledger().Release("a")
	reserve(t, i, "b")
}

func TestReserveInvalid(t *testing.T) {
	t.Parallel()
	c := newCluster("r", host("pve1", 16, 64))
	c.setGuests(vm(20005, "pve1", "stopped", 1, 1))
	i, _ := newInventory(t, c)
	refresh(t, i)
	_, err := i.Ledger().Reserve("a", func(inventory.View) (inventory.Reservation, error) {
		return inventory.Reservation{Region: "r", Host: "pve1", VMID: 20005}, nil
	})
	if err == nil {
		t.Error("the VMID of a guest was reserved")
	}
	if _, err := i.Ledger().Reserve("", firstFit("pve1")); err == nil {
		t.Error("a claim without a UID got a reservation")
	}
}

// TestReserveFulfilled follows a launch through consecutive polls.
func locked(row proxmox.GuestRow, lock string) proxmox.GuestRow {
	row.Lock = lock
	return row
}

func TestReserveFulfilled(t *testing.T) {
	t.Parallel()
	c := newCluster("r", host("pve1", 16, 65))
	i, _ := newInventory(t, c)
	refresh(t, i)
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
		if got := v.Reservations["a"].Fulfilled; got != step.fulfilled {
			t.Errorf("%s: fulfilled is %v, want %v", step.name, got, step.fulfilled)
		}
		if got := hostState(v, "pve1").Free.CPUs; got != step.cpus {
			t.Errorf("%s: %d CPUs free, want %d", step.name, got, step.cpus)
		}
		if !v.IsVMIDTaken("r", vmid) {
			t.Errorf("%s: the VMID is free before its release", step.name)
		}
	}
	i.Ledger().Release("a")
	if i.View().IsVMIDTaken("r", vmid) {
		t.Error("the VMID is taken after its release")
	}
}

func TestReserveFulfilledByRunningVM(t *testing.T) {
	t.Parallel()
	c := newCluster("r", host("pve1", 16, 65))
	i, _ := newInventory(t, c)
	refresh(t, i)
	vmid := reserve(t, i, "a").VMID
	c.setGuests(vm(vmid, "pve1", "running", 1, 2)) // resized by an admin
	refresh(t, i)
	if v := i.View(); !v.Reservations["a"].Fulfilled || hostState(v, "pve1").Free.CPUs != 15 {
		t.Errorf("the hosts are %+v, want only the running VM to count", v.Hosts())
	}
}

// A Reservation is replaced in one step. Restore with what was read before does not undo it.
func TestReplace(t *testing.T) {
	t.Parallel()
	c := newCluster("r", host("pve1", 4, 9))
	i, _ := newInventory(t, c)
	refresh(t, i)
	parked := inventory.Reservation{ClaimUID: "a", NodePool: "p", Region: "r", Host: "pve1", VMID: ownRange.From}
	i.Ledger().Restore(parked)
	reserve(t, i, "b")

	if _, err := i.Ledger().Replace("a", firstFit("pve2")); !errors.Is(err, errFull) {
		t.Errorf("the error is %v", err)
	}
	if got := i.View().Reservations["a"]; got.VMID != parked.VMID {
		t.Errorf("after a failed decision the reservation is %+v, want %+v", got, parked)
	}
	before := i.View().Generation
	planned, err := i.Ledger().Replace("a", firstFit("pve1"))
	if err != nil || planned.VMID != parked.VMID || planned.Amount != amount(2, 4) {
		t.Fatalf("planned %+v, %v; want the VMID of the replaced reservation", planned, err)
	}
	i.Ledger().Restore(parked) // read before
	v := i.View()
	if got := v.Reservations["a"]; !reflect.DeepEqual(got, planned) || v.Generation != before+1 {
		t.Errorf("after %d changes the reservation is %+v, want %+v", v.Generation-before, got, planned)
	}
	if got := hostState(v, "pve1").Free.CPUs; got != 0 || v.NodePoolVMs("r", "pve1", "p") != 2 {
		t.Errorf("%d CPUs are free, want 0", got)
	}
}

// A thousand Reservations are restored in one change: each one rebuilds the View.
func TestRestoreMany(t *testing.T) {
	t.Parallel()
	i, _ := newInventory(t, newCluster("r", host("pve1", 4, 9)))
	refresh(t, i)
	var all []inventory.Reservation
	for n := range 1000 {
		all = append(all, inventory.Reservation{ClaimUID: fmt.Sprint(n), Region: "r", Host: "pve1", VMID: 20000 + n, Amount: amount(2, 4)})
	}
	before := i.View().Generation
	i.Ledger().Restore(all...)
	i.Ledger().Restore(all...) // changes nothing
	if v := i.View(); len(v.Reservations) != len(all) || v.Generation != before+1 {
		t.Errorf("%d reservations in %d changes, want %d in one", len(v.Reservations), v.Generation-before, len(all))
	}
}

func TestRestore(t *testing.T) {
	t.Parallel()
	c := newCluster("r", host("pve1", 4, 9))
	c.setGuests(vm(20001, "pve1", "running", 2, 4))
	i, _ := newInventory(t, c)
	refresh(t, i)
	pending := inventory.Reservation{ClaimUID: "b", NodePool: "p", Region: "r", Host: "pve1", VMID: 20002, Amount: amount(8, 16), Fulfilled: true}
	i.Ledger().Restore(inventory.Reservation{ClaimUID: "a", NodePool: "p", Region: "r", Host: "pve1", VMID: 20001, Amount: amount(2, 4)})
	i.Ledger().Restore(pending)
	pending.VMID = 20003
	i.Ledger().Restore(pending) // ignored: the claim has a reservation

	v := i.View()
	if !v.Reservations["a"].Fulfilled {
		t.Error("the reservation of a running VM is not fulfilled")
	}
	if r := v.Reservations["b"]; r.Fulfilled || r.VMID != 20002 {
		t.Errorf("the pending reservation is %+v, want it as first restored and not fulfilled", r)
	}
	if got, want := hostState(v, "pve1").Free, amount(-6, -12); got != want {
		t.Errorf("free is %+v, want %+v: reservations are restored even beyond the limit", got, want)
	}
	if v.NodePoolVMs("r", "pve1", "p") != 2 {
		t.Error("want two VMs of the NodePool")
	}
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
	i, _ := newInventory(t, c)
	refresh(t, i)
	before, _ := i.View().Storage("r", "pve2", "ceph")
	i.Ledger().Restore(inventory.Reservation{
		ClaimUID: "a", Region: "r", Host: "pve1", VMID: 20001, Amount: amount(2, 4), Storage: "ceph", DiskBytes: 100 * gib,
		Disks: []inventory.ReservedDisk{{Storage: "ceph", Bytes: 100 * gib}},
	})
	if after, ok := i.View().Storage("r", "pve2", "ceph"); !ok || !reflect.DeepEqual(after, before) {
		t.Errorf("the storage is %+v, want %+v", after, before)
	}
}
