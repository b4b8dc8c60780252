// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/observed"
)

// packingSteps limits the search for a packing. More than one pass over all guests and Hosts
// is needed only if the guests barely fit, so most searches end long before.
const packingSteps = 10_000

// bin is the capacity of a Host for more guests. A guest must fit into what is free, and
// cannot be larger than the Host.
type bin struct{ free, size observed.Amount }

func (b bin) fits(guest observed.Amount) bool { return b.free.Covers(guest) && b.size.Covers(guest) }

// packing is a search for Hosts that guests fit on.
type packing struct {
	guests []observed.Amount
	hosts  []bin
	// rest is what the guest at an index and all later ones need.
	rest []observed.Amount
	// chosen are the Hosts of the guests so far.
	chosen []int
	steps  int
}

// pack places guests on Hosts and reduces what these have free. It returns false if the guests
// do not fit, or if no placement was found within the limit of steps. A guest is placed on the
// first Host that fits, so sort guests by decreasing size.
func pack(guests []observed.Amount, hosts []bin) bool {
	p := packing{
		guests: guests, hosts: hosts, rest: make([]observed.Amount, len(guests)+1), chosen: make([]int, len(guests)),
		steps: packingSteps + len(guests)*len(hosts),
	}
	for n := len(guests) - 1; n >= 0; n-- {
		p.rest[n] = p.rest[n+1].Plus(guests[n])
	}
	var free observed.Amount
	for _, host := range hosts {
		free = free.Plus(host.free)
	}
	return p.place(0, free)
}

// place places the guests from an index on. free is what all Hosts have left together.
func (p *packing) place(n int, free observed.Amount) bool {
	if n == len(p.guests) {
		return true
	}
	if !free.Covers(p.rest[n]) {
		return false
	}
	guest, first := p.guests[n], 0
	if n > 0 && guest == p.guests[n-1] {
		first = p.chosen[n-1] // to exchange equal guests makes no difference
	}
	var failed bin
	retry := false
	for h := first; h < len(p.hosts); h++ {
		if p.steps--; p.steps < 0 {
			return false
		}
		host := p.hosts[h]
		if !host.fits(guest) || (retry && host == failed) {
			continue
		}
		p.hosts[h].free, p.chosen[n] = host.free.Minus(guest), h
		if p.place(n+1, free.Minus(guest)) {
			return true
		}
		p.hosts[h], failed, retry = host, host, true
	}
	return false
}

// unplaced returns the indexes of the guests that fit on no Host, if each is placed on the
// first Host that fits.
func unplaced(guests []observed.Amount, hosts []bin) []int {
	var without []int
next:
	for n, guest := range guests {
		for h := range hosts {
			if hosts[h].fits(guest) {
				hosts[h].free = hosts[h].free.Minus(guest)
				continue next
			}
		}
		without = append(without, n)
	}
	return without
}
