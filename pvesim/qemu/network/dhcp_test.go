// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package network_test

import (
	"bufio"
	"context"
	"encoding/binary"
	"fmt"
	"io"
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
	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/link/channel"
	"gvisor.dev/gvisor/pkg/tcpip/link/ethernet"
	"gvisor.dev/gvisor/pkg/tcpip/network/arp"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv6"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/icmp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/udp"

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
func (g *guest) lookup(t *testing.T, server, name string) {
	t.Helper()
	at := fullAddress(server)
	conn, err := gonet.DialUDP(g.Stack, nil, &at, protocol(netip.MustParseAddrPort(server).Addr()))
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	question := dnsmessage.Question{Name: dnsmessage.MustNewName(name), Type: dnsmessage.TypeA, Class: dnsmessage.ClassINET}
	query := dnsmessage.Message{Header: dnsmessage.Header{ID: 7, RecursionDesired: true}, Questions: []dnsmessage.Question{question}}
	data, err := query.Pack()
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	var reply dnsmessage.Message
	NewWithT(t).Expect(reply.Unpack(request(t, conn, data))).To(Succeed())
	NewWithT(t).Expect(reply).To(And(HaveField("ID", uint16(7)), HaveField("Response", true), HaveField("RCode", dnsmessage.RCodeNameError),
		HaveField("Questions", ConsistOf(question))), "want NXDOMAIN from %s", server)
}

// request sends a packet, returns the next one that is received, and closes the connection.
func request(t *testing.T, conn *gonet.UDPConn, packet []byte) []byte {
	t.Helper()
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(timeout))
	NewWithT(t).Expect(conn.Write(packet)).Error().NotTo(HaveOccurred())
	reply := make([]byte, 1500)
	k, err := conn.Read(reply)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	return reply[:k]
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
	g.Expect([]string{offer.MessageType().String(), ack.MessageType().String()}).To(Equal([]string{"OFFER", "ACK"}))
	g.Expect(ack.YourIPAddr.Equal(offer.YourIPAddr)).To(BeTrue())
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
		NewWithT(t).Expect(err).NotTo(HaveOccurred())
		NewWithT(t).Expect(fmt.Sprint(mtu, ack.SubnetMask(), ack.ServerIdentifier(), ack.Router(), ack.DNS())).
			To(Equal("1500 ffffff00 192.168.7.254 [192.168.7.254] [192.168.7.254]"))
	})
	t.Run("renew_by_unicast", func(t *testing.T) {
		g := NewWithT(t)
		guest := boot(t, n, "vmbr0", 0, macA, ip.String()+"/24")
		local, server := fullAddress(ip.String()+":68"), fullAddress("192.168.7.254:67")
		conn, err := gonet.DialUDP(guest.Stack, &local, &server, header.IPv4ProtocolNumber)
		g.Expect(err).NotTo(HaveOccurred())
		renew, err := dhcpv4.New(dhcpv4.WithHwAddr(guest.mac), dhcpv4.WithClientIP(ip.AsSlice()), dhcpv4.WithMessageType(dhcpv4.MessageTypeRequest))
		g.Expect(err).NotTo(HaveOccurred())
		ack, err := dhcpv4.FromBytes(request(t, conn, renew.ToBytes()))
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect([]string{ack.MessageType().String(), ack.YourIPAddr.String()}).To(Equal([]string{"ACK", ip.String()}))
	})
	t.Run("address_of_another_network", func(t *testing.T) {
		g := NewWithT(t)
		request, err := dhcpv4.New(dhcpv4.WithHwAddr(hardware(t, macA)), dhcpv4.WithMessageType(dhcpv4.MessageTypeRequest),
			dhcpv4.WithOption(dhcpv4.OptRequestedIPAddress(net.IPv4(10, 0, 0, 7))))
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(exchange(t, c, request).MessageType()).To(Equal(dhcpv4.MessageTypeNak))
	})
}

func TestDHCPExhausted(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	// Addresses 4 to 6 of 8, without that of the gateway.
	n := newNetwork(t, map[string]network.Bridge{"vmbr0": {Gateway4: netip.MustParsePrefix("10.0.0.5/29"), DHCP: true}})
	first, a := lease(t, n, macA)
	second, b := lease(t, n, macB)
	g.Expect([]netip.Addr{first, second}).To(ConsistOf(netip.MustParseAddr("10.0.0.4"), netip.MustParseAddr("10.0.0.6")))
	// The address of a guest that is no longer connected is assigned to another, and not to the guest again.
	_ = b.conn.Close()
	third, _ := lease(t, n, "bc:24:11:00:00:0c")
	g.Expect(third).To(Equal(second))
	_ = a.conn.Close()
	again, _ := lease(t, n, macB)
	g.Expect(again).To(Equal(first))
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
		g.Expect(reply.MessageType).To(Equal(dhcpv6.MessageTypeReply))
		g.Expect(netip.MustParsePrefix("2001:db8:2::/64").Contains(ip)).To(BeTrue(), "%s", ip)
		g.Expect(reply.Options.DNS()).To(HaveLen(1))
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

// timeout ends a test that would otherwise block.
const timeout = time.Minute

func newNetwork(t *testing.T, bridges map[string]network.Bridge) *network.Network {
	t.Helper()
	n, err := network.New(network.Options{Dir: t.TempDir(), Bridges: bridges})
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { _ = n.Close() })
	return n
}

