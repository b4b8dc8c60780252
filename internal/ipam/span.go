// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// span is an inclusive range of addresses.
type span struct{ first, last number }

func spanOf(p netip.Prefix) span {
	first := numberOf(p.Masked().Addr())
	hosts := uint(p.Addr().BitLen() - p.Bits())
	mask := number{hi: ^uint64(0), lo: ^uint64(0)}
	switch {
	case hosts >= 128:
	case hosts >= 64:
		mask = number{hi: 1<<(hosts-64) - 1, lo: ^uint64(0)}
	default:
		mask = number{lo: 1<<hosts - 1}
	}
	return span{first, first.plus(mask)}
}

func (s span) contains(n number) bool { return !n.less(s.first) && !s.last.less(n) }

// size returns the number of addresses. It overflows for the whole IPv6 space.
func (s span) size() number { return s.last.minus(s.first).next() }

// without returns the up to two spans that remain after removing gap.
func (s span) without(gap span) []span {
	if gap.last.less(s.first) || s.last.less(gap.first) {
		return []span{s}
	}
	var left []span
	if s.first.less(gap.first) {
		left = append(left, span{s.first, gap.first.previous()})
	}
	if gap.last.less(s.last) {
		left = append(left, span{gap.last.next(), s.last})
	}
	return left
}

// mergeSpans sorts spans and joins those that overlap.
func mergeSpans(spans []span) []span {
	slices.SortFunc(spans, func(a, b span) int {
		return cmp.Or(cmp.Compare(a.first.hi, b.first.hi), cmp.Compare(a.first.lo, b.first.lo))
	})
	var out []span
	for _, s := range spans {
		if n := len(out); n > 0 && !out[n-1].last.less(s.first) {
			if out[n-1].last.less(s.last) {
				out[n-1].last = s.last
			}
			continue
		}
		out = append(out, s)
	}
	return out
}

// parseSpan parses "192.168.0.10", "192.168.0.10-192.168.0.20" or "192.168.0.16/28". All
// addresses must be in the subnet.
func parseSpan(text string, subnet netip.Prefix) (span, error) {
	var s span
	if prefix, err := netip.ParsePrefix(text); err == nil {
		if prefix != prefix.Masked() {
			return span{}, fmt.Errorf("is not a subnet: use %s", prefix.Masked())
		}
		if prefix.Addr().Is4() != subnet.Addr().Is4() {
			return span{}, fmt.Errorf("has a different address family than %s", subnet)
		}
		s = spanOf(prefix)
	} else {
		from, to, isRange := strings.Cut(text, "-")
		if !isRange {
			to = from
		}
		first, err := parseAddress(from, subnet)
		if err != nil {
			return span{}, err
		}
		last, err := parseAddress(to, subnet)
		if err != nil {
			return span{}, err
		}
		s = span{numberOf(first), numberOf(last)}
		if s.last.less(s.first) {
			return span{}, fmt.Errorf("ends before it begins: write %s-%s", last, first)
		}
	}
	whole := spanOf(subnet)
	if !whole.contains(s.first) || !whole.contains(s.last) {
		return span{}, fmt.Errorf("is not inside %s", subnet)
	}
	return s, nil
}

func parseAddress(text string, subnet netip.Prefix) (netip.Addr, error) {
	addr, err := netip.ParseAddr(strings.TrimSpace(text))
	if err != nil || addr.Zone() != "" || addr.Is4In6() {
		return netip.Addr{}, errors.New("is not an address, range or subnet: want a format like " + example(subnet))
	}
	if addr.Is4() != subnet.Addr().Is4() {
		return netip.Addr{}, fmt.Errorf("has a different address family than %s", subnet)
	}
	return addr, nil
}

// example returns valid list entries for the subnet.
func example(subnet netip.Prefix) string {
	whole, is4 := spanOf(subnet), subnet.Addr().Is4()
	first, last := whole.first.address(is4), whole.last.address(is4)
	return fmt.Sprintf("%s, %s-%s or %s", first, first, last, subnet.Masked())
}
