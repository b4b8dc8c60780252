// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package network_test

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/insomniacslk/dhcp/dhcpv6"
	"github.com/insomniacslk/dhcp/iana"
	. "github.com/onsi/gomega"
	"golang.org/x/net/dns/dnsmessage"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/header"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/qemu/network"
)

func (g *guest) addresses() []netip.Prefix {
	var out []netip.Prefix
	for _, a := range g.NICInfo()[nic].ProtocolAddresses {
		ip, _ := netip.AddrFromSlice(a.AddressWithPrefix.Address.AsSlice())
		out = append(out, netip.PrefixFrom(ip, a.AddressWithPrefix.PrefixLen))
	}
	return out
}

// lookup resolves a name and checks that the server answers that it does not exist.
func (g *guest) lookup(t *testing.T, server, name string) error {
	t.Helper()
	to := netip.MustParseAddrPort(server)
	conn, err := gonet.DialUDP(g.Stack, nil, &tcpip.FullAddress{NIC: nic, Addr: tcpip.AddrFromSlice(to.Addr().AsSlice()), Port: to.Port()}, protocol(to.Addr()))
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	question := dnsmessage.Question{Name: dnsmessage.MustNewName(name), Type: dnsmessage.TypeA, Class: dnsmessage.ClassINET}
	query := dnsmessage.Message{Header: dnsmessage.Header{ID: 7, RecursionDesired: true}, Questions: []dnsmessage.Question{question}}
	data, err := query.Pack()
	if err != nil {
		return err
	}
	_ = conn.SetDeadline(time.Now().Add(timeout))
	if _, err := conn.Write(data); err != nil {
		return err
	}
	packet := make([]byte, 1500)
	k, err := conn.Read(packet)
	if err != nil {
		return err
	}
	var reply dnsmessage.Message
	if err := reply.Unpack(packet[:k]); err != nil {
		return err
	}
	if reply.ID != 7 || !reply.Response || reply.RCode != dnsmessage.RCodeNameError || len(reply.Questions) != 1 || reply.Questions[0] != question {
		return fmt.Errorf("%s: found reply %v, want NXDOMAIN for %s", server, reply.GoString(), name)
	}
	return nil
}

// exchange broadcasts a DHCP message from a card without address, and returns the next
// reply to it.
func exchange(t *testing.T, c *card, m *dhcpv4.DHCPv4) *dhcpv4.DHCPv4 {
	t.Helper()
	g := NewWithT(t)
	const udpOffset, dataOffset = header.EthernetMinimumSize + header.IPv4MinimumSize, header.EthernetMinimumSize + header.IPv4MinimumSize + header.UDPMinimumSize
	data := m.ToBytes()
	f := append(make([]byte, dataOffset), data...)
	header.Ethernet(f).Encode(&header.EthernetFields{
		SrcAddr: tcpip.LinkAddress(m.ClientHWAddr), DstAddr: header.EthernetBroadcastAddress, Type: header.IPv4ProtocolNumber,
	})
	ip := header.IPv4(f[header.EthernetMinimumSize:])
	ip.Encode(&header.IPv4Fields{
		TotalLength: uint16(len(ip)), TTL: 64, Protocol: uint8(header.UDPProtocolNumber), SrcAddr: header.IPv4Any, DstAddr: header.IPv4Broadcast,
	})
	ip.SetChecksum(^ip.CalculateChecksum())
	header.UDP(f[udpOffset:]).Encode(&header.UDPFields{SrcPort: 68, DstPort: 67, Length: uint16(header.UDPMinimumSize + len(data))})
	ctx, cancel := context.WithCancel(t.Context())
	var repeats sync.WaitGroup
	defer func() { cancel(); repeats.Wait() }()
	repeats.Go(func() { // clients repeat a message until there is a reply
		for again := time.NewTicker(time.Second); ctx.Err() == nil; {
			_ = c.send(f)
			select {
			case <-ctx.Done():
			case <-again.C:
			}
		}
	})
	_ = c.conn.SetReadDeadline(time.Now().Add(timeout))
	for {
		f, err := c.receive()
		g.Expect(err).NotTo(HaveOccurred())
		if len(f) < dataOffset || header.Ethernet(f).Type() != header.IPv4ProtocolNumber || header.UDP(f[udpOffset:]).DestinationPort() != 68 {
			continue
		}
		g.Expect(header.IPv4(f[header.EthernetMinimumSize:]).DestinationAddress()).To(Equal(header.IPv4Broadcast))
		reply, err := dhcpv4.FromBytes(f[dataOffset:])
		g.Expect(err).NotTo(HaveOccurred())
		if reply.TransactionID == m.TransactionID {
			return reply
		}
	}
}

