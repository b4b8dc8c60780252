// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package network

import (
	"encoding/binary"
	"hash/fnv"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
)

const (
	dhcpServerPort = 67
	leaseTime      = 24 * time.Hour
)

// answerDHCP answers a DHCP message. Leases depend only on the MAC address, because a
// client identifier changes with each image.
func (g *gateway) answerDHCP(packet []byte, _ net.Addr) ([]byte, net.Addr) {
	m, err := dhcpv4.FromBytes(packet)
	if err != nil || m.OpCode != dhcpv4.OpcodeBootRequest || len(m.ClientHWAddr) != len(mac{}) {
		return nil, nil
	}
	server := g.config.Gateway4.Addr()
	if id, ok := netip.AddrFromSlice(m.ServerIdentifier()); ok && id.Unmap() != server {
		return nil, nil // the guest selected another server
	}
	reply, err := dhcpv4.NewReplyFromRequest(m, dhcpv4.WithServerIP(server.AsSlice()), dhcpv4.WithOption(dhcpv4.OptServerIdentifier(server.AsSlice())))
	if err != nil {
		return nil, nil
	}
	var lease netip.Addr
	switch m.MessageType() {
	case dhcpv4.MessageTypeDiscover, dhcpv4.MessageTypeRequest:
		if lease = g.leases.get(mac(m.ClientHWAddr)); !lease.IsValid() {
			g.segment.network.opts.Log.Info("no free DHCP address", "network", g.segment.name, "mac", m.ClientHWAddr.String())
			return nil, nil
		}
		reply.YourIPAddr = lease.AsSlice()
		reply.UpdateOption(dhcpv4.OptIPAddressLeaseTime(leaseTime))
	case dhcpv4.MessageTypeInform:
	default:
		return nil, nil // release, decline: the lease stays reserved for the MAC address
	}
	reply.UpdateOption(dhcpv4.OptMessageType(dhcpv4.MessageTypeAck))
	reply.UpdateOption(dhcpv4.OptSubnetMask(net.CIDRMask(g.config.Gateway4.Bits(), 32)))
	reply.UpdateOption(dhcpv4.OptRouter(server.AsSlice()))
	reply.UpdateOption(dhcpv4.OptDNS(server.AsSlice()))
	reply.UpdateOption(dhcpv4.Option{Code: dhcpv4.OptionInterfaceMTU, Value: dhcpv4.Uint16(mtu)})
	switch {
	case m.MessageType() == dhcpv4.MessageTypeDiscover:
		reply.UpdateOption(dhcpv4.OptMessageType(dhcpv4.MessageTypeOffer))
	case m.MessageType() == dhcpv4.MessageTypeRequest && requestedAddress(m) != lease:
		reply.YourIPAddr = net.IPv4zero
		reply.Options = dhcpv4.OptionsFromList(dhcpv4.OptMessageType(dhcpv4.MessageTypeNak), dhcpv4.OptServerIdentifier(server.AsSlice()))
		return reply.ToBytes(), clientAddress(net.IPv4zero)
	}
	return reply.ToBytes(), clientAddress(m.ClientIPAddr)
}

// requestedAddress returns the address in the request of a client that selects an
// offer, or renews or restores a lease.
func requestedAddress(m *dhcpv4.DHCPv4) netip.Addr {
	ip := m.RequestedIPAddress()
	if ip == nil {
		ip = m.ClientIPAddr
	}
	a, _ := netip.AddrFromSlice(ip)
	return a.Unmap()
}

// clientAddress returns where to send a reply: a client without address accepts only
// broadcasts.
func clientAddress(ip net.IP) net.Addr {
	if ip == nil || ip.IsUnspecified() {
		ip = net.IPv4bcast
	}
	return &net.UDPAddr{IP: ip.To4(), Port: dhcpv4.ClientPort}
}

// leases assigns addresses from the upper half of a network. An address depends on the
// MAC address, so a guest gets the same one after the simulator was restarted, unless
// another guest has it.
type leases struct {
	gateway   netip.Addr
	first     uint32
	count     uint32
	connected func(mac) bool

	mu     sync.Mutex
	byMAC  map[mac]netip.Addr
	owners map[netip.Addr]mac
}

func newLeases(gateway netip.Prefix, connected func(mac) bool) *leases {
	base := gateway.Masked().Addr().As4()
	half := uint32(1) << (31 - gateway.Bits())
	return &leases{
		gateway: gateway.Addr(), first: binary.BigEndian.Uint32(base[:]) + half, count: half - 1, // not the broadcast address
		connected: connected, byMAC: map[mac]netip.Addr{}, owners: map[netip.Addr]mac{},
	}
}

// get returns the address of m. If all are assigned, it takes that of a guest that is
// no longer connected. It returns the zero Addr if there is none.
func (l *leases) get(m mac) netip.Addr {
	l.mu.Lock()
	defer l.mu.Unlock()
	if a, ok := l.byMAC[m]; ok {
		return a
	}
	hash := fnv.New32a()
	_, _ = hash.Write(m[:])
	start := hash.Sum32() % l.count
	var reusable netip.Addr
	for i := range l.count {
		a := l.at((start + i) % l.count)
		if a == l.gateway {
			continue
		}
		owner, taken := l.owners[a]
		if !taken {
			return l.assign(m, a)
		}
		if !reusable.IsValid() && !l.connected(owner) {
			reusable = a
		}
	}
	if reusable.IsValid() {
		delete(l.byMAC, l.owners[reusable])
		l.assign(m, reusable)
	}
	return reusable
}

func (l *leases) assign(m mac, a netip.Addr) netip.Addr {
	l.byMAC[m], l.owners[a] = a, m
	return a
}

func (l *leases) at(i uint32) netip.Addr {
	var a [4]byte
	binary.BigEndian.PutUint32(a[:], l.first+i)
	return netip.AddrFrom4(a)
}
