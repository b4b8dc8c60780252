// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package network

import (
	"io"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
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

func TestGateway(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	n := newNetwork(t, nil)
	guest := boot(t, n, "vmbr0", 0, macA, "10.10.0.5/16", "fd10:10::5/64")
	l, port := listenLocal(t)
	serveEcho(t, l)
	for _, gateway := range []string{"10.10.0.1", "fd10:10::1"} {
		conn, err := guest.dial(t, net.JoinHostPort(gateway, port))
		g.Expect(err).NotTo(HaveOccurred())
		checkEcho(t, conn)
		guest.lookup(t, net.JoinHostPort(gateway, "53"), "example.com.")
	}
	unused, closed := listenLocal(t)
	_ = unused.Close()
	g.Expect(guest.dial(t, "10.10.0.1:"+closed)).Error().To(MatchError(ContainSubstring("refused")), "a port without listener")
	g.Expect(guest.dial(t, "10.10.0.2:"+port)).Error().To(MatchError(ContainSubstring("no route")), "an address that is not the gateway's")
}

func TestSLAAC(t *testing.T) {
	t.Parallel()
	n := newNetwork(t, map[string]Bridge{"vmbr1": {Gateway6: netip.MustParsePrefix("2001:db8:1::1/64"), SLAAC: true}})
	guest := boot(t, n, "vmbr1", 0, macA)
	// The modified EUI-64 of the MAC address.
	want := netip.MustParsePrefix("2001:db8:1:0:be24:11ff:fe00:a/64")
	NewWithT(t).Eventually(guest.addresses, timeout).Should(ContainElement(want))
}

func TestForward(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	n := newNetwork(t, map[string]Bridge{
		"vmbr0":    DefaultBridge(),
		"vmbr0.10": {Gateway4: netip.MustParsePrefix("10.20.0.1/24")},
	})
	plain := boot(t, n, "vmbr0", 0, macA, "10.10.0.5/16", "fd10:10::5/64")
	tagged := boot(t, n, "vmbr0", 10, macA, "10.20.0.5/24")
	plain.serveEcho(t, "10.10.0.5:22")
	plain.serveEcho(t, "[fd10:10::5]:22")
	tagged.serveEcho(t, "10.20.0.5:22")
	for address, name := range map[string]string{"10.10.0.5:22": "vmbr0", "[fd10:10::5]:22": "vmbr0", "10.20.0.5:22": "vmbr0.10"} {
		l, err := n.Forward("127.0.0.1:0", name, address)
		g.Expect(err).NotTo(HaveOccurred())
		conn, err := net.Dial("tcp", l.Addr().String())
		g.Expect(err).NotTo(HaveOccurred())
		checkEcho(t, conn)
		g.Expect(l.Close()).To(Succeed())
	}
	invalid := MatchError(ContainSubstring("want an IP address with port"))
	for _, address := range []string{"node-1:22", "10.10.0.5"} {
		g.Expect(n.Dial(t.Context(), "vmbr0", address)).Error().To(invalid, address)
		g.Expect(n.Forward("127.0.0.1:0", "vmbr0", address)).Error().To(invalid, address)
	}
}

func TestClose(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	dir := t.TempDir()
	n, err := New(Options{Dir: dir})
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
		_, err = readFrame(c.r)
	}
	g.Expect(err).NotTo(MatchError(os.ErrDeadlineExceeded), "the network card is still connected")
	g.Expect(net.Dial("tcp", forwarded.Addr().String())).Error().To(HaveOccurred(), "the forwarded port is still open")
	g.Expect(os.ReadDir(dir)).To(BeEmpty())
	g.Expect(n.Socket("vmbr1", 0)).Error().To(MatchError(net.ErrClosed))
}

func TestSocket(t *testing.T) {
	t.Parallel()
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
		NewWithT(t).Expect(newNetwork(t, nil).Socket(row.bridge, row.vlan)).Error().To(MatchError(ContainSubstring(row.want)), "Socket(%q, %d)", row.bridge, row.vlan)
	}
	n := newNetwork(t, nil)
	paths := map[string]bool{}
	for bridge, tags := range map[string][]int{"vmbr0": {0, 10, 20}, "vmbr1": {0}} {
		for _, vlan := range tags {
			path, err := n.Socket(bridge, vlan)
			NewWithT(t).Expect(err).NotTo(HaveOccurred())
			paths[path] = true
		}
	}
	NewWithT(t).Expect(paths).To(HaveLen(4), "bridges and VLANs share a socket")
	// The socket of a process that was killed.
	dir := t.TempDir()
	NewWithT(t).Expect(os.WriteFile(dir+"/vmbr0.sock", nil, 0o600)).To(Succeed())
	n, err := New(Options{Dir: dir})
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	defer func() { _ = n.Close() }()
	newCard(t, n, "vmbr0", 0)
}

func TestNew(t *testing.T) {
	t.Parallel()
	for want, bridge := range map[string]Bridge{
		"Gateway4: found fd00::1/64":                                        {Gateway4: netip.MustParsePrefix("fd00::1/64")},
		"Gateway4: found 10.0.0.0/24":                                       {Gateway4: netip.MustParsePrefix("10.0.0.0/24")},
		"Gateway6: found 10.0.0.1/24":                                       {Gateway6: netip.MustParsePrefix("10.0.0.1/24")},
		"DHCP: found Gateway4 invalid Prefix":                               {DHCP: true},
		"want a prefix length from 8 to 29":                                 {DHCP: true, Gateway4: netip.MustParsePrefix("10.0.0.1/30")},
		"SLAAC or DHCPv6: found Gateway6 fd00::1/80, want prefix length 64": {SLAAC: true, Gateway6: netip.MustParsePrefix("fd00::1/80")},
	} {
		NewWithT(t).Expect(New(Options{Dir: t.TempDir(), Bridges: map[string]Bridge{"vmbr0": bridge}})).Error().
			To(MatchError(And(HavePrefix(`bridge "vmbr0": `), ContainSubstring(want))))
	}
}