func hardware(t *testing.T, mac string) net.HardwareAddr {
	t.Helper()
	hw, err := net.ParseMAC(mac)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	return hw
}

// lease gets an address for a new card, which stays connected.
func lease(t *testing.T, n *network.Network, mac string) (netip.Addr, *card) {
	t.Helper()
	g := NewWithT(t)
	c := newCard(t, n, "vmbr0", 0)
	discover, err := dhcpv4.NewDiscovery(hardware(t, mac))
	g.Expect(err).NotTo(HaveOccurred())
	offer := exchange(t, c, discover)
	request, err := dhcpv4.NewRequestFromOffer(offer)
	g.Expect(err).NotTo(HaveOccurred())
	ack := exchange(t, c, request)
	if offer.MessageType() != dhcpv4.MessageTypeOffer || ack.MessageType() != dhcpv4.MessageTypeAck || !offer.YourIPAddr.Equal(ack.YourIPAddr) {
		t.Fatalf("found %s and %s, want an offer and its acknowledgment", offer.Summary(), ack.Summary())
	}
	ip, _ := netip.AddrFromSlice(ack.YourIPAddr.To4())
	return ip, c
}

func TestDHCP(t *testing.T) { //nolint:tparallel // the subtests share a guest
	t.Parallel()
	g := NewWithT(t)
	n := newNetwork(t, map[string]network.Bridge{"vmbr0": {Gateway4: netip.MustParsePrefix("192.168.7.254/24"), DHCP: true}})
	ip, c := lease(t, n, macA)
	g.Expect(netip.MustParsePrefix("192.168.7.128/25").Contains(ip)).To(BeTrue(), "want one in the upper half of the network, not that of the gateway")
	g.Expect(ip).NotTo(Equal(netip.MustParseAddr("192.168.7.254")), "want one in the upper half of the network, not that of the gateway")
	again, _ := lease(t, n, macA)
	g.Expect(again).To(Equal(ip))
	other, _ := lease(t, n, macB)
	g.Expect(other).NotTo(Equal(ip), "two guests have lease")
	t.Run("options", func(t *testing.T) {
		inform, err := dhcpv4.NewInform(hardware(t, macA), net.IPv4(192, 168, 7, 5))
		NewWithT(t).Expect(err).NotTo(HaveOccurred())
		inform.ClientIPAddr = nil // the card has no address
		ack := exchange(t, c, inform)
		mtu, err := dhcpv4.GetUint16(dhcpv4.OptionInterfaceMTU, ack.Options)
		gateway := net.IPv4(192, 168, 7, 254)
		if err != nil || mtu != 1500 || len(ack.Router()) != 1 || !ack.Router()[0].Equal(gateway) || len(ack.DNS()) != 1 || !ack.DNS()[0].Equal(gateway) ||
			ack.SubnetMask().String() != "ffffff00" || !ack.ServerIdentifier().Equal(gateway) {
			t.Errorf("found %s, want mask, router, DNS, server and MTU", ack.Summary())
		}
	})
	t.Run("renew_by_unicast", func(t *testing.T) {
		g := NewWithT(t)
		guest := boot(t, n, "vmbr0", 0, macA, ip.String()+"/24")
		local := tcpip.FullAddress{NIC: nic, Addr: tcpip.AddrFromSlice(ip.AsSlice()), Port: 68}
		server := tcpip.FullAddress{NIC: nic, Addr: tcpip.AddrFrom4([4]byte{192, 168, 7, 254}), Port: 67}
		conn, err := gonet.DialUDP(guest.Stack, &local, &server, header.IPv4ProtocolNumber)
		g.Expect(err).NotTo(HaveOccurred())
		defer func() { _ = conn.Close() }()
		_ = conn.SetDeadline(time.Now().Add(timeout))
		renew, err := dhcpv4.New(dhcpv4.WithHwAddr(guest.mac), dhcpv4.WithClientIP(ip.AsSlice()), dhcpv4.WithMessageType(dhcpv4.MessageTypeRequest))
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(conn.Write(renew.ToBytes())).Error().NotTo(HaveOccurred())
		packet := make([]byte, 1500)
		k, err := conn.Read(packet)
		g.Expect(err).NotTo(HaveOccurred())
		if ack, err := dhcpv4.FromBytes(packet[:k]); err != nil || ack.MessageType() != dhcpv4.MessageTypeAck || !ack.YourIPAddr.Equal(ip.AsSlice()) {
			t.Errorf("found %v (error %v), want an acknowledgment of %s", ack, err, ip)
		}
	})
	t.Run("address_of_another_network", func(t *testing.T) {
		g := NewWithT(t)
		request, err := dhcpv4.New(dhcpv4.WithHwAddr(hardware(t, macA)), dhcpv4.WithMessageType(dhcpv4.MessageTypeRequest),
			dhcpv4.WithOption(dhcpv4.OptRequestedIPAddress(net.IPv4(10, 0, 0, 7))))
		g.Expect(err).NotTo(HaveOccurred())
		nak := exchange(t, c, request)
		g.Expect(nak.MessageType()).To(Equal(dhcpv4.MessageTypeNak), "found %s, want a NAK", nak.Summary())
	})
}

