// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"fmt"
	"net/netip"
)

// Spec describes a pool as people write it.
type Spec struct {
	// CIDR is a subnet (192.168.0.0/24), or the address of one host with its prefix
	// (192.168.0.5/24): a pool for exactly one VM.
	CIDR string
	// Ranges limit the pool to parts of the subnet; empty = all of it.
	Ranges []string
	// Exclude takes parts out again.
	Exclude []string
	// Gateway is never given; empty = none.
	Gateway string
}

// Pool is the addresses of one subnet that VMs may be given. The zero value has none.
type Pool struct {
	subnet  netip.Prefix
	gateway netip.Addr
	spans   []span
	size    number
}

// The shortest prefixes that make a pool: a larger "subnet" is a typing error.
const (
	minBits4 = 8
	minBits6 = 32
)

// NewPool checks a description. The error begins with the name of the field.
func NewPool(spec Spec) (Pool, error) {
	prefix, err := parseCIDR(spec.CIDR)
	if err != nil {
		return Pool{}, err
	}
	p := Pool{subnet: prefix.Masked()}
	if p.gateway, err = parseGateway(spec.Gateway, prefix); err != nil {
		return Pool{}, err
	}
	if err := p.setRanges(spec, prefix); err != nil {
		return Pool{}, err
	}
	for i, text := range spec.Exclude {
		gap, err := parseSpan(text, p.subnet)
		if err != nil {
			return Pool{}, fmt.Errorf("exclude[%d] %q %w", i, text, err)
		}
		p.exclude(gap)
	}
	p.excludeReserved()
	if p.size.isZero() {
		return Pool{}, fmt.Errorf("cidr %s has no address left for a VM: the network, the broadcast and the gateway address and the exclusions take all", p.subnet)
	}
	return p, nil
}

func parseCIDR(text string) (netip.Prefix, error) {
	const want = "want a subnet such as 192.168.0.0/24 or 2001:db8::/64"
	prefix, err := netip.ParsePrefix(text)
	if err != nil || prefix.Addr().Is4In6() {
		return netip.Prefix{}, fmt.Errorf("cidr %q is none: %s", text, want)
	}
	shortest := minBits6
	if prefix.Addr().Is4() {
		shortest = minBits4
	}
	addr := prefix.Addr()
	switch {
	case prefix.Bits() < shortest:
		return netip.Prefix{}, fmt.Errorf("cidr %q is no subnet of a network: want a prefix of /%d or longer", text, shortest)
	case addr.IsUnspecified(), addr.IsLoopback(), addr.IsMulticast(), addr.IsLinkLocalUnicast():
		return netip.Prefix{}, fmt.Errorf("cidr %q holds no addresses that a VM can be reached at: %s", text, want)
	}
	return prefix, nil
}

func parseGateway(text string, prefix netip.Prefix) (netip.Addr, error) {
	if text == "" {
		return netip.Addr{}, nil
	}
	gateway, err := netip.ParseAddr(text)
	if err != nil || gateway.Zone() != "" || gateway.Is4In6() {
		return netip.Addr{}, fmt.Errorf("gateway %q is no address: want one without a prefix, such as %s", text, spanOf(prefix).first.next().address(prefix.Addr().Is4()))
	}
	subnet := prefix.Masked()
	if gateway.Is4() != prefix.Addr().Is4() {
		return netip.Addr{}, fmt.Errorf("gateway %s is not of the family of %s", gateway, subnet)
	}
	if prefix.IsSingleIP() || (gateway.Is6() && gateway.IsLinkLocalUnicast()) {
		// A lone host has its gateway elsewhere on the link, and routers of IPv6
		// announce themselves with link-local addresses.
		return gateway, nil
	}
	whole, n := spanOf(subnet), numberOf(gateway)
	switch {
	case !whole.contains(n):
		return netip.Addr{}, fmt.Errorf("gateway %s is not inside %s: VMs could not reach it", gateway, subnet)
	case subnet.Addr().Is4() && subnet.Bits() < 31 && (n == whole.first || n == whole.last):
		return netip.Addr{}, fmt.Errorf("gateway %s is the network or the broadcast address of %s", gateway, subnet)
	}
	return gateway, nil
}

func (p *Pool) setRanges(spec Spec, prefix netip.Prefix) error {
	if prefix != p.subnet {
		if len(spec.Ranges) > 0 {
			return fmt.Errorf("cidr %s is the address of one host and takes no ranges: the subnet that it lies in is %s", prefix, p.subnet)
		}
		host := numberOf(prefix.Addr())
		p.setSpans([]span{{host, host}})
		return nil
	}
	if len(spec.Ranges) == 0 {
		p.setSpans([]span{spanOf(p.subnet)})
		return nil
	}
	var spans []span
	for i, text := range spec.Ranges {
		s, err := parseSpan(text, p.subnet)
		if err != nil {
			return fmt.Errorf("ranges[%d] %q %w", i, text, err)
		}
		spans = append(spans, s)
	}
	p.setSpans(mergeSpans(spans))
	return nil
}

// dropReserved takes out what no host may have.
func (p *Pool) excludeReserved() {
	whole := spanOf(p.subnet)
	hosts := p.subnet.Addr().BitLen() - p.subnet.Bits()
	if hosts > 1 {
		p.exclude(span{whole.first, whole.first})
		if p.subnet.Addr().Is4() {
			p.exclude(span{whole.last, whole.last})
		}
	}
	if p.gateway.IsValid() && p.gateway.Is4() == p.subnet.Addr().Is4() {
		n := numberOf(p.gateway)
		p.exclude(span{n, n})
	}
}

func (p *Pool) exclude(gap span) {
	var left []span
	for _, s := range p.spans {
		left = append(left, s.without(gap)...)
	}
	p.setSpans(left)
}

// keep makes these the addresses of the pool. The size of all of them fits a number,
// since no subnet is shorter than shortest6.
func (p *Pool) setSpans(spans []span) {
	p.spans, p.size = spans, number{}
	for _, s := range spans {
		p.size = p.size.plus(s.size())
	}
}

// Subnet that the addresses are in.
func (p Pool) Subnet() netip.Prefix { return p.subnet }

// Gateway of the subnet; not valid where there is none.
func (p Pool) Gateway() netip.Addr { return p.gateway }

// Size is how many addresses the pool has, as near as a float comes.
func (p Pool) Size() float64 { return p.size.float() }

// Contains tells whether the pool may give the address.
func (p Pool) Contains(a netip.Addr) bool {
	if !a.IsValid() || a.Is4() != p.subnet.Addr().Is4() {
		return false
	}
	n := numberOf(a)
	for _, s := range p.spans {
		if s.contains(n) {
			return true
		}
	}
	return false
}

// Overlaps tells whether both pools could give the same address.
func (p Pool) Overlaps(q Pool) bool {
	if p.subnet.Addr().Is4() != q.subnet.Addr().Is4() {
		return false
	}
	for _, s := range p.spans {
		for _, t := range q.spans {
			if !s.last.less(t.first) && !t.last.less(s.first) {
				return true
			}
		}
	}
	return false
}
