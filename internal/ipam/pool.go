// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"fmt"
	"math/big"
	"net/netip"
	"slices"
)

// Spec describes a pool as written in the API.
type Spec struct {
	// CIDR is a subnet (192.168.0.0/24), or the address of one host with its prefix length
	// (192.168.0.5/24), which is a pool for exactly one VM.
	CIDR string
	// Ranges limit the pool to parts of the subnet; empty means all of it.
	Ranges []string
	// Exclude removes parts of the ranges.
	Exclude []string
	// Gateway is never assigned; empty means none.
	Gateway string
}

// Pool contains the addresses of one subnet that may be assigned to VMs. The zero value
// contains none.
type Pool struct {
	subnet  netip.Prefix
	gateway netip.Addr
	spans   []span
	size    *big.Int
}

// Minimum prefix lengths. A larger subnet is probably a typo.
const (
	minBits4 = 8
	minBits6 = 32
)

// NewPool returns the pool for a Spec. Errors start with the name of the invalid field.
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
	if p.size.Sign() == 0 {
		return Pool{}, fmt.Errorf("cidr %s has no address left for a VM: the network, broadcast and gateway addresses and the exclusions cover all of it", p.subnet)
	}
	return p, nil
}

func parseCIDR(text string) (netip.Prefix, error) {
	const want = "want a subnet such as 192.168.0.0/24 or 2001:db8::/64"
	prefix, err := netip.ParsePrefix(text)
	if err != nil || prefix.Addr().Is4In6() {
		return netip.Prefix{}, fmt.Errorf("cidr %q is not a subnet: %s", text, want)
	}
	minBits := minBits6
	if prefix.Addr().Is4() {
		minBits = minBits4
	}
	addr := prefix.Addr()
	switch {
	case prefix.Bits() < minBits:
		return netip.Prefix{}, fmt.Errorf("cidr %q is too large: want a prefix of /%d or longer", text, minBits)
	case addr.IsUnspecified(), addr.IsLoopback(), addr.IsMulticast(), addr.IsLinkLocalUnicast():
		return netip.Prefix{}, fmt.Errorf("cidr %q contains no unicast addresses for VMs: %s", text, want)
	}
	return prefix, nil
}

func parseGateway(text string, prefix netip.Prefix) (netip.Addr, error) {
	if text == "" {
		return netip.Addr{}, nil
	}
	gateway, err := netip.ParseAddr(text)
	if err != nil || gateway.Zone() != "" || gateway.Is4In6() {
		return netip.Addr{}, fmt.Errorf("gateway %q is not an address: want one without a prefix, such as %s", text, prefix.Masked().Addr().Next())
	}
	subnet := prefix.Masked()
	if gateway.Is4() != prefix.Addr().Is4() {
		return netip.Addr{}, fmt.Errorf("gateway %s has a different address family than %s", gateway, subnet)
	}
	if prefix.IsSingleIP() || (gateway.Is6() && gateway.IsLinkLocalUnicast()) {
		// A single address has its gateway elsewhere on the link, and IPv6 routers
		// announce themselves with link-local addresses.
		return gateway, nil
	}
	switch {
	case !subnet.Contains(gateway):
		return netip.Addr{}, fmt.Errorf("gateway %s is not inside %s: VMs could not reach it", gateway, subnet)
	case subnet.Addr().Is4() && subnet.Bits() < 31 && (gateway == subnet.Addr() || gateway == last(subnet)):
		return netip.Addr{}, fmt.Errorf("gateway %s is the network or the broadcast address of %s", gateway, subnet)
	}
	return gateway, nil
}

func (p *Pool) setRanges(spec Spec, prefix netip.Prefix) error {
	if prefix != p.subnet {
		if len(spec.Ranges) > 0 {
			return fmt.Errorf("cidr %s is the address of one host and cannot have ranges: use the subnet %s", prefix, p.subnet)
		}
		p.setSpans([]span{{prefix.Addr(), prefix.Addr()}})
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

// reserved returns the addresses of the subnet that no host may have: the network and broadcast
// addresses, or the all-zero address of an IPv6 subnet.
func (p *Pool) reserved() []netip.Addr {
	switch hosts := p.subnet.Addr().BitLen() - p.subnet.Bits(); {
	case hosts <= 1:
		return nil
	case p.subnet.Addr().Is4():
		return []netip.Addr{p.subnet.Addr(), last(p.subnet)}
	}
	return []netip.Addr{p.subnet.Addr()}
}

// IsReserved reports whether no host of the subnet may have the address.
func (p *Pool) IsReserved(a netip.Addr) bool { return slices.Contains(p.reserved(), a) }

// excludeReserved excludes the addresses that no VM may have.
func (p *Pool) excludeReserved() {
	for _, n := range p.reserved() {
		p.exclude(span{n, n})
	}
	if p.gateway.IsValid() {
		p.exclude(span{p.gateway, p.gateway})
	}
}

func (p *Pool) exclude(gap span) {
	var left []span
	for _, s := range p.spans {
		left = append(left, s.without(gap)...)
	}
	p.setSpans(left)
}

// setSpans replaces the addresses of the pool.
func (p *Pool) setSpans(spans []span) {
	p.spans, p.size = spans, new(big.Int)
	for _, s := range spans {
		p.size.Add(p.size, s.size())
	}
}

// Subnet returns the subnet of the addresses.
func (p Pool) Subnet() netip.Prefix { return p.subnet }

// Gateway returns the gateway of the subnet, or the zero Addr.
func (p Pool) Gateway() netip.Addr { return p.gateway }

// Size returns the approximate number of addresses; exact up to 2^53.
func (p Pool) Size() float64 {
	if p.size == nil {
		return 0
	}
	size, _ := new(big.Float).SetInt(p.size).Float64()
	return size
}

// Contains reports whether the pool contains the address.
func (p Pool) Contains(a netip.Addr) bool {
	return slices.ContainsFunc(p.spans, func(s span) bool { return s.contains(a) })
}
