// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package network_test

import (
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/qemu/network"
)

const (
	macA = "bc:24:11:00:00:0a"
	macB = "bc:24:11:00:00:0b"
)

func listenLocal(t *testing.T) (l net.Listener, port string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	return l, strconv.Itoa(l.Addr().(*net.TCPAddr).Port)
}

func TestGateway(t *testing.T) { //nolint:tparallel // the subtests share a guest
	t.Parallel()
	n := newNetwork(t, nil)
	guest := boot(t, n, "vmbr0", 0, macA, "10.10.0.5/16", "fd10:10::5/64")
	l, port := listenLocal(t)
	serveEcho(t, l)
	for _, gateway := range []string{"10.10.0.1", "fd10:10::1"} {
		t.Run("forwards_connections_to_"+gateway, func(t *testing.T) {
			conn, err := guest.dial(t, net.JoinHostPort(gateway, port))
			NewWithT(t).Expect(err).NotTo(HaveOccurred())
			checkEcho(t, conn)
		})
	}
	t.Run("refuses_ports_without_listener", func(t *testing.T) {
		unused, port := listenLocal(t)
		_ = unused.Close()
		NewWithT(t).Expect(guest.dial(t, "10.10.0.1:"+port)).Error().To(MatchError(ContainSubstring("refused")), "want connection refused")
	})
	t.Run("does_not_forward_to_other_addresses", func(t *testing.T) {
		NewWithT(t).Expect(guest.dial(t, "10.10.0.2:"+port)).Error().To(MatchError(ContainSubstring("no route")))
	})
	t.Run("answers_DNS_with_NXDOMAIN", func(t *testing.T) {
		for _, gateway := range []string{"10.10.0.1:53", "[fd10:10::1]:53"} {
			NewWithT(t).Expect(guest.lookup(t, gateway, "example.com.")).To(Succeed())
		}
	})
}

func TestSLAAC(t *testing.T) {
	t.Parallel()
	eventually := NewWithT(t).Eventually
	n := newNetwork(t, map[string]network.Bridge{"vmbr1": {Gateway6: netip.MustParsePrefix("2001:db8:1::1/64"), SLAAC: true}})
	guest := boot(t, n, "vmbr1", 0, macA)
	// The modified EUI-64 of the MAC address.
	want := netip.MustParsePrefix("2001:db8:1:0:be24:11ff:fe00:a/64")
	eventually(func() []netip.Prefix { return guest.addresses() }, timeout).Should(ContainElement(want))
	l, port := listenLocal(t)
	serveEcho(t, l)
	conn, err := guest.dial(t, "[2001:db8:1::1]:"+port)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	checkEcho(t, conn)
}

func TestGuests(t *testing.T) {
	t.Parallel()
	n := newNetwork(t, nil)
	a := boot(t, n, "vmbr0", 0, macA, "10.10.0.5/16", "fd10:10::5/64")
	b := boot(t, n, "vmbr0", 0, macB, "10.10.0.6/16", "fd10:10::6/64")
	for _, address := range []string{"10.10.0.6:80", "[fd10:10::6]:80"} {
		b.serveEcho(t, address)
		conn, err := a.dial(t, address)
		NewWithT(t).Expect(err).NotTo(HaveOccurred())
		checkEcho(t, conn)
	}
}

func TestDial(t *testing.T) { //nolint:tparallel // the subtests share a guest
	t.Parallel()
	n := newNetwork(t, map[string]network.Bridge{
		"vmbr0":    network.DefaultBridge(),
		"vmbr0.10": {Gateway4: netip.MustParsePrefix("10.20.0.1/24")},
	})
	plain := boot(t, n, "vmbr0", 0, macA, "10.10.0.5/16", "fd10:10::5/64")
	tagged := boot(t, n, "vmbr0", 10, macA, "10.20.0.5/24")
	plain.serveEcho(t, "10.10.0.5:22")
	plain.serveEcho(t, "[fd10:10::5]:22")
	tagged.serveEcho(t, "10.20.0.5:22")
	for address, name := range map[string]string{"10.10.0.5:22": "vmbr0", "[fd10:10::5]:22": "vmbr0", "10.20.0.5:22": "vmbr0.10"} {
		t.Run(address, func(t *testing.T) {
			conn, err := n.Dial(t.Context(), name, address)
			NewWithT(t).Expect(err).NotTo(HaveOccurred())
			checkEcho(t, conn)
		})
		t.Run("forwarded_to_"+address, func(t *testing.T) {
			g := NewWithT(t)
			l, err := n.Forward("127.0.0.1:0", name, address)
			g.Expect(err).NotTo(HaveOccurred())
			defer func() { _ = l.Close() }()
			conn, err := net.Dial("tcp", l.Addr().String())
			g.Expect(err).NotTo(HaveOccurred())
			checkEcho(t, conn)
		})
	}
	for _, address := range []string{"node-1:22", "10.10.0.5"} {
		if _, err := n.Dial(t.Context(), "vmbr0", address); err == nil || !strings.Contains(err.Error(), "want an IP address with port") {
			t.Errorf("Dial %s: found %v, want an error about the address", address, err)
		}
		if _, err := n.Forward("127.0.0.1:0", "vmbr0", address); err == nil || !strings.Contains(err.Error(), "want an IP address with port") {
			t.Errorf("Forward %s: found %v, want an error about the address", address, err)
		}
	}
}

