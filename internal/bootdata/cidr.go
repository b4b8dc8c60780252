// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package bootdata

import (
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/netip"
)

// maxSLAACPrefix leaves 16 bits for the interface identifier. With fewer bits, two
// interfaces of one vendor could get the same address.
const maxSLAACPrefix = 112

var errBadCIDR = errors.New("the argument is not an address in CIDR form, for example 192.168.0.0/24")

// cidrHost returns the address of a CIDR without its prefix length, or with a number
// that host of the network, counted from the end if negative.
func cidrHost(cidr string, number ...int64) (string, error) {
	prefix, err := netip.ParsePrefix(cidr)
	if err != nil {
		return "", errBadCIDR
	}
	if len(number) == 0 {
		return prefix.Addr().String(), nil
	}
	network := prefix.Masked().Addr()
	size := new(big.Int).Lsh(big.NewInt(1), uint(network.BitLen()-prefix.Bits()))
	host := big.NewInt(number[0])
	if host.Sign() < 0 {
		host.Add(host, size)
	}
	if host.Sign() < 0 || host.Cmp(size) >= 0 {
		return "", fmt.Errorf("a /%d network has no host number %d", prefix.Bits(), number[0])
	}
	sum := new(big.Int).SetBytes(network.AsSlice())
	sum.Add(sum, host)
	addr, ok := netip.AddrFromSlice(sum.FillBytes(make([]byte, network.BitLen()/8)))
	if !ok {
		return "", errBadCIDR
	}
	return addr.String(), nil
}

// cidrSLAAC returns the address, with the prefix length, that an interface configures in
// an IPv6 network: the modified EUI-64 of its MAC (RFC 4291, appendix A).
func cidrSLAAC(mac, cidr string) (string, error) {
	hardware, err := net.ParseMAC(mac)
	if err != nil || len(hardware) != 6 {
		return "", errors.New("the first argument is not a MAC address")
	}
	prefix, err := netip.ParsePrefix(cidr)
	if err != nil {
		return "", errBadCIDR
	}
	if !prefix.Addr().Is6() || prefix.Addr().Is4In6() || prefix.Bits() > maxSLAACPrefix {
		return "", fmt.Errorf("the second argument must be an IPv6 network with a prefix of at most %d bits", maxSLAACPrefix)
	}
	identifier := [16]byte{
		8: hardware[0] ^ 0x02, 9: hardware[1], 10: hardware[2], 11: 0xff,
		12: 0xfe, 13: hardware[3], 14: hardware[4], 15: hardware[5],
	}
	address := prefix.Masked().Addr().As16()
	for bit := prefix.Bits(); bit < 128; bit++ {
		mask := byte(0x80) >> (bit % 8)
		address[bit/8] |= identifier[bit/8] & mask
	}
	return netip.PrefixFrom(netip.AddrFrom16(address), prefix.Bits()).String(), nil
}
