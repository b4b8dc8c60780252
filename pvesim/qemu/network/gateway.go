// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package network

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"time"

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

const (
	mtu = 1500
	nic = tcpip.NICID(1)
	// gatewayMAC is the same on each Ethernet; it is locally administered, so it differs
	// from those that Proxmox generates.
	gatewayMAC = tcpip.LinkAddress("\x02\x00\x00\x00\x00\x01")
	// maxConnecting is the number of connections from guests in the handshake.
	maxConnecting = 1024
	dialTimeout   = 10 * time.Second
)

// gateway is the TCP/IP stack with which guests connect to this machine.
type gateway struct {
	segment *segment
	config  Bridge
	port    *port
	link    *channel.Endpoint
	stack   *stack.Stack
	leases  *leases
}

// newGateway starts the gateway of s. The caller holds the lock of the Network.
func newGateway(s *segment, config Bridge) (*gateway, error) {
	g := &gateway{segment: s, config: config, port: s.addPort(), link: channel.New(queueLength, mtu+header.EthernetMinimumSize, gatewayMAC)}
	g.stack = stack.New(stack.Options{
		NetworkProtocols: []stack.NetworkProtocolFactory{
			arp.NewProtocol, ipv4.NewProtocol, ipv6.NewProtocolWithOptions(ipv6.Options{AutoGenLinkLocal: true}),
		},
		TransportProtocols: []stack.TransportProtocolFactory{tcp.NewProtocol, udp.NewProtocol, icmp.NewProtocol4, icmp.NewProtocol6},
	})
	for _, step := range []func() error{g.configure, g.serveUDP} {
		if err := step(); err != nil {
			g.close()
			return nil, err
		}
	}
	tasks := &s.network.tasks
	tasks.Go(g.receive)
	tasks.Go(g.send)
	if config.advertises() {
		tasks.Go(g.advertise)
	}
	return g, nil
}

// configure sets the addresses and the handler of TCP connections.
func (g *gateway) configure() error {
	sack := tcpip.TCPSACKEnabled(true)
	if err := g.stack.SetTransportProtocolOption(tcp.ProtocolNumber, &sack); err != nil {
		return stackError("enabling SACK", err)
	}
	if err := g.stack.CreateNIC(nic, ethernet.New(g.link)); err != nil {
		return stackError("creating interface", err)
	}
	routes := []tcpip.Route{{Destination: header.IPv6LinkLocalPrefix.Subnet(), NIC: nic}}
	for _, prefix := range []netip.Prefix{g.config.Gateway4, g.config.Gateway6} {
		if !prefix.IsValid() {
			continue
		}
		address := tcpip.ProtocolAddress{
			Protocol:          protocol(prefix.Addr()),
			AddressWithPrefix: tcpip.AddressWithPrefix{Address: tcpip.AddrFromSlice(prefix.Addr().AsSlice()), PrefixLen: prefix.Bits()},
		}
		if err := g.stack.AddProtocolAddress(nic, address, stack.AddressProperties{}); err != nil {
			return stackError("adding address "+prefix.String(), err)
		}
		routes = append(routes, tcpip.Route{Destination: address.AddressWithPrefix.Subnet(), NIC: nic})
	}
	g.stack.SetRouteTable(routes)
	g.stack.SetTransportProtocolHandler(tcp.ProtocolNumber, tcp.NewForwarder(g.stack, 0, maxConnecting, g.forward).HandlePacket)
	return nil
}

// serveUDP starts the DHCP and DNS servers.
func (g *gateway) serveUDP() error {
	if g.config.DHCP {
		g.leases = newLeases(g.config.Gateway4, g.segment.isConnected)
		if err := g.listenUDP(netip.AddrPortFrom(netip.IPv4Unspecified(), dhcpServerPort), g.answerDHCP); err != nil {
			return err
		}
	}
	if g.config.DHCPv6 {
		if err := g.serveDHCPv6(); err != nil {
			return err
		}
	}
	for _, prefix := range []netip.Prefix{g.config.Gateway4, g.config.Gateway6} {
		if !prefix.IsValid() {
			continue
		}
		if err := g.listenUDP(netip.AddrPortFrom(prefix.Addr(), dnsPort), answerDNS); err != nil {
			return err
		}
	}
	return nil
}