func TestClose(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	dir := t.TempDir()
	n, err := network.New(network.Options{Dir: dir})
	g.Expect(err).NotTo(HaveOccurred())
	c := newCard(t, n, "vmbr0", 0)
	guest := boot(t, n, "vmbr0", 0, macA, "10.10.0.5/16")
	local, port := listenLocal(t)
	serveEcho(t, local)
	conn, err := guest.dial(t, "10.10.0.1:"+port)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(conn.Write([]byte("open"))).Error().NotTo(HaveOccurred())
	forwarded, err := n.Forward("127.0.0.1:0", "vmbr0", "10.10.0.5:22")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(n.Close()).To(Succeed())
	g.Expect(n.Close()).To(Succeed(), "second Close")
	_ = c.conn.SetDeadline(time.Now().Add(timeout))
	for err == nil { // frames from before
		_, err = c.receive()
	}
	g.Expect(err).NotTo(MatchError(os.ErrDeadlineExceeded), "the network card is still connected")
	g.Expect(net.Dial("tcp", forwarded.Addr().String())).Error().To(HaveOccurred(), "the forwarded port is still open")
	if files, err := os.ReadDir(dir); err != nil || len(files) > 0 {
		t.Errorf("found files %v (error %v), want none", files, err)
	}
	g.Expect(n.Socket("vmbr1", 0)).Error().To(MatchError(net.ErrClosed))
}

func TestSocket(t *testing.T) {
	t.Parallel()
	n := newNetwork(t, nil)
	for _, row := range []struct {
		bridge string
		vlan   int
		want   string
	}{
		{"", 0, `network name: found ""`},
		{"../vmbr0", 0, `network name: found "../vmbr0"`},
		{"vmbr0", -1, `bridge "vmbr0": VLAN tag: found -1, want 0 (none) to 4094`},
		{"vmbr0", 4095, `bridge "vmbr0": VLAN tag: found 4095`},
		{strings.Repeat("v", 108), 0, "use a shorter directory"},
	} {
		NewWithT(t).Expect(n.Socket(row.bridge, row.vlan)).Error().To(MatchError(ContainSubstring(row.want)), "Socket(%q, %d)", row.bridge, row.vlan)
	}
	t.Run("of_a_killed_process", func(t *testing.T) {
		t.Parallel()
		g := NewWithT(t)
		dir := t.TempDir()
		g.Expect(os.WriteFile(dir+"/vmbr0.sock", nil, 0o600)).To(Succeed())
		n, err := network.New(network.Options{Dir: dir})
		g.Expect(err).NotTo(HaveOccurred())
		defer func() { _ = n.Close() }()
		newCard(t, n, "vmbr0", 0)
	})
}

func TestNew(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		bridge network.Bridge
		want   string
	}{
		"IPv6_as_Gateway4":     {network.Bridge{Gateway4: netip.MustParsePrefix("fd00::1/64")}, `bridge "vmbr0": Gateway4: found fd00::1/64`},
		"network_as_Gateway4":  {network.Bridge{Gateway4: netip.MustParsePrefix("10.0.0.0/24")}, `bridge "vmbr0": Gateway4: found 10.0.0.0/24`},
		"IPv4_as_Gateway6":     {network.Bridge{Gateway6: netip.MustParsePrefix("10.0.0.1/24")}, `bridge "vmbr0": Gateway6: found 10.0.0.1/24`},
		"DHCP_without_gateway": {network.Bridge{DHCP: true}, `bridge "vmbr0": DHCP: found Gateway4 invalid Prefix`},
		"DHCP_on_a_link":       {network.Bridge{DHCP: true, Gateway4: netip.MustParsePrefix("10.0.0.1/30")}, "want a prefix length from 8 to 29"},
		"SLAAC_with_long_prefix": {
			network.Bridge{SLAAC: true, Gateway6: netip.MustParsePrefix("fd00::1/80")}, `bridge "vmbr0": SLAAC or DHCPv6: found Gateway6 fd00::1/80, want prefix length 64`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := network.New(network.Options{Dir: t.TempDir(), Bridges: map[string]network.Bridge{"vmbr0": row.bridge}})
			NewWithT(t).Expect(err).To(MatchError(ContainSubstring(row.want)))
		})
	}
}
