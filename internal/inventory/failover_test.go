// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package inventory_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/declared"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/observed"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// failoverEnv is a small region with its rows.
type failoverEnv struct {
	hosts        []proxmox.HostRow
	guests       []proxmox.GuestRow
	reservations []inventory.Reservation
	settings     string
}

func (e failoverEnv) view(t *testing.T) inventory.View {
	t.Helper()
	return viewOf(t, snapshotOf(nil, e.hosts, e.guests...), e.settings, e.reservations...)
}

// with returns the region with another guest.
func (e failoverEnv) with(host string, size observed.Amount) failoverEnv {
	g := vm(999, host, "running", size.CPUs, 0)
	g.MemoryBytes = size.MemoryBytes
	e.guests = append(slices.Clone(e.guests), g)
	return e
}

// randomFailover returns a region derived from a seed. All guests fit on their Hosts.
func randomFailover(seed uint64) failoverEnv {
	rng := rand.New(rand.NewPCG(seed, 18))
	e := failoverEnv{settings: `{"r": {"*": {"reservedmemory": 0}}}`}
	if rng.IntN(3) == 0 {
		e.settings = `{"r": {"*": {"reservedmemory": 0, "cpuratio": 2}, "pve1": {"excluded": true}}}`
	}
	vmid := 100
	for h := range 2 + rng.IntN(4) {
		row := host(fmt.Sprintf("pve%d", h), 4+rng.IntN(9), int64(8+rng.IntN(25)))
		row.Online, row.Maintenance = rng.IntN(12) > 0, rng.IntN(12) == 0
		if rng.IntN(12) == 0 {
			row.Arch = "aarch64"
		}
		e.hosts = append(e.hosts, row)
		cpus, memory := row.CPUs, row.MemoryBytes/gib
		for range rng.IntN(5) {
			size := amount(1+rng.IntN(4), int64(1+rng.IntN(10)))
			if size.CPUs > cpus || size.MemoryBytes/gib > memory {
				continue
			}
			cpus, memory, vmid = cpus-size.CPUs, memory-size.MemoryBytes/gib, vmid+1
			if rng.IntN(4) == 0 {
				e.reservations = append(e.reservations, inventory.Reservation{ClaimUID: fmt.Sprint(vmid), Region: "r", Host: row.Name, VMID: vmid, Amount: size})
				continue
			}
			e.guests = append(e.guests, vm(vmid, row.Name, "running", size.CPUs, size.MemoryBytes/gib))
		}
	}
	return e
}

// tolerates is the oracle: it tries all placements of the guests of each Host.
func (e failoverEnv) tolerates(v inventory.View, arch string) bool {
	var hosts []inventory.HostState
	for _, h := range v.Hosts() {
		if h.IsAvailable(inventory.Keep) && h.Arch == arch {
			hosts = append(hosts, h)
		}
	}
	for n, failed := range hosts {
		var guests []observed.Amount
		for _, g := range e.guests {
			if g.Host == failed.Name {
				guests = append(guests, observed.Amount{CPUs: g.CPUs, MemoryBytes: g.MemoryBytes})
			}
		}
		for _, r := range e.reservations {
			if r.Host == failed.Name {
				guests = append(guests, r.Amount)
			}
		}
		if !canPlace(guests, slices.Delete(slices.Clone(hosts), n, n+1)) {
			return false
		}
	}
	return true
}

func canPlace(guests []observed.Amount, hosts []inventory.HostState) bool {
	if len(guests) == 0 {
		return true
	}
	g := guests[0]
	for n, h := range hosts {
		if g.CPUs > min(max(0, h.Free.CPUs), h.Size.CPUs) || g.MemoryBytes > min(max(0, h.Free.MemoryBytes), h.Size.MemoryBytes) {
			continue
		}
		hosts[n].Free = h.Free.Minus(g)
		ok := canPlace(guests[1:], hosts)
		hosts[n].Free = h.Free
		if ok {
			return true
		}
	}
	return false
}

