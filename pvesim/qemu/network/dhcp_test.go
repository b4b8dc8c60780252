// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package network

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
	"gvisor.dev/gvisor/pkg/waiter"
)

func (g *guest) addresses() []netip.Prefix {
	var out []netip.Prefix
	for _, a := range g.NICInfo()[nic].ProtocolAddresses {
		ip, _ := netip.AddrFromSlice(a.AddressWithPrefix.Address.AsSlice())
		out = append(out, netip.PrefixFrom(ip, a.AddressWithPrefix.PrefixLen))
	}
	return out
}

// request sends a UDP packet from a port of the guest, 0 for any, and returns the next one that is received there.
func (g *guest) request(t *testing.T, port uint16, to string, packet []byte) []byte {
	t.Helper()
	at := netip.MustParseAddrPort(to)
	var queue waiter.Queue
	ep, failed := g.NewEndpoint(udp.ProtocolNumber, protocol(at.Addr()), &queue)
	NewWithT(t).Expect(failed).To(BeNil())
	ep.SocketOptions().SetBroadcast(true)
	NewWithT(t).Expect(ep.Bind(tcpip.FullAddress{NIC: nic, Port: port})).To(BeNil())
	conn := gonet.NewUDPConn(&queue, ep)
	defer func() { _ = conn.Close() }()
	reply := make([]byte, 1500)
	var k int
	NewWithT(t).Eventually(func() (err error) { // clients repeat a packet until there is a reply
		if _, err = conn.WriteTo(packet, net.UDPAddrFromAddrPort(at)); err == nil {
			_ = conn.SetReadDeadline(time.Now().Add(time.Second))
			k, err = conn.Read(reply)
		}
		return err
	}, timeout).Should(Succeed())
	return reply[:k]
}

// lookup resolves a name and checks that the server answers that it does not exist.
func (g *guest) lookup(t *testing.T, server, name string) {
	t.Helper()
	question := dnsmessage.Question{Name: dnsmessage.MustNewName(name), Type: dnsmessage.TypeA, Class: dnsmessage.ClassINET}
	query := dnsmessage.Message{Header: dnsmessage.Header{ID: 7, RecursionDesired: true}, Questions: []dnsmessage.Question{question}}
	data, err := query.Pack()
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	var reply dnsmessage.Message
	NewWithT(t).Expect(reply.Unpack(g.request(t, 0, server, data))).To(Succeed())
	NewWithT(t).Expect(reply).To(And(HaveField("ID", uint16(7)), HaveField("Response", true), HaveField("RCode", dnsmessage.RCodeNameError),
		HaveField("Questions", ConsistOf(question))), "want NXDOMAIN from %s", server)
}

const (
	dhcpBroadcast = "255.255.255.255:67"
	// unconfigured is the address of guests before they have a lease. Their messages do not contain it.
	unconfigured = "169.254.0.1/16"
)

// dhcp sends a DHCP message and returns the reply.
func (g *guest) dhcp(t *testing.T, to string, m *dhcpv4.DHCPv4) *dhcpv4.DHCPv4 {
	t.Helper()
	for {
		reply, err := dhcpv4.FromBytes(g.request(t, dhcpv4.ClientPort, to, m.ToBytes()))
		NewWithT(t).Expect(err).NotTo(HaveOccurred())
		if reply.TransactionID == m.TransactionID { // not a late reply to the message before
			return reply
		}
	}
}

// dhcpv6 sends a DHCPv6 message to all servers and returns the reply.
func (g *guest) dhcpv6(t *testing.T, m *dhcpv6.Message) *dhcpv6.Message {
	t.Helper()
	for {
		reply, err := dhcpv6.MessageFromBytes(g.request(t, 546, "[ff02::1:2]:547", m.ToBytes()))
		NewWithT(t).Expect(err).NotTo(HaveOccurred())
		if reply.TransactionID == m.TransactionID { // not a late reply to the message before
			return reply
		}
	}
}

// lease gets an address for a new guest, which stays connected.
func lease(t *testing.T, n *Network, mac string) (string, *guest) {
	t.Helper()
	g := NewWithT(t)
	guest := boot(t, n, "vmbr0", 0, mac, unconfigured)
	discover, err := dhcpv4.NewDiscovery(guest.mac)
	g.Expect(err).NotTo(HaveOccurred())
	offer := guest.dhcp(t, dhcpBroadcast, discover)
	request, err := dhcpv4.NewRequestFromOffer(offer)
	g.Expect(err).NotTo(HaveOccurred())
	ack := guest.dhcp(t, dhcpBroadcast, request)
	g.Expect([]string{offer.MessageType().String(), ack.MessageType().String()}).To(Equal([]string{"OFFER", "ACK"}))
	g.Expect(ack.YourIPAddr.Equal(offer.YourIPAddr)).To(BeTrue())
	return ack.YourIPAddr.String(), guest
}