// card is a network card, connected as QEMU does it.
type card struct {
	conn net.Conn
	r    *bufio.Reader
}

func newCard(t *testing.T, n *network.Network, bridge string, vlan int) *card {
	t.Helper()
	g := NewWithT(t)
	path, err := n.Socket(bridge, vlan)
	g.Expect(err).NotTo(HaveOccurred())
	conn, err := net.Dial("unix", path)
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { _ = conn.Close() })
	return &card{conn: conn, r: bufio.NewReader(conn)}
}

func (c *card) send(frame []byte) error {
	_, err := c.conn.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(frame))), frame...))
	return err
}

func (c *card) receive() ([]byte, error) {
	var length uint32
	if err := binary.Read(c.r, binary.BigEndian, &length); err != nil {
		return nil, err
	}
	frame := make([]byte, length)
	_, err := io.ReadFull(c.r, frame)
	return frame, err
}

// guest is an operating system with a network card.
type guest struct {
	*stack.Stack
	mac      net.HardwareAddr
	shutdown func()
}

const nic = tcpip.NICID(1)

// boot starts a guest with static addresses, or without any.
func boot(t *testing.T, n *network.Network, bridge string, vlan int, mac string, addresses ...string) *guest {
	t.Helper()
	hw, err := net.ParseMAC(mac)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	c := newCard(t, n, bridge, vlan)
	ndp := ipv6.DefaultNDPConfigurations()
	ndp.MaxRtrSolicitationDelay, ndp.AutoGenTempGlobalAddresses = 0, false
	g := &guest{mac: hw, Stack: stack.New(stack.Options{
		NetworkProtocols: []stack.NetworkProtocolFactory{
			arp.NewProtocol, ipv4.NewProtocol, ipv6.NewProtocolWithOptions(ipv6.Options{AutoGenLinkLocal: true, NDPConfigs: ndp}),
		},
		TransportProtocols: []stack.TransportProtocolFactory{tcp.NewProtocol, udp.NewProtocol, icmp.NewProtocol4, icmp.NewProtocol6},
	})}
	link := channel.New(1024, 1500+header.EthernetMinimumSize, tcpip.LinkAddress(hw))
	NewWithT(t).Expect(g.CreateNIC(nic, ethernet.New(link))).To(Succeed())
	g.SetRouteTable([]tcpip.Route{{Destination: header.IPv4EmptySubnet, NIC: nic}, {Destination: header.IPv6EmptySubnet, NIC: nic}})
	for _, text := range addresses {
		p := netip.MustParsePrefix(text)
		address := tcpip.AddressWithPrefix{Address: tcpip.AddrFromSlice(p.Addr().AsSlice()), PrefixLen: p.Bits()}
		NewWithT(t).Expect(g.AddProtocolAddress(nic, tcpip.ProtocolAddress{Protocol: protocol(p.Addr()), AddressWithPrefix: address}, stack.AddressProperties{})).
			To(Succeed())
	}
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		for packet := link.ReadContext(ctx); packet != nil; packet = link.ReadContext(ctx) {
			_ = c.send(packet.ToView().AsSlice())
			packet.DecRef()
		}
	}()
	done := make(chan struct{})
	go func() {
		defer close(done)
		for frame, err := c.receive(); err == nil; frame, err = c.receive() {
			packet := stack.NewPacketBuffer(stack.PacketBufferOptions{Payload: buffer.MakeWithData(frame)})
			link.InjectInbound(0, packet)
			packet.DecRef()
		}
	}()
	g.shutdown = sync.OnceFunc(func() {
		cancel()
		_ = c.conn.Close()
		<-done
		g.Destroy()
	})
	t.Cleanup(g.shutdown)
	return g
}

func (g *guest) dial(t *testing.T, address string) (*gonet.TCPConn, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	return gonet.DialContextTCP(ctx, g.Stack, fullAddress(address), protocol(netip.MustParseAddrPort(address).Addr()))
}

func fullAddress(address string) tcpip.FullAddress {
	a := netip.MustParseAddrPort(address)
	return tcpip.FullAddress{NIC: nic, Addr: tcpip.AddrFromSlice(a.Addr().AsSlice()), Port: a.Port()}
}

// serveEcho starts a server in the guest that returns what it receives.
func (g *guest) serveEcho(t *testing.T, address string) {
	t.Helper()
	l, err := gonet.ListenTCP(g.Stack, fullAddress(address), protocol(netip.MustParseAddrPort(address).Addr()))
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	serveEcho(t, l)
}

func serveEcho(t *testing.T, l net.Listener) {
	t.Helper()
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for conn, err := l.Accept(); err == nil; conn, err = l.Accept() {
			go func() {
				defer func() { _ = conn.Close() }()
				_, _ = io.Copy(conn, conn)
			}()
		}
	}()
}

func protocol(a netip.Addr) tcpip.NetworkProtocolNumber {
	if a.Is4() {
		return ipv4.ProtocolNumber
	}
	return ipv6.ProtocolNumber
}