// TestFailoverProperties compares many small regions with brute force, without and with a
// new VM: the check passes exactly if all guests of any one Host can be placed, and a new
// VM never makes a check pass that fails without it.
func TestFailoverProperties(t *testing.T) {
	t.Parallel()
	passed, failed, refused := 0, 0, 0
	for seed := range uint64(4000) {
		e := randomFailover(seed)
		view := e.view(t)
		rng := rand.New(rand.NewPCG(seed, 19))
		target := e.hosts[rng.IntN(len(e.hosts))].Name
		state, _ := view.Host("r", target)
		f := view.Failover("r", target)
		shortfall, violated := f.Shortfall()
		if want := e.tolerates(view, state.Arch); want == violated {
			t.Fatalf("seed %d: got %q, but the guests of any Host fit on others: %v", seed, shortfall, want)
		}
		size := amount(1+rng.IntN(4), int64(1+rng.IntN(8)))
		if !state.IsAvailable(inventory.Keep) || state.Free.CPUs < size.CPUs || state.Free.MemoryBytes < size.MemoryBytes {
			continue
		}
		with := e.with(target, size)
		after := with.view(t)
		got, want := f.Tolerates(target, size), with.tolerates(after, state.Arch)
		_, violatedAfter := after.Failover("r", target).Shortfall()
		details, refusedWith := f.ShortfallWith(target, size)
		if got != want || violatedAfter == want || refusedWith == want {
			t.Fatalf("seed %d: a VM on %s is tolerated %v (%q), the check after its launch fails %v, the oracle returns %v", seed, target, got, details, violatedAfter, want)
		}
		if got && violated {
			t.Fatalf("seed %d: the check passes with a VM on %s, and fails without it: %s", seed, target, shortfall)
		}
		if refusedWith && (len(details.Unplaced) == 0 || details.Missing == (observed.Amount{})) {
			t.Fatalf("seed %d: nothing is missing in %+v", seed, details)
		}
		switch {
		case violated:
			failed++
		case got:
			passed++
		default:
			refused++
		}
	}
	t.Logf("%d passed, %d violated, %d refused", passed, failed, refused)
	if passed < 200 || failed < 200 || refused < 50 {
		t.Errorf("%d passed, %d violated, %d refused: the generator is unbalanced", passed, failed, refused)
	}
}

func TestFailoverShortfall(t *testing.T) {
	t.Parallel()
	type hosts = []proxmox.HostRow
	type guests = []proxmox.GuestRow
	for name, c := range map[string]struct {
		hosts  hosts
		guests guests
		want   string
	}{
		"fits": {
			hosts{host("pve1", 8, 33), host("pve2", 8, 33)},
			guests{vm(100, "pve1", "running", 4, 16), vm(101, "pve2", "running", 4, 16)}, "",
		},
		"too_much": {
			hosts{host("pve1", 8, 33), host("pve2", 4, 17)},
			guests{vm(100, "pve1", "running", 4, 16), vm(101, "pve1", "running", 2, 4)},
			"if pve1 failed, its guests with 6 CPUs and 20.0 GiB would not fit on the other hosts with 4 CPUs and 16.0 GiB free: no capacity for 101 with 2 CPUs and 4.0 GiB",
		},
		"fragmented": {
			hosts{host("pve1", 8, 33), host("pve2", 8, 33), host("pve3", 8, 33)},
			guests{vm(100, "pve1", "running", 4, 30), vm(101, "pve2", "running", 1, 4), vm(102, "pve3", "running", 1, 4)},
			"if pve1 failed, its guests with 4 CPUs and 30.0 GiB would not fit on the other hosts with 14 CPUs and 56.0 GiB free: no capacity for 100 with 4 CPUs and 30.0 GiB",
		},
		"several_hosts": {
			hosts{host("pve1", 8, 33), host("pve2", 8, 33)},
			guests{vm(100, "pve1", "running", 6, 16), vm(101, "pve2", "running", 6, 20)}, "; nor would the guests of pve1",
		},
		"single_host": {
			hosts{host("pve1", 8, 33)}, guests{vm(100, "pve1", "running", 4, 16)}, "on the other hosts with 0 CPUs and 0.0 GiB free",
		},
		"stopped_guests_of_others": {hosts{host("pve1", 8, 33)}, guests{vm(100, "pve1", "stopped", 4, 16)}, ""},
	} {
		got, found := viewOf(t, snapshotOf(nil, c.hosts, c.guests...), "").Failover("r", "pve1").Shortfall()
		if found != (c.want != "") || (found && !strings.Contains(got.String(), c.want)) {
			t.Errorf("%s: got %v %q, want %q", name, found, got, c.want)
		}
	}
}

// BenchmarkFailover measures the checks of a new View: 100 Hosts, each with its guests, and 20 types on
// each Host.
func BenchmarkFailover(b *testing.B) {
	rng := rand.New(rand.NewPCG(1, 18))
	var hosts []proxmox.HostRow
	var guests []proxmox.GuestRow
	for h := range 100 {
		hosts = append(hosts, host(fmt.Sprintf("pve%d", h), 256, 1025))
		for left := int64(1008); left > 0; {
			memory := min(left, 2+rng.Int64N(15))
			guests, left = append(guests, vm(100+len(guests), hosts[h].Name, "running", 2, memory)), left-memory
		}
	}
	snapshot := snapshotOf(nil, hosts, guests...)
	b.ReportAllocs()
	for b.Loop() {
		f := inventory.NewView(map[string]*observed.Snapshot{"r": snapshot}, nil, nil, declared.Settings{}, declared.Records{}).Failover("r", "pve0")
		for _, h := range hosts {
			for n := range 20 {
				f.Tolerates(h.Name, amount(1<<(n%5), int64(2+n)<<(n%5)))
			}
		}
	}
}
