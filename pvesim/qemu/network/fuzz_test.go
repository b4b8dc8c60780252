// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package network

import (
	"net"
	"net/netip"
	"testing"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/insomniacslk/dhcp/dhcpv6"
)

// A guest may send anything to the DHCP servers. What they answer is a message with an
// address of the network, or none.
func FuzzDHCP(f *testing.F) {
	hardware := net.HardwareAddr{0xbc, 0x24, 0x11, 0, 0, 1}
	discover, err := dhcpv4.NewDiscovery(hardware)
	if err != nil {
		f.Fatal(err)
	}
	solicit, err := dhcpv6.NewSolicit(hardware)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(discover.ToBytes(), solicit.ToBytes())
	f.Add([]byte{1, 1, 6}, []byte{byte(dhcpv6.MessageTypeRenew), 0, 0, 0})
	bridge := Bridge{Gateway4: netip.MustParsePrefix("10.10.0.1/24"), Gateway6: netip.MustParsePrefix("fd10:10::1/64"), DHCP: true}
	f.Fuzz(func(t *testing.T, packet4, packet6 []byte) {
		g := &gateway{config: bridge, leases: newLeases(bridge.Gateway4, func(mac) bool { return true })}
		if reply, to := g.answerDHCP(packet4, nil); reply != nil {
			m, err := dhcpv4.FromBytes(reply)
			if err != nil || to == nil {
				t.Fatalf("answered %x to %x with %x: %v", packet4, to, reply, err)
			}
			if a, _ := netip.AddrFromSlice(m.YourIPAddr.To4()); !a.IsUnspecified() && !bridge.Gateway4.Contains(a) {
				t.Errorf("the address is %s", a)
			}
		}
		if reply, _ := g.answerDHCPv6(packet6, &net.UDPAddr{}); reply != nil {
			m, err := dhcpv6.MessageFromBytes(reply)
			if err != nil {
				t.Fatalf("answered %x with %x: %v", packet6, reply, err)
			}
			for _, lease := range m.Options.IANA() {
				if a, _ := netip.AddrFromSlice(lease.Options.OneAddress().IPv6Addr); !bridge.Gateway6.Contains(a) {
					t.Errorf("the address is %s", a)
				}
			}
		}
	})
}
