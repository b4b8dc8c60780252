// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"encoding/binary"
	"math/bits"
	"net/netip"
)

// number is an address as a 128-bit integer.
type number struct{ hi, lo uint64 }

func numberOf(a netip.Addr) number {
	if a.Is4() {
		b := a.As4()
		return number{lo: uint64(binary.BigEndian.Uint32(b[:]))}
	}
	b := a.As16()
	return number{hi: binary.BigEndian.Uint64(b[:8]), lo: binary.BigEndian.Uint64(b[8:])}
}

// address is the inverse of numberOf. The number does not include the address family.
func (n number) address(is4 bool) netip.Addr {
	var b [16]byte
	binary.BigEndian.PutUint64(b[:8], n.hi)
	binary.BigEndian.PutUint64(b[8:], n.lo)
	if is4 {
		return netip.AddrFrom4([4]byte(b[12:]))
	}
	return netip.AddrFrom16(b)
}

func (n number) plus(m number) number {
	lo, carry := bits.Add64(n.lo, m.lo, 0)
	hi, _ := bits.Add64(n.hi, m.hi, carry)
	return number{hi, lo}
}

func (n number) minus(m number) number {
	lo, borrow := bits.Sub64(n.lo, m.lo, 0)
	hi, _ := bits.Sub64(n.hi, m.hi, borrow)
	return number{hi, lo}
}

func (n number) less(m number) bool { return n.hi < m.hi || (n.hi == m.hi && n.lo < m.lo) }

func (n number) next() number     { return n.plus(number{lo: 1}) }
func (n number) previous() number { return n.minus(number{lo: 1}) }
func (n number) isZero() bool     { return n == number{} }

// modulo returns the remainder of n divided by m, which must not be zero.
func (n number) modulo(m number) number {
	if m.hi == 0 {
		_, remainder := bits.Div64(n.hi%m.lo, n.lo, m.lo)
		return number{lo: remainder}
	}
	// m has more than 64 bits, so long division needs at most 64 steps.
	shift := bits.LeadingZeros64(m.hi) - bits.LeadingZeros64(n.hi)
	for ; shift >= 0; shift-- {
		if part := m.shiftLeft(uint(shift)); !n.less(part) {
			n = n.minus(part)
		}
	}
	return n
}

// shiftLeft shifts by less than 64 bits.
func (n number) shiftLeft(by uint) number {
	return number{hi: n.hi<<by | n.lo>>(64-by), lo: n.lo << by}
}

// float returns the approximate value; exact up to 2^53.
func (n number) float() float64 { return float64(n.hi)*(1<<64) + float64(n.lo) }
