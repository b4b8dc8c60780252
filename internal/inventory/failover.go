// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/observed"
)

// Failover reports whether the guests of any one Host would fit on the other Hosts of the
// same region and architecture, by CPUs and memory. Storage, devices and NUMA cells do not
// count. Hosts that are out of service count neither with their guests nor with their
// capacity.
type Failover struct {
	// Unavailable are the Hosts that are offline or in maintenance, in order.
	Unavailable []string

	total observed.Amount // allocatable on all Hosts
	hosts []failoverHost  // by increasing free capacity
	index map[string]int  // by name
	// plans are what the other Hosts have left after the failure of a Host, by its index. There are
	// none if its guests do not fit.
	plans [][][]bin
	// current is the Shortfall without a new VM, which the reasons of all Hosts repeat.
	current func() (Shortfall, bool)
	// suspect is the Host that the last refused VM was refused for. Others are often refused
	// for the same.
	suspect atomic.Int64
}

// failoverHost is a Host with its guests, the largest first.
type failoverHost struct {
	bin
	name   string
	guests []failoverGuest
}

// failoverGuest is a guest, or a VM that is being launched. A new VM has no VMID.
type failoverGuest struct {
	observed.Amount
	vmid int
}

// Shortfall describes a Host whose guests would not fit on the other Hosts.
type Shortfall struct {
	Host string
	// Held is what its guests have in total.
	Held observed.Amount
	// Free is what the other Hosts have free in total.
	Free observed.Amount
	// Unplaced are the VMIDs of the guests that fit on no Host after all others were placed, and
	// Missing what these have in total. A new VM has the VMID 0.
	Unplaced []int
	Missing  observed.Amount
	// Others are further Hosts whose guests would not fit either.
	Others []string
}

// maxListed is how many guests or Hosts a Shortfall names.
const maxListed = 5

// String describes the Shortfall in one sentence, without the region.
func (s Shortfall) String() string {
	ids := make([]string, len(s.Unplaced))
	for n, vmid := range s.Unplaced {
		ids[n] = fmt.Sprint(vmid)
		if vmid == 0 {
			ids[n] = "the new VM"
		}
	}
	text := fmt.Sprintf("if %s failed, its guests with %s would not fit on the other hosts with %s free: no capacity for %s with %s",
		s.Host, describe(s.Held), describe(s.Free), joinSome(ids), describe(s.Missing))
	if len(s.Others) > 0 {
		text += "; nor would the guests of " + joinSome(s.Others)
	}
	return text
}

func joinSome(names []string) string {
	if more := len(names) - maxListed; more > 0 {
		names = append(slices.Clone(names[:maxListed]), fmt.Sprintf("%d more", more))
	}
	return strings.Join(names, ", ")
}

// describe formats an Amount for messages. A method String would also be that of every type
// that embeds Amount.
func describe(a observed.Amount) string {
	return fmt.Sprintf("%d CPUs and %.1f GiB", a.CPUs, float64(a.MemoryBytes)/(1<<30))
}

// maxPlans is the number of plans for a failed Host. Each starts with another Host. A new VM
// fits into one of them, unless the guests of the failed Host use nearly all others.
const maxPlans = 4

// plan returns what the other Hosts have left after the failure of a Host.
func (f *Failover) plan(failed int) [][]bin {
	var plans [][]bin
	guests, hosts := f.without(failed, -1, observed.Amount{})
	for n := range maxPlans {
		first := n * len(hosts) / maxPlans
		left := slices.Concat(hosts[first:], hosts[:first])
		if !pack(guests, left) {
			break // of the plans after the first: the search was too long
		}
		plans = append(plans, slices.Concat(left[len(left)-first:], left[:len(left)-first]))
	}
	return plans
}

// share returns the larger of the shares of CPUs and memory of all Hosts.
func (f *Failover) share(a observed.Amount) float64 {
	return max(float64(a.CPUs)/float64(max(1, f.total.CPUs)), float64(a.MemoryBytes)/float64(max(1, f.total.MemoryBytes)))
}

// compare sorts smaller amounts first.
func (f *Failover) compare(a, b observed.Amount) int {
	return cmp.Or(cmp.Compare(f.share(a), f.share(b)), cmp.Compare(a.MemoryBytes, b.MemoryBytes), cmp.Compare(a.CPUs, b.CPUs))
}