func TestDHCP(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	n := newNetwork(t, map[string]Bridge{"vmbr0": {Gateway4: netip.MustParsePrefix("192.168.7.254/24"), DHCP: true}})
	ip, guest := lease(t, n, macA)
	g.Expect(netip.MustParsePrefix("192.168.7.128/25").Contains(netip.MustParseAddr(ip))).To(BeTrue(), "want one in the upper half of the network")
	g.Expect(ip).NotTo(Equal("192.168.7.254"), "want one that is not that of the gateway")
	inform, err := dhcpv4.New(dhcpv4.WithHwAddr(guest.mac), dhcpv4.WithMessageType(dhcpv4.MessageTypeInform))
	g.Expect(err).NotTo(HaveOccurred())
	ack := guest.dhcp(t, dhcpBroadcast, inform)
	mtu, err := dhcpv4.GetUint16(dhcpv4.OptionInterfaceMTU, ack.Options)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(fmt.Sprint(mtu, ack.SubnetMask(), ack.ServerIdentifier(), ack.Router(), ack.DNS())).
		To(Equal("1500 ffffff00 192.168.7.254 [192.168.7.254] [192.168.7.254]"))
	other, err := dhcpv4.New(dhcpv4.WithHwAddr(guest.mac), dhcpv4.WithMessageType(dhcpv4.MessageTypeRequest),
		dhcpv4.WithOption(dhcpv4.OptRequestedIPAddress(net.IPv4(10, 0, 0, 7))))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(guest.dhcp(t, dhcpBroadcast, other).MessageType()).To(Equal(dhcpv4.MessageTypeNak), "address of another network")
	guest.shutdown()

	guest = boot(t, n, "vmbr0", 0, macA, ip+"/24")
	renew, err := dhcpv4.New(dhcpv4.WithHwAddr(guest.mac), dhcpv4.WithClientIP(net.ParseIP(ip)), dhcpv4.WithMessageType(dhcpv4.MessageTypeRequest))
	g.Expect(err).NotTo(HaveOccurred())
	ack = guest.dhcp(t, "192.168.7.254:67", renew)
	g.Expect([]string{ack.MessageType().String(), ack.YourIPAddr.String()}).To(Equal([]string{"ACK", ip}), "renewal by unicast")
}

func TestDHCPExhausted(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	// Addresses 4 to 6 of 8, without that of the gateway.
	n := newNetwork(t, map[string]Bridge{"vmbr0": {Gateway4: netip.MustParsePrefix("10.0.0.5/29"), DHCP: true}})
	first, a := lease(t, n, macA)
	second, b := lease(t, n, macB)
	g.Expect([]string{first, second}).To(ConsistOf("10.0.0.4", "10.0.0.6"))
	// The address of a guest that is no longer connected is assigned to another, and not to the guest again.
	b.shutdown()
	third, _ := lease(t, n, "bc:24:11:00:00:0c")
	g.Expect(third).To(Equal(second))
	a.shutdown()
	again, _ := lease(t, n, macB)
	g.Expect(again).To(Equal(first))
}

func TestDHCPv6(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	n := newNetwork(t, map[string]Bridge{"vmbr0": {Gateway6: netip.MustParsePrefix("2001:db8:2::1/64"), DHCPv6: true}})
	leases := map[netip.Addr]bool{}
	for _, mac := range []string{macA, macB, macA} {
		guest := boot(t, n, "vmbr0", 0, mac)
		// The default client ID contains the time.
		solicit, err := dhcpv6.NewSolicit(guest.mac, dhcpv6.WithClientID(&dhcpv6.DUIDLL{HWType: iana.HWTypeEthernet, LinkLayerAddr: guest.mac}))
		g.Expect(err).NotTo(HaveOccurred())
		request, err := dhcpv6.NewRequestFromAdvertise(guest.dhcpv6(t, solicit))
		g.Expect(err).NotTo(HaveOccurred())
		reply := guest.dhcpv6(t, request)
		ip, _ := netip.AddrFromSlice(reply.Options.OneIANA().Options.OneAddress().IPv6Addr)
		g.Expect(reply.MessageType).To(Equal(dhcpv6.MessageTypeReply))
		g.Expect(netip.MustParsePrefix("2001:db8:2::/64").Contains(ip)).To(BeTrue(), "%s", ip)
		g.Expect(reply.Options.DNS()).To(HaveLen(1))
		g.Expect(guest.addresses()).To(HaveLen(1), "want only the link-local one without SLAAC")
		leases[ip] = true
		guest.shutdown()
	}
	g.Expect(leases).To(HaveLen(2), "want one for each of two MAC addresses")
}

// timeout ends a test that would otherwise block.
const timeout = time.Minute

func newNetwork(t *testing.T, bridges map[string]Bridge) *Network {
	t.Helper()
	n, err := New(Options{Dir: t.TempDir(), Bridges: bridges})
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { _ = n.Close() })
	return n
}

// card is a network card, connected as QEMU does it.
type card struct {
	conn net.Conn
	r    *bufio.Reader
}

func newCard(t *testing.T, n *Network, bridge string, vlan int) *card {
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

// guest is an operating system with a network card.
type guest struct {
	*stack.Stack
	mac      net.HardwareAddr
	shutdown func()
}

// boot starts a guest with static addresses, or without any.
func boot(t *testing.T, n *Network, bridge string, vlan int, mac string, addresses ...string) *guest {
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
		for frame, err := readFrame(c.r); err == nil; frame, err = readFrame(c.r) {
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
