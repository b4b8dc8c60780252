// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"cmp"
	"slices"
	"sync"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/observed"
)

// Failover returns the Failover of a Host's region and architecture. It is computed with the
// first call. It returns nil if no Snapshot lists the Host.
func (v View) Failover(region, host string) *Failover {
	if v.index == nil || v.index.hosts[region][host] == nil {
		return nil
	}
	return v.index.failovers[failoverKey{region, v.index.hosts[region][host].state.Arch}]()
}

// addFailovers adds a Failover for each architecture of a region. They are computed on first
// use, because most NodeClasses need none.
func (x *index) addFailovers(v View) {
	v.index = x
	for region, accounts := range x.hosts {
		for _, account := range accounts {
			key := failoverKey{region, account.state.Arch}
			if x.failovers[key] == nil {
				x.failovers[key] = sync.OnceValue(func() *Failover { return newFailover(v, key) })
			}
		}
	}
}

func newFailover(v View, key failoverKey) *Failover {
	f := &Failover{index: map[string]int{}}
	guests := v.committedGuests(key.region)
	for name, account := range v.index.hosts[key.region] {
		state := account.state
		switch {
		case state.Arch != key.arch, state.Has(Excluded):
		case !state.IsAvailable(Keep):
			f.Unavailable = append(f.Unavailable, name)
		default:
			f.total = f.total.Plus(state.Allocatable)
			f.hosts = append(f.hosts, failoverHost{bin: bin{free: state.Free.AtLeast(observed.Amount{}), size: state.Size}, name: name, guests: guests[name]})
		}
	}
	slices.Sort(f.Unavailable)
	slices.SortFunc(f.hosts, func(a, b failoverHost) int { return cmp.Or(f.compare(a.free, b.free), cmp.Compare(a.name, b.name)) })
	for n, host := range f.hosts {
		f.index[host.name] = n
		slices.SortFunc(host.guests, f.compareGuests)
	}
	for n := range f.hosts {
		f.plans = append(f.plans, f.plan(n))
	}
	f.current = sync.OnceValues(func() (Shortfall, bool) { return f.shortfall(-1, observed.Amount{}) })
	return f
}

// committedGuests returns the guests and Reservations of a region that count, by Host.
func (v View) committedGuests(region string) map[string][]failoverGuest {
	extra := map[int]Reservation{} // by VMID
	for _, r := range v.Reservations {
		if r.Region == region && !r.Fulfilled {
			extra[r.VMID] = r
		}
	}
	guests := map[string][]failoverGuest{}
	for vmid, guest := range v.Snapshots[region].Guests {
		amount := guest.Allocated
		if r, ok := extra[vmid]; ok && r.Host == guest.Host {
			amount = amount.AtLeast(r.Amount)
			delete(extra, vmid)
		}
		if amount != (observed.Amount{}) {
			guests[guest.Host] = append(guests[guest.Host], failoverGuest{amount, vmid})
		}
	}
	for vmid, r := range extra {
		if r.Amount != (observed.Amount{}) { // not parked
			guests[r.Host] = append(guests[r.Host], failoverGuest{r.Amount, vmid})
		}
	}
	return guests
}