// compareGuests sorts larger guests first.
func (f *Failover) compareGuests(a, b failoverGuest) int {
	return cmp.Or(f.compare(b.Amount, a.Amount), cmp.Compare(a.vmid, b.vmid))
}

// guestsWith returns the guests of a Host, with a new VM if target is that Host.
func (f *Failover) guestsWith(failed, target int, vm observed.Amount) []failoverGuest {
	guests := f.hosts[failed].guests
	if failed != target {
		return guests
	}
	n, _ := slices.BinarySearchFunc(guests, failoverGuest{Amount: vm}, f.compareGuests)
	return slices.Insert(slices.Clone(guests), n, failoverGuest{Amount: vm})
}

// without returns the guests of a failed Host and the capacity of the others. A new VM takes its
// capacity of the target, which is -1 if there is none. The failed Host has no capacity.
func (f *Failover) without(failed, target int, vm observed.Amount) (guests []observed.Amount, hosts []bin) {
	hosts = make([]bin, len(f.hosts))
	for n, host := range f.hosts {
		hosts[n] = host.bin
	}
	hosts[failed] = bin{}
	if target >= 0 && target != failed {
		hosts[target].free = hosts[target].free.Minus(vm).AtLeast(observed.Amount{})
	}
	with := f.guestsWith(failed, target, vm)
	guests = make([]observed.Amount, len(with))
	for n, guest := range with {
		guests[n] = guest.Amount
	}
	return guests, hosts
}

// Tolerates reports whether the guests of any one Host would fit on the others with a new VM on a
// Host. It returns true for a Host that does not count.
func (f *Failover) Tolerates(host string, vm observed.Amount) bool {
	target, ok := f.index[host]
	if !ok {
		return true
	}
	suspect := int(f.suspect.Load())
	for n := range f.hosts {
		// The suspect first.
		if failed := (suspect + n) % len(f.hosts); !f.tolerates(failed, target, vm) {
			f.suspect.Store(int64(failed))
			return false
		}
	}
	return true
}

// tolerates reports whether the guests of a failed Host would fit on the others with a new VM on
// the target.
func (f *Failover) tolerates(failed, target int, vm observed.Amount) bool {
	if f.plans[failed] == nil {
		return false // a further VM does not change that
	}
	for _, left := range f.plans[failed] {
		if failed != target && left[target].free.Covers(vm) {
			return true
		}
		if failed == target && slices.ContainsFunc(left, func(b bin) bool { return b.fits(vm) }) {
			return true
		}
	}
	return pack(f.without(failed, target, vm))
}

// Shortfall returns the Host whose guests lack the most capacity now. It returns false if the
// guests of any one Host would fit on the others.
func (f *Failover) Shortfall() (Shortfall, bool) { return f.current() }

// ShortfallWith is Shortfall with a new VM on a Host. If the guests already do not fit without
// the VM, it returns the Shortfall without it.
func (f *Failover) ShortfallWith(host string, vm observed.Amount) (Shortfall, bool) {
	if s, ok := f.Shortfall(); ok {
		return s, true
	}
	target, ok := f.index[host]
	if !ok {
		return Shortfall{}, false
	}
	return f.shortfall(target, vm)
}

func (f *Failover) shortfall(target int, vm observed.Amount) (Shortfall, bool) {
	var all []Shortfall
	for failed := range f.hosts {
		if (target < 0 && f.plans[failed] != nil) || (target >= 0 && f.tolerates(failed, target, vm)) {
			continue
		}
		guests := f.guestsWith(failed, target, vm)
		amounts, hosts := f.without(failed, target, vm)
		s := Shortfall{Host: f.hosts[failed].name}
		for _, host := range hosts {
			s.Free = s.Free.Plus(host.free)
		}
		for _, guest := range amounts {
			s.Held = s.Held.Plus(guest)
		}
		for _, n := range unplaced(amounts, hosts) {
			s.Missing, s.Unplaced = s.Missing.Plus(guests[n].Amount), append(s.Unplaced, guests[n].vmid)
		}
		all = append(all, s)
	}
	if len(all) == 0 {
		return Shortfall{}, false
	}
	slices.SortFunc(all, func(a, b Shortfall) int { return cmp.Or(f.compare(b.Missing, a.Missing), cmp.Compare(a.Host, b.Host)) })
	for _, other := range all[1:] {
		all[0].Others = append(all[0].Others, other.Host)
	}
	return all[0], true
}
