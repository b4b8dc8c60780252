// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package network_test

import (
	"bufio"
	"context"
	"encoding/binary"
	"io"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"
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
	for _, a := range addresses {
		g.addAddress(t, netip.MustParsePrefix(a))
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

func (g *guest) addAddress(t *testing.T, p netip.Prefix) {
	t.Helper()
	address := tcpip.ProtocolAddress{
		Protocol:          protocol(p.Addr()),
		AddressWithPrefix: tcpip.AddressWithPrefix{Address: tcpip.AddrFromSlice(p.Addr().AsSlice()), PrefixLen: p.Bits()},
	}
	NewWithT(t).Expect(g.AddProtocolAddress(nic, address, stack.AddressProperties{})).To(Succeed())
}

func (g *guest) dial(t *testing.T, address string) (*gonet.TCPConn, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	to := netip.MustParseAddrPort(address)
	return gonet.DialContextTCP(ctx, g.Stack, tcpip.FullAddress{NIC: nic, Addr: tcpip.AddrFromSlice(to.Addr().AsSlice()), Port: to.Port()}, protocol(to.Addr()))
}

// serveEcho starts a server in the guest that returns what it receives.
func (g *guest) serveEcho(t *testing.T, address string) {
	t.Helper()
	at := netip.MustParseAddrPort(address)
	l, err := gonet.ListenTCP(g.Stack, tcpip.FullAddress{NIC: nic, Addr: tcpip.AddrFromSlice(at.Addr().AsSlice()), Port: at.Port()}, protocol(at.Addr()))
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

// checkEcho sends many segments, ends its side, and expects everything
// back, and then the end of the other side.
func checkEcho(t *testing.T, conn net.Conn) {
	t.Helper()
	g := NewWithT(t)
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(timeout))
	sent := make([]byte, 1<<20)
	for i := range sent {
		sent[i] = byte(i / 251)
	}
	go func() {
		_, _ = conn.Write(sent)
		_ = conn.(interface{ CloseWrite() error }).CloseWrite()
	}()
	received, err := io.ReadAll(conn)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(string(received)).To(Equal(string(sent)), "received %d bytes that differ from the %d bytes sent", len(received), len(sent))
}

func protocol(a netip.Addr) tcpip.NetworkProtocolNumber {
	if a.Is4() {
		return ipv4.ProtocolNumber
	}
	return ipv6.ProtocolNumber
}
