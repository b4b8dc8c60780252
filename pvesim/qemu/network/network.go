// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package network

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"sync"

	"github.com/go-logr/logr"
)

// Options configure a Network.
type Options struct {
	// Dir is the directory of the sockets. New creates it if it does not exist. Its
	// path must be short: a socket's path has at most 107 characters.
	Dir string
	// Bridges are the addresses by network name: the name of a bridge ("vmbr0"), or
	// bridge and tag for a VLAN ("vmbr0.10").
	Bridges map[string]Bridge
	// Default configures the networks that Bridges does not list. If it is the zero
	// value, DefaultBridge is used.
	Default Bridge
	Log     logr.Logger
}

// Bridge configures the addresses on one Ethernet.
type Bridge struct {
	// Gateway4 and Gateway6 are the addresses of the gateway with the prefix length of
	// the network, such as 10.10.0.1/16 and fd10:10::1/64. An Ethernet without them
	// only connects guests with each other.
	Gateway4, Gateway6 netip.Prefix
	// DHCP assigns IPv4 addresses by MAC address, from the upper half of the network.
	// The lower half is free for static addresses.
	DHCP bool
	// SLAAC lets guests derive IPv6 addresses from the prefix of Gateway6, and DHCPv6
	// assigns them. Either way the gateway advertises itself as default router.
	SLAAC, DHCPv6 bool
}

// DefaultBridge is the configuration of networks that are not configured: dual stack,
// with DHCP and SLAAC.
func DefaultBridge() Bridge {
	return Bridge{
		Gateway4: netip.MustParsePrefix("10.10.0.1/16"), Gateway6: netip.MustParsePrefix("fd10:10::1/64"),
		DHCP: true, SLAAC: true,
	}
}

// advertises reports whether the gateway is an IPv6 router for its guests.
func (b Bridge) advertises() bool { return b.SLAAC || b.DHCPv6 }

func (b Bridge) validate() error {
	if g := b.Gateway4; g.IsValid() && (!g.Addr().Is4() || g.Addr() == g.Masked().Addr()) {
		return fmt.Errorf("Gateway4: found %s, want an IPv4 address with prefix length, such as 10.10.0.1/16", g)
	}
	if g := b.Gateway6; g.IsValid() && (!g.Addr().Is6() || g.Addr() == g.Masked().Addr()) {
		return fmt.Errorf("Gateway6: found %s, want an IPv6 address with prefix length, such as fd10:10::1/64", g)
	}
	if g := b.Gateway4; b.DHCP && (g.Bits() < 8 || g.Bits() > 29) {
		return fmt.Errorf("DHCP: found Gateway4 %s, want a prefix length from 8 to 29", g)
	}
	if g := b.Gateway6; b.advertises() && g.Bits() != prefixLength {
		return fmt.Errorf("SLAAC or DHCPv6: found Gateway6 %s, want prefix length %d", g, prefixLength)
	}
	return nil
}

// Network is a set of Ethernets, by name of their bridge and VLAN. Its methods may be
// called concurrently.
type Network struct {
	opts   Options
	ctx    context.Context // done when the Network is closed
	cancel context.CancelFunc

	mu       sync.Mutex
	segments map[string]*segment
	closed   bool
	tasks    sync.WaitGroup
}

// New returns a Network without Ethernets: they are created when they are first used.
// It returns an error if the configuration is invalid.
func New(opts Options) (*Network, error) {
	if opts.Default == (Bridge{}) {
		opts.Default = DefaultBridge()
	}
	if err := opts.Default.validate(); err != nil {
		return nil, fmt.Errorf("default bridge: %w", err)
	}
	for name, b := range opts.Bridges {
		if err := b.validate(); err != nil {
			return nil, fmt.Errorf("bridge %q: %w", name, err)
		}
	}
	if err := os.MkdirAll(opts.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("creating socket directory: %w", err)
	}
	n := &Network{opts: opts, segments: map[string]*segment{}}
	n.ctx, n.cancel = context.WithCancel(context.Background())
	return n, nil
}