func TestDHCPExhausted(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	// Addresses 4 to 6 of 8, without that of the gateway.
	n := newNetwork(t, map[string]network.Bridge{"vmbr0": {Gateway4: netip.MustParsePrefix("10.0.0.5/29"), DHCP: true}})
	first, _ := lease(t, n, macA)
	second, c := lease(t, n, macB)
	found := map[netip.Addr]bool{first: true, second: true}
	g.Expect(found[netip.MustParseAddr("10.0.0.4")]).To(BeTrue(), "found leases %s and %s, want 10.0.0.4 and 10.0.0.6", first, second)
	g.Expect(found[netip.MustParseAddr("10.0.0.6")]).To(BeTrue(), "found leases %s and %s, want 10.0.0.4 and 10.0.0.6", first, second)
	// The address of a guest that is no longer connected is assigned again.
	_ = c.conn.Close()
	third, _ := lease(t, n, "bc:24:11:00:00:0c")
	g.Expect(third).To(Equal(second))
}

func TestDHCPv6(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	n := newNetwork(t, map[string]network.Bridge{"vmbr0": {Gateway6: netip.MustParsePrefix("2001:db8:2::1/64"), DHCPv6: true}})
	leases := map[netip.Addr]bool{}
	for _, mac := range []string{macA, macB, macA} {
		guest := boot(t, n, "vmbr0", 0, mac)
		local := &tcpip.FullAddress{NIC: nic, Addr: header.LinkLocalAddr(tcpip.LinkAddress(guest.mac)), Port: 546}
		conn, err := gonet.DialUDP(guest.Stack, local, nil, header.IPv6ProtocolNumber)
		g.Expect(err).NotTo(HaveOccurred())
		// The default client ID contains the time.
		solicit, err := dhcpv6.NewSolicit(guest.mac, dhcpv6.WithClientID(&dhcpv6.DUIDLL{HWType: iana.HWTypeEthernet, LinkLayerAddr: guest.mac}))
		g.Expect(err).NotTo(HaveOccurred())
		advertise := exchange6(t, conn, solicit)
		request, err := dhcpv6.NewRequestFromAdvertise(advertise)
		g.Expect(err).NotTo(HaveOccurred())
		reply := exchange6(t, conn, request)
		address := reply.Options.OneIANA().Options.OneAddress()
		ip, _ := netip.AddrFromSlice(address.IPv6Addr)
		if reply.MessageType != dhcpv6.MessageTypeReply || !netip.MustParsePrefix("2001:db8:2::/64").Contains(ip) || len(reply.Options.DNS()) != 1 {
			t.Errorf("found %s, want an address in the prefix and a DNS server", reply.Summary())
		}
		g.Expect(guest.addresses()).To(HaveLen(1), "want only the link-local one without SLAAC")
		leases[ip] = true
		_ = conn.Close()
		guest.shutdown()
	}
	g.Expect(leases).To(HaveLen(2), "want one for each of two MAC addresses")
}

// exchange6 sends a DHCPv6 message to all servers and returns the next reply to it.
func exchange6(t *testing.T, conn *gonet.UDPConn, m *dhcpv6.Message) *dhcpv6.Message {
	t.Helper()
	g := NewWithT(t)
	_ = conn.SetDeadline(time.Now().Add(timeout))
	g.Expect(conn.WriteTo(m.ToBytes(), &net.UDPAddr{IP: dhcpv6.AllDHCPRelayAgentsAndServers, Port: 547})).Error().NotTo(HaveOccurred())
	for packet := make([]byte, 1500); ; {
		k, err := conn.Read(packet)
		g.Expect(err).NotTo(HaveOccurred())
		reply, err := dhcpv6.MessageFromBytes(packet[:k])
		g.Expect(err).NotTo(HaveOccurred())
		if reply.TransactionID == m.TransactionID {
			return reply
		}
	}
}
