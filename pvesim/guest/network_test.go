// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"net/netip"
	"testing"

	. "github.com/onsi/gomega"
)

func TestNetworkConfig(t *testing.T) {
	t.Parallel()
	addrs := func(texts ...string) []netip.Addr {
		var out []netip.Addr
		for _, text := range texts {
			out = append(out, netip.MustParseAddr(text))
		}
		return out
	}
	for name, test := range map[string]struct {
		config  string
		want    []netip.Addr
		wantErr string
	}{
		"none": {config: "", want: addrs("172.16.0.1")},
		"v2 static by MAC": {config: lines("version: 2", "ethernets:", "  any:",
			"    match: {macaddress: 'bc:24:11:00:00:01'}", "    addresses: [192.168.7.5/24, '2001:db8::5/64']"),
			want: addrs("192.168.7.5", "2001:db8::5")},
		"v2 DHCP by MAC": {config: lines("network:", "  version: 2", "  ethernets:", "    eth7:",
			"      match: {macaddress: 'BC:24:11:00:00:02'}", "      dhcp4: true"),
			want: addrs("172.16.0.1")},
		"v2 both cards": {config: lines("version: 2", "ethernets:", "  ens19: {addresses: [10.0.0.2/8]}", "  eth0: {dhcp4: true}"),
			want: addrs("172.16.0.1", "10.0.0.2")},
		"v2 pattern": {config: lines("version: 2", "ethernets:", "  all:", "    match: {name: 'e*'}", "    dhcp4: true"),
			want: addrs("172.16.0.1", "172.16.0.2")},
		"v2 address with options": {config: lines("version: 2", "ethernets:", "  eth0:", "    addresses:", "      - 10.0.0.2/8: {label: x}"),
			want: addrs("10.0.0.2")},
		"v1 as Proxmox writes it": {config: lines("version: 1", "config:", "  - type: physical", "    name: eth0",
			"    mac_address: 'bc:24:11:00:00:01'", "    subnets:",
			"      - {type: static, address: 10.1.2.3, netmask: 255.255.255.0, gateway: 10.1.2.1}",
			"  - {type: nameserver, address: [1.1.1.1]}"),
			want: addrs("10.1.2.3")},
		"v1 DHCP": {config: lines("version: 1", "config:", "  - type: physical", "    name: eth1", "    subnets: [{type: dhcp4}]"),
			want: addrs("172.16.0.1")},
		"MAC of another guest": {config: lines("version: 2", "ethernets:", "  eth0:",
			"    match: {macaddress: '00:00:00:00:00:09'}", "    dhcp4: true"),
			wantErr: "no configured device matches the network cards"},
		"address without length": {config: lines("version: 2", "ethernets:", "  eth0: {addresses: [10.0.0.2]}"),
			wantErr: `device eth0: address "10.0.0.2" is invalid or has no prefix length`},
		"v1 bad address": {config: lines("version: 1", "config:", "  - {type: physical, name: eth0, subnets: [{type: static, address: x}]}"),
			wantErr: `device eth0: address "x" is invalid`},
		"no version":   {config: "ethernets: {}\n", wantErr: "network-config has version 0"},
		"invalid YAML": {config: "{", wantErr: "network-config is not valid YAML"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := NewWithT(t)
			vm := newGuest(newDisk(nil))
			vm.macs = []string{"BC:24:11:00:00:01", "BC:24:11:00:00:02"}
			got, err := vm.configureNetwork([]byte(test.config))
			if test.wantErr != "" {
				g.Expect(err).To(MatchError(ContainSubstring(test.wantErr)))
				return
			}
			g.Expect(err).NotTo(HaveOccurred())
			var addresses []netip.Addr
			for _, a := range got {
				addresses = append(addresses, a.Addr())
			}
			g.Expect(addresses).To(Equal(test.want))
		})
	}
}

func TestDHCPLeases(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	r := NewRuntime(Options{})
	first := r.dhcp("aa")
	g.Expect(r.dhcp("bb")).NotTo(Equal(first))
	g.Expect(r.dhcp("aa")).To(Equal(first))
	g.Expect(following(netip.MustParseAddr("172.31.255.255"), guestNetwork)).To(Equal(netip.MustParseAddr("172.16.0.1")))
}
