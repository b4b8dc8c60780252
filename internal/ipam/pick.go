// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"crypto/sha256"
	"encoding/binary"
	"iter"
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
	if p.size.isZero() {
		return netip.Addr{}, false
	}
	is4 := p.subnet.Addr().Is4()
	var released netip.Addr
	for n := range p.startingAt(hash(key).modulo(p.size)) {
		addr := n.address(is4)
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
func (p Pool) startingAt(position number) iter.Seq[number] {
	return func(yield func(number) bool) {
		at := 0
		for !position.less(p.spans[at].size()) {
			position = position.minus(p.spans[at].size())
			at++
		}
		begin := p.spans[at].first.plus(position)
		if !yieldSpan(span{begin, p.spans[at].last}, yield) {
			return
		}
		for i := 1; i < len(p.spans); i++ {
			if !yieldSpan(p.spans[(at+i)%len(p.spans)], yield) {
				return
			}
		}
		if p.spans[at].first.less(begin) {
			yieldSpan(span{p.spans[at].first, begin.previous()}, yield)
		}
	}
}

func yieldSpan(s span, yield func(number) bool) bool {
	for n := s.first; ; n = n.next() {
		if !yield(n) {
			return false
		}
		if n == s.last {
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

func hash(key string) number {
	sum := sha256.Sum256([]byte(key))
	return number{hi: binary.BigEndian.Uint64(sum[:8]), lo: binary.BigEndian.Uint64(sum[8:16])}
}
