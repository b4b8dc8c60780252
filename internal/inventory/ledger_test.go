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

// firstFit takes the first Host and VMID with room for two CPUs and 4 GiB.
func firstFit(hosts ...string) inventory.DecideFunc {
	return func(v inventory.View) (inventory.Reservation, error) {
		for _, h := range hosts {
			if free := hostState(v, h).Free; free.CPUs < 2 || free.MemoryBytes < 4*gib {
				continue
			}
			for vmid := own.From; vmid <= own.To; vmid++ {
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

func TestParallelReservationsNeverPromiseTwice(t *testing.T) {
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
	all.Go(func() { // polls in between must not forget what was promised
		for range 20 {
			if err := i.Refresh(t.Context(), "r"); err != nil {
				t.Error(err)
			}
		}
	})
	all.Wait()
	if len(vmids) != 16 || failed != claims-16 {
		t.Errorf("%d claims got a place and %d not, want 16 of %d", len(vmids), failed, claims)
	}
	for _, h := range i.View().Hosts() {
		if h.Free.CPUs != 0 {
			t.Errorf("%s has %d CPUs free, want none", h.Name, h.Free.CPUs)
		}
	}
}

func TestReserveIsIdempotentPerClaim(t *testing.T) {
	t.Parallel()
	i, clock := newInventory(t, newCluster("r", host("pve1", 2, 8)))
	refresh(t, i)
	first := reserve(t, i, "a")
	if !first.CreatedAt.Equal(clock.Now()) || first.ClaimUID != "a" {
		t.Errorf("the reservation is %+v, want it stamped with claim and time", first)
	}
	// The Host is full now; the claim keeps what it has.
	again, err := i.Ledger().Reserve("a", func(inventory.View) (inventory.Reservation, error) {
		t.Error("decided again for a claim that holds a reservation")
		return inventory.Reservation{}, errFull
	})
	if err != nil || !reflect.DeepEqual(again, first) {
		t.Errorf("the second time gave %+v (%v), want %+v", again, err, first)
	}
	if _, err := i.Ledger().Reserve("b", firstFit("pve1")); !errors.Is(err, errFull) {
		t.Errorf("a second claim got %v, want the decision's own error", err)
	}
	i.Ledger().Release("a")
	reserve(t, i, "b")
}

func TestReserveRefusesATakenVMID(t *testing.T) {
	t.Parallel()
	c := newCluster("r", host("pve1", 16, 64))
	c.setGuests(vm(20005, "pve1", "stopped", 1, 1))
	i, _ := newInventory(t, c)
	refresh(t, i)
	_, err := i.Ledger().Reserve("a", func(inventory.View) (inventory.Reservation, error) {
		return inventory.Reservation{Region: "r", Host: "pve1", VMID: 20005}, nil
	})
	if err == nil {
		t.Error("a VMID that a guest has was promised")
	}
	if _, err := i.Ledger().Reserve("", firstFit("pve1")); err == nil {
		t.Error("a claim without a UID got a reservation")
	}
}

// TestReservationUntilTheVMShows follows a launch through what polls show of it.
func TestReservationUntilTheVMShows(t *testing.T) {
	t.Parallel()
	c := newCluster("r", host("pve1", 16, 65))
	i, _ := newInventory(t, c)
	refresh(t, i)
	vmid := reserve(t, i, "a").VMID
	for _, step := range []struct {
		name    string
		guests  []proxmox.GuestRow
		settled bool
		cpus    int
	}{
		{"a poll that does not show it yet", nil, false, 14},
		{"the row without figures", []proxmox.GuestRow{unknown(vmid)}, false, 14},
		{"the clone with its template's figures", []proxmox.GuestRow{vm(vmid, "pve1", "stopped", 1, 1)}, false, 14},
		{"a hiccup that hides the figures", []proxmox.GuestRow{unknown(vmid)}, false, 14},
		{"configured as promised", []proxmox.GuestRow{vm(vmid, "pve1", "stopped", 2, 4)}, true, 14},
		{"running", []proxmox.GuestRow{vm(vmid, "pve1", "running", 2, 4)}, true, 14},
		{"destroyed by hand", nil, true, 16},
	} {
		c.setGuests(step.guests...)
		c.change(func() { c.permissions = proxmox.Permissions{"/vms": {"VM.Audit": true}} })
		refresh(t, i)
		v := i.View()
		if got := v.Reservations["a"].Fulfilled; got != step.settled {
			t.Errorf("%s: settled is %v, want %v", step.name, got, step.settled)
		}
		if got := hostState(v, "pve1").Free.CPUs; got != step.cpus {
			t.Errorf("%s: %d CPUs free, want %d", step.name, got, step.cpus)
		}
		if !v.IsVMIDTaken("r", vmid) {
			t.Errorf("%s: the VMID is free again before its release", step.name)
		}
	}
	i.Ledger().Release("a")
	if i.View().IsVMIDTaken("r", vmid) {
		t.Error("the VMID is still taken after its release")
	}
}

func TestRunningVMSettlesWhateverItsSize(t *testing.T) {
	t.Parallel()
	c := newCluster("r", host("pve1", 16, 65))
	i, _ := newInventory(t, c)
	refresh(t, i)
	vmid := reserve(t, i, "a").VMID
	c.setGuests(vm(vmid, "pve1", "running", 1, 2)) // an admin made it smaller
	refresh(t, i)
	if v := i.View(); !v.Reservations["a"].Fulfilled || hostState(v, "pve1").Free.CPUs != 15 {
		t.Errorf("the view is %+v, want the running VM alone to count", v.Hosts())
	}
}

func TestRestoreAfterARestart(t *testing.T) {
	t.Parallel()
	c := newCluster("r", host("pve1", 4, 9))
	c.setGuests(vm(20001, "pve1", "running", 2, 4))
	i, _ := newInventory(t, c)
	refresh(t, i)
	pending := inventory.Reservation{ClaimUID: "b", NodePool: "p", Region: "r", Host: "pve1", VMID: 20002, Amount: amount(8, 16), Fulfilled: true}
	i.Ledger().Restore(inventory.Reservation{ClaimUID: "a", NodePool: "p", Region: "r", Host: "pve1", VMID: 20001, Amount: amount(2, 4)})
	i.Ledger().Restore(pending)
	pending.VMID = 20003
	i.Ledger().Restore(pending) // the first one stands

	v := i.View()
	if !v.Reservations["a"].Fulfilled {
		t.Error("the VM is there and runs, yet its reservation counts beside it")
	}
	if r := v.Reservations["b"]; r.Fulfilled || r.VMID != 20002 {
		t.Errorf("the pending reservation is %+v, want it as first restored and not settled", r)
	}
	if got, want := hostState(v, "pve1").Free, amount(-6, -12); got != want {
		t.Errorf("free is %+v, want %+v: what was promised stands even beyond the limit", got, want)
	}
	if v.NodePoolVMs("r", "pve1", "p") != 2 {
		t.Error("both VMs belong to the NodePool")
	}
}
