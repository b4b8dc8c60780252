// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"crypto/sha256"
	"iter"
	"math/big"
	"net/netip"
)

// State is whether an address may be assigned.
type State int

const (
	// Free addresses may be assigned.
	Free State = iota
	// RecentlyReleased addresses are assigned only if no address is Free, because neighbors
	// may still cache the previous MAC.
	RecentlyReleased
	// Taken addresses are never assigned.
	Taken
)

// StateFunc returns the State of an address. Pick calls it for one address after the other
// while the caller may hold a lock, so it must not block.
type StateFunc func(netip.Addr) State

// Pick returns the address that the key determines, or the next one that is free. It
// returns false if all are taken.
func (p Pool) Pick(key string, state StateFunc) (netip.Addr, bool) {
	if len(p.spans) == 0 {
		return netip.Addr{}, false
	}
	sum, start := sha256.Sum256([]byte(key)), new(big.Int)
	var released netip.Addr
	for addr := range p.startingAt(start.Mod(start.SetBytes(sum[:]), p.size)) {
		switch state(addr) {
		case Free:
			return addr, true
		case RecentlyReleased:
			if !released.IsValid() {
				released = addr
			}
		case Taken:
		}
	}
	return released, released.IsValid()
}

// startingAt yields every address once, starting with that position.
func (p Pool) startingAt(position *big.Int) iter.Seq[netip.Addr] {
	return func(yield func(netip.Addr) bool) {
		at := 0
		for position.Cmp(p.spans[at].size()) >= 0 {
			position.Sub(position, p.spans[at].size())
			at++
		}
		begin := plus(p.spans[at].first, position)
		if !yieldSpan(span{begin, p.spans[at].last}, yield) {
			return
		}
		for i := 1; i < len(p.spans); i++ {
			if !yieldSpan(p.spans[(at+i)%len(p.spans)], yield) {
				return
			}
		}
		if p.spans[at].first.Less(begin) {
			yieldSpan(span{p.spans[at].first, begin.Prev()}, yield)
		}
	}
}

func yieldSpan(s span, yield func(netip.Addr) bool) bool {
	for a := s.first; ; a = a.Next() {
		if !yield(a) {
			return false
		}
		if a == s.last {
			return true
		}
	}
}

// Used returns how many of the addresses are in the pool, ignoring duplicates.
func (p Pool) Used(addresses iter.Seq[netip.Addr]) int {
	seen := map[netip.Addr]struct{}{}
	for a := range addresses {
		if p.Contains(a) {
			seen[a] = struct{}{}
		}
	}
	return len(seen)
}
