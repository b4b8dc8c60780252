// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"crypto/sha256"
	"encoding/binary"
	"iter"
	"net/netip"
)

// State of an address, as its giver knows it.
type State int

const (
	// Free addresses may be given.
	Free State = iota
	// Resting addresses came back a moment ago, and are given only when no other is
	// left: neighbours may still remember their last owner.
	RecentlyReleased
	// Taken addresses are never given.
	Taken
)

// Pick chooses an address: the one that the key leads to, else the next that is free.
// False means that all are taken.
func (p Pool) Pick(key string, state func(netip.Addr) State) (netip.Addr, bool) {
	if p.size.isZero() {
		return netip.Addr{}, false
	}
	is4 := p.subnet.Addr().Is4()
	var resting netip.Addr
	for n := range p.startingAt(hash(key).modulo(p.size)) {
		addr := n.address(is4)
		switch state(addr) {
		case Free:
			return addr, true
		case RecentlyReleased:
			if !resting.IsValid() {
				resting = addr
			}
		case Taken:
		}
	}
	return resting, resting.IsValid()
}

// from yields every address once, beginning with that position.
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

// Used counts the addresses of the pool among those given, each once.
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