// listenUDP calls answer for each packet to a port of the gateway, and sends what it
// returns to the address that it returns, if any.
func (g *gateway) listenUDP(at netip.AddrPort, answer func(packet []byte, from net.Addr) ([]byte, net.Addr)) error {
	var queue waiter.Queue
	ep, err := g.stack.NewEndpoint(udp.ProtocolNumber, protocol(at.Addr()), &queue)
	if err != nil {
		return stackError("creating UDP endpoint", err)
	}
	ep.SocketOptions().SetBroadcast(true)
	local := tcpip.FullAddress{NIC: nic, Port: at.Port()}
	if !at.Addr().IsUnspecified() {
		local.Addr = tcpip.AddrFromSlice(at.Addr().AsSlice())
	}
	if err := ep.Bind(local); err != nil {
		ep.Close()
		return stackError("listening on UDP "+at.String(), err)
	}
	conn := gonet.NewUDPConn(&queue, ep)
	context.AfterFunc(g.segment.network.ctx, func() { _ = conn.SetReadDeadline(time.Unix(0, 1)) })
	g.segment.network.tasks.Go(func() {
		defer func() { _ = conn.Close() }()
		packet := make([]byte, maxFrame)
		for {
			k, from, err := conn.ReadFrom(packet)
			if err != nil {
				return
			}
			if reply, to := answer(packet[:k], from); reply != nil {
				_, _ = conn.WriteTo(reply, to) // a lost packet, as on any network
			}
		}
	})
	return nil
}

// receive passes frames from the switch to the stack.
func (g *gateway) receive() {
	for {
		select {
		case <-g.segment.network.ctx.Done():
			return
		case frame := <-g.port.frames:
			if g.config.advertises() && isRouterSolicitation(frame) {
				g.segment.deliver(g.port, g.routerAdvertisement())
			}
			packet := stack.NewPacketBuffer(stack.PacketBufferOptions{Payload: buffer.MakeWithData(frame)})
			g.link.InjectInbound(0, packet)
			packet.DecRef()
		}
	}
}

// send passes frames from the stack to the switch.
func (g *gateway) send() {
	for {
		packet := g.link.ReadContext(g.segment.network.ctx)
		if packet == nil {
			return
		}
		frame := packet.ToView()
		g.segment.deliver(g.port, slices.Clone(frame.AsSlice()))
		frame.Release()
		packet.DecRef()
	}
}

// forward connects a guest with the same port of this machine. Without a listener
// there, the guest's connection is refused. The stack calls it in a goroutine that
// Close does not wait for: a guest that does not complete the handshake would delay it.
func (g *gateway) forward(request *tcp.ForwarderRequest) {
	n := g.segment.network
	dialer := net.Dialer{Timeout: dialTimeout}
	conn, err := dialer.DialContext(n.ctx, "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(int(request.ID().LocalPort))))
	if err != nil {
		request.Complete(true)
		return
	}
	local := conn.(stream)
	var queue waiter.Queue
	ep, failed := request.CreateEndpoint(&queue)
	request.Complete(failed != nil)
	if failed != nil {
		_ = local.Close()
		return
	}
	keepAlive(ep)
	guest := gonet.NewTCPConn(&queue, ep)
	if !n.start(func() { relay(n.ctx, local, guest) }) {
		_, _ = local.Close(), guest.Close()
	}
}

// dial connects to a guest.
func (g *gateway) dial(ctx context.Context, to netip.AddrPort) (net.Conn, error) {
	addr := tcpip.FullAddress{NIC: nic, Addr: tcpip.AddrFromSlice(to.Addr().AsSlice()), Port: to.Port()}
	conn, err := gonet.DialContextTCP(ctx, g.stack, addr, protocol(to.Addr()))
	if err != nil {
		return nil, fmt.Errorf("connecting to %s on network %q: %w", to, g.segment.name, err)
	}
	return conn, nil
}

func (g *gateway) close() {
	g.link.Close()
	g.stack.Destroy()
}

// keepAlive ends the connection within a minute after the guest was powered off.
func keepAlive(ep tcpip.Endpoint) {
	idle, interval := tcpip.KeepaliveIdleOption(30*time.Second), tcpip.KeepaliveIntervalOption(10*time.Second)
	_, _, _ = ep.SetSockOpt(&idle), ep.SetSockOpt(&interval), ep.SetSockOptInt(tcpip.KeepaliveCountOption, 3)
	ep.SocketOptions().SetKeepAlive(true)
}

func protocol(a netip.Addr) tcpip.NetworkProtocolNumber {
	if a.Is4() {
		return ipv4.ProtocolNumber
	}
	return ipv6.ProtocolNumber
}

func stackError(action string, err tcpip.Error) error {
	return fmt.Errorf("%s: %w", action, errors.New(err.String()))
}
