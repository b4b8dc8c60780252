// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package network

import (
	"encoding/binary"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip/header"
)

const (
	// advertiseInterval is the time between router advertisements without solicitation.
	advertiseInterval = 5 * time.Minute
	// routerLifetime is how long guests keep the gateway as default router, in seconds.
	routerLifetime = 9000
	// infinite is the lifetime of prefix and DNS server.
	infinite = 0xffffffff
	// prefixLength is the only one that guests derive addresses from.
	prefixLength = 64

	onLink, autonomous = 0x80, 0x40 // flags of a prefix
	managed            = 0x80       // flag of an advertisement: use DHCPv6
)

func flag(set bool, bit byte) byte {
	if set {
		return bit
	}
	return 0
}

// advertise sends router advertisements until the Network is closed.
func (g *gateway) advertise() {
	ticker := time.NewTicker(advertiseInterval)
	defer ticker.Stop()
	for {
		g.segment.deliver(g.port, g.routerAdvertisement())
		select {
		case <-g.segment.network.ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// isRouterSolicitation reports whether a frame asks for a router advertisement.
func isRouterSolicitation(frame []byte) bool {
	if len(frame) < header.EthernetMinimumSize+header.IPv6MinimumSize+header.ICMPv6MinimumSize {
		return false
	}
	ip := header.IPv6(frame[header.EthernetMinimumSize:])
	return header.Ethernet(frame).Type() == header.IPv6ProtocolNumber && ip.NextHeader() == uint8(header.ICMPv6ProtocolNumber) &&
		header.ICMPv6(frame[header.EthernetMinimumSize+header.IPv6MinimumSize:]).Type() == header.ICMPv6RouterSolicit
}

// routerAdvertisement returns a frame to all nodes with the prefix, the gateway's link
// address, and the gateway as default router and DNS server.
func (g *gateway) routerAdvertisement() []byte {
	gateway := g.config.Gateway6
	network := gateway.Masked().Addr().As16()
	prefix := make([]byte, 0, 30) // RFC 4861, section 4.6.2, without type and length
	prefix = append(prefix, prefixLength, onLink|flag(g.config.SLAAC, autonomous))
	prefix = binary.BigEndian.AppendUint32(prefix, infinite) // valid
	prefix = binary.BigEndian.AppendUint32(prefix, infinite) // preferred
	prefix = append(append(prefix, 0, 0, 0, 0), network[:]...)
	dns := binary.BigEndian.AppendUint32([]byte{0, 0}, infinite) // RFC 8106, section 5.1
	dns = append(dns, gateway.Addr().AsSlice()...)
	options := header.NDPOptionsSerializer{
		header.NDPSourceLinkLayerAddressOption(gatewayMAC),
		header.NDPPrefixInformation(prefix),
		header.NDPRecursiveDNSServer(dns),
	}

	const icmpOffset = header.EthernetMinimumSize + header.IPv6MinimumSize
	const length = header.ICMPv6HeaderSize + header.NDPRAMinimumSize + 8 + 32 + 24 // the options
	frame := make([]byte, icmpOffset+length)
	source, to := header.LinkLocalAddr(gatewayMAC), header.IPv6AllNodesMulticastAddress
	header.Ethernet(frame).Encode(&header.EthernetFields{
		SrcAddr: gatewayMAC, DstAddr: header.EthernetAddressFromMulticastIPv6Address(to), Type: header.IPv6ProtocolNumber,
	})
	header.IPv6(frame[header.EthernetMinimumSize:]).Encode(&header.IPv6Fields{
		PayloadLength: length, TransportProtocol: header.ICMPv6ProtocolNumber, HopLimit: header.NDPHopLimit, SrcAddr: source, DstAddr: to,
	})
	icmp := header.ICMPv6(frame[icmpOffset:])
	icmp.SetType(header.ICMPv6RouterAdvert)
	advert := header.NDPRouterAdvert(icmp.MessageBody())
	advert[1] = flag(g.config.DHCPv6, managed)
	binary.BigEndian.PutUint16(advert[2:], routerLifetime)
	advert.Options().Serialize(options)
	icmp.SetChecksum(header.ICMPv6Checksum(header.ICMPv6ChecksumParams{Header: icmp, Src: source, Dst: to}))
	return frame
}
