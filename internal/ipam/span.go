// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"errors"
	"fmt"
	"math/big"
	"net/netip"
	"slices"
	"strings"
)

// span is an inclusive range of addresses.
type span struct{ first, last netip.Addr }

func spanOf(p netip.Prefix) span { return span{p.Masked().Addr(), last(p)} }

func (s span) contains(a netip.Addr) bool { return !a.Less(s.first) && !s.last.Less(a) }

// size returns the number of addresses.
func (s span) size() *big.Int {
	n := numberOf(s.last)
	return n.Sub(n, numberOf(s.first)).Add(n, big.NewInt(1))
}

// without returns the up to two spans that remain after removing gap.
func (s span) without(gap span) []span {
	if gap.last.Less(s.first) || s.last.Less(gap.first) {
		return []span{s}
	}
	var left []span
	if s.first.Less(gap.first) {
		left = append(left, span{s.first, gap.first.Prev()})
	}
	if gap.last.Less(s.last) {
		left = append(left, span{gap.last.Next(), s.last})
	}
	return left
}

// mergeSpans sorts spans and joins those that overlap.
func mergeSpans(spans []span) []span {
	slices.SortFunc(spans, func(a, b span) int { return a.first.Compare(b.first) })
	var out []span
	for _, s := range spans {
		if n := len(out); n > 0 && !out[n-1].last.Less(s.first) {
			if out[n-1].last.Less(s.last) {
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
		s = span{first, last}
		if s.last.Less(s.first) {
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
	first := subnet.Masked().Addr()
	return fmt.Sprintf("%s, %s-%s or %s", first, first, last(subnet), subnet.Masked())
}
