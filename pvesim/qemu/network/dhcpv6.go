// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package network

import (
	"hash/fnv"
	"net"
	"net/netip"

	"github.com/insomniacslk/dhcp/dhcpv6"
	"github.com/insomniacslk/dhcp/iana"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv6"
)

const dhcpv6ServerPort = 547

// serveDHCPv6 starts the DHCPv6 server.
func (g *gateway) serveDHCPv6() error {
	servers := tcpip.AddrFrom16(netip.MustParseAddr("ff02::1:2").As16())
	if err := g.stack.JoinGroup(ipv6.ProtocolNumber, nic, servers); err != nil {
		return stackError("joining the group of DHCPv6 servers", err)
	}
	return g.listenUDP(netip.AddrPortFrom(netip.IPv6Unspecified(), dhcpv6ServerPort), g.answerDHCPv6)
}

// answerDHCPv6 answers a DHCPv6 message.
func (g *gateway) answerDHCPv6(packet []byte, from net.Addr) ([]byte, net.Addr) {
	m, err := dhcpv6.MessageFromBytes(packet)
	if err != nil {
		return nil, nil
	}
	server := &dhcpv6.DUIDLL{HWType: iana.HWTypeEthernet, LinkLayerAddr: net.HardwareAddr(gatewayMAC)}
	if id := m.Options.ServerID(); id != nil && !id.Equal(server) {
		return nil, nil // the guest selected another server
	}
	answer := dhcpv6.NewReplyFromMessage
	if m.MessageType == dhcpv6.MessageTypeSolicit {
		answer = dhcpv6.NewAdvertiseFromSolicit
	}
	reply, err := answer(m, dhcpv6.WithServerID(server), dhcpv6.WithDNS(g.config.Gateway6.Addr().AsSlice()))
	if err != nil {
		return nil, nil // not a message to servers, or without client identifier
	}
	if m.MessageType == dhcpv6.MessageTypeConfirm || m.MessageType == dhcpv6.MessageTypeRelease {
		reply.AddOption(&dhcpv6.OptStatusCode{StatusCode: iana.StatusSuccess})
		return reply.ToBytes(), from
	}
	for _, request := range m.Options.IANA() {
		address := &dhcpv6.OptIAAddress{
			IPv6Addr: g.address6(m.Options.ClientID(), request.IaId).AsSlice(), PreferredLifetime: leaseTime, ValidLifetime: leaseTime,
		}
		lease := &dhcpv6.OptIANA{IaId: request.IaId, T1: leaseTime / 2, T2: leaseTime * 4 / 5}
		lease.Options.Add(address)
		reply.AddOption(lease)
	}
	return reply.ToBytes(), from
}

// address6 returns the address of a client. It depends on the identifiers of client and
// interface only: 64 bits are enough without a table of leases.
func (g *gateway) address6(client dhcpv6.DUID, iaid [4]byte) netip.Addr {
	hash := fnv.New64a()
	_, _ = hash.Write(client.ToBytes())
	_, _ = hash.Write(iaid[:])
	a := g.config.Gateway6.Addr().As16()
	return netip.AddrFrom16([16]byte(hash.Sum(a[:8:8])))
}
