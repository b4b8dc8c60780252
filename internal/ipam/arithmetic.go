// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"math/big"
	"net/netip"
)

func numberOf(a netip.Addr) *big.Int { return new(big.Int).SetBytes(a.AsSlice()) }

// plus returns the address that is n after another one. It must exist.
func plus(a netip.Addr, n *big.Int) netip.Addr {
	bytes := make([]byte, a.BitLen()/8)
	sum, _ := netip.AddrFromSlice(n.Add(numberOf(a), n).FillBytes(bytes))
	return sum
}

// last returns the last address of a subnet.
func last(p netip.Prefix) netip.Addr {
	size := new(big.Int).Lsh(big.NewInt(1), uint(p.Addr().BitLen()-p.Bits()))
	return plus(p.Masked().Addr(), size.Sub(size, big.NewInt(1)))
}