// Socket returns the path of the socket on which QEMU connects a network card to the
// bridge with the VLAN tag, 0 for none. Cards with different tags are on different
// Ethernets. The socket exists until the Network is closed.
func (n *Network) Socket(bridge string, vlan int) (string, error) {
	if vlan < 0 || vlan > 4094 {
		return "", fmt.Errorf("bridge %q: VLAN tag: found %d, want 0 (none) to 4094", bridge, vlan)
	}
	name := bridge
	if vlan > 0 {
		name += "." + strconv.Itoa(vlan)
	}
	s, err := n.segment(name)
	if err != nil {
		return "", err
	}
	return s.path, nil
}

// Dial connects from the gateway of the named network (as in Options.Bridges) to a
// guest's TCP address, such as "10.10.128.5:22". It returns an error if no guest
// responds.
func (n *Network) Dial(ctx context.Context, name, address string) (net.Conn, error) {
	to, err := netip.ParseAddrPort(address)
	if err != nil {
		return nil, fmt.Errorf("address: found %q, want an IP address with port: %w", address, err)
	}
	s, err := n.segment(name)
	if err != nil {
		return nil, err
	}
	return s.gateway.dial(ctx, to)
}

// Forward listens on the local address listen ("127.0.0.1:0" selects a port) and
// forwards each connection to a guest, as Dial. The caller closes the returned
// listener to end it; closing the Network closes it as well.
func (n *Network) Forward(listen, name, address string) (net.Listener, error) {
	if _, err := netip.ParseAddrPort(address); err != nil {
		return nil, fmt.Errorf("address: found %q, want an IP address with port: %w", address, err)
	}
	var lc net.ListenConfig
	l, err := lc.Listen(n.ctx, "tcp", listen)
	if err != nil {
		return nil, fmt.Errorf("forwarding %s to %s: %w", listen, address, err)
	}
	accept := func(local net.Conn) {
		guest, err := n.Dial(n.ctx, name, address)
		if err != nil {
			n.opts.Log.Info("connecting to guest failed", "network", name, "address", address, "error", err.Error())
			_ = local.Close()
			return
		}
		relay(n.ctx, local.(stream), guest.(stream))
	}
	if !n.start(func() { n.serve(l, accept) }) {
		_ = l.Close()
		return nil, net.ErrClosed
	}
	return l, nil
}

// Close disconnects all guests and removes the sockets.
func (n *Network) Close() error {
	n.mu.Lock()
	if n.closed {
		n.mu.Unlock()
		return nil
	}
	n.closed = true
	n.mu.Unlock()
	n.cancel()
	n.tasks.Wait()
	for _, s := range n.segments { // no longer changed
		s.gateway.close()
	}
	return nil
}

// A network's name is also the name of its socket.
var validName = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.-]*$`)

// maxSocketPath is the longest path of a unix socket on Linux.
const maxSocketPath = 107

// segment returns the named network and creates it on first use.
func (n *Network) segment(name string) (*segment, error) {
	if !validName.MatchString(name) {
		return nil, fmt.Errorf("network name: found %q, want letters, digits, and any of _ . - after the first", name)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if s, ok := n.segments[name]; ok {
		return s, nil
	}
	if n.closed {
		return nil, net.ErrClosed
	}
	path := filepath.Join(n.opts.Dir, name+".sock")
	if len(path) > maxSocketPath {
		return nil, fmt.Errorf("socket path %q has %d characters, want at most %d: use a shorter directory", path, len(path), maxSocketPath)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) { // of a process that was killed
		return nil, fmt.Errorf("network %q: %w", name, err)
	}
	config, ok := n.opts.Bridges[name]
	if !ok {
		config = n.opts.Default
	}
	s, err := newSegment(n, name, path, config)
	if err != nil {
		return nil, fmt.Errorf("network %q: %w", name, err)
	}
	n.segments[name] = s
	return s, nil
}

// start runs f in a goroutine that Close waits for. It reports false if the Network is
// closed.
func (n *Network) start(f func()) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		return false
	}
	n.tasks.Go(f)
	return true
}

// serve handles each connection to l in a goroutine until l or the Network is closed.
func (n *Network) serve(l net.Listener, handle func(net.Conn)) {
	defer context.AfterFunc(n.ctx, func() { _ = l.Close() })()
	for {
		conn, err := l.Accept()
		if err != nil {
			_ = l.Close()
			return
		}
		if !n.start(func() { handle(conn) }) {
			_ = conn.Close()
		}
	}
}
