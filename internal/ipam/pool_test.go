// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package ipam_test

import (
	"maps"
	"net/netip"
	"slices"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/ipam"
)

func pool(t *testing.T, spec ipam.Spec) ipam.Pool {
	t.Helper()
	p, err := ipam.NewPool(spec)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	return p
}

// drain picks addresses until the pool is empty and returns them sorted.
func drain(t *testing.T, p ipam.Pool) []string {
	t.Helper()
	taken := map[netip.Addr]bool{}
	for {
		addr, ok := p.Pick("key", state(taken))
		if !ok {
			break
		}
		NewWithT(t).Expect(taken).NotTo(HaveKey(addr))
		taken[addr] = true
	}
	var out []string
	for _, addr := range slices.SortedFunc(maps.Keys(taken), netip.Addr.Compare) {
		out = append(out, addr.String())
	}
	return out
}

func state(taken map[netip.Addr]bool) ipam.StateFunc {
	return func(a netip.Addr) ipam.State {
		if taken[a] {
			return ipam.Taken
		}
		return ipam.Free
	}
}

func TestPoolAddresses(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		spec ipam.Spec
		want []string
	}{
		"without_network_and_broadcast": {ipam.Spec{CIDR: "10.0.0.0/29"},
			[]string{"10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4", "10.0.0.5", "10.0.0.6"}},
		"without_gateway": {ipam.Spec{CIDR: "10.0.0.0/29", Gateway: "10.0.0.3"},
			[]string{"10.0.0.1", "10.0.0.2", "10.0.0.4", "10.0.0.5", "10.0.0.6"}},
		"ranges": {ipam.Spec{CIDR: "10.0.0.0/24", Gateway: "10.0.0.1", Ranges: []string{"10.0.0.10-10.0.0.12", "10.0.0.11 - 10.0.0.13", "10.0.0.248/30"}},
			[]string{"10.0.0.10", "10.0.0.11", "10.0.0.12", "10.0.0.13", "10.0.0.248", "10.0.0.249", "10.0.0.250", "10.0.0.251"}},
		"ranges_with_network_broadcast_and_gateway": {
			ipam.Spec{CIDR: "10.0.0.0/24", Gateway: "10.0.0.254", Ranges: []string{"10.0.0.0/31", "10.0.0.253-10.0.0.255"}},
			[]string{"10.0.0.1", "10.0.0.253"}},
		"exclude": {ipam.Spec{CIDR: "10.0.0.0/29", Exclude: []string{"10.0.0.2", "10.0.0.4-10.0.0.5"}},
			[]string{"10.0.0.1", "10.0.0.3", "10.0.0.6"}},
		"both_hosts_of_a_31":         {ipam.Spec{CIDR: "10.0.0.4/31"}, []string{"10.0.0.4", "10.0.0.5"}},
		"31_with_gateway":            {ipam.Spec{CIDR: "10.0.0.4/31", Gateway: "10.0.0.4"}, []string{"10.0.0.5"}},
		"single_host_32":             {ipam.Spec{CIDR: "10.0.0.4/32", Gateway: "172.31.1.1"}, []string{"10.0.0.4"}},
		"two_hosts_of_a_30":          {ipam.Spec{CIDR: "10.0.0.4/30"}, []string{"10.0.0.5", "10.0.0.6"}},
		"address_of_one_host":        {ipam.Spec{CIDR: "10.0.0.5/24", Gateway: "10.0.0.1"}, []string{"10.0.0.5"}},
		"both_hosts_of_a_127":        {ipam.Spec{CIDR: "fd00::4/127"}, []string{"fd00::4", "fd00::5"}},
		"single_host_128":            {ipam.Spec{CIDR: "fd00::4/128", Gateway: "fe80::1"}, []string{"fd00::4"}},
		"IPv6_without_all_zero_host": {ipam.Spec{CIDR: "fd00::/126"}, []string{"fd00::1", "fd00::2", "fd00::3"}},
		"range_of_a_huge_subnet":     {ipam.Spec{CIDR: "fd00::/32", Ranges: []string{"fd00::ffff:ffff:ffff:ffff-fd00:0:0:1::1"}}, []string{"fd00::ffff:ffff:ffff:ffff", "fd00:0:0:1::", "fd00:0:0:1::1"}},
		"end_of_the_address_space":   {ipam.Spec{CIDR: "255.255.255.252/30"}, []string{"255.255.255.253", "255.255.255.254"}},
		"link_local_gateway":         {ipam.Spec{CIDR: "fd00::/127", Gateway: "fe80::"}, []string{"fd00::", "fd00::1"}},
	} {
		g := NewWithT(t)
		p := pool(t, row.spec)
		g.Expect(drain(t, p)).To(Equal(row.want), name)
		g.Expect(p.Size()).To(BeNumerically("==", len(row.want)), name)
		for _, addr := range row.want {
			g.Expect(p.Contains(netip.MustParseAddr(addr))).To(BeTrue(), addr)
		}
	}
}

func TestNewPoolInvalid(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		spec ipam.Spec
		want string
	}{
		"empty":                        {ipam.Spec{}, `cidr "" is not a subnet: want a subnet such as 192.168.0.0/24 or 2001:db8::/64`},
		"no_prefix":                    {ipam.Spec{CIDR: "10.0.0.0"}, `cidr "10.0.0.0" is not a subnet`},
		"prefix_too_long":              {ipam.Spec{CIDR: "10.0.0.0/33"}, `cidr "10.0.0.0/33" is not a subnet`},
		"IPv4_mapped":                  {ipam.Spec{CIDR: "::ffff:10.0.0.0/120"}, `cidr "::ffff:10.0.0.0/120" is not a subnet`},
		"whole_IPv4":                   {ipam.Spec{CIDR: "0.0.0.0/0"}, `want a prefix of /8 or longer`},
		"whole_IPv6":                   {ipam.Spec{CIDR: "::/0"}, `want a prefix of /32 or longer`},
		"multicast":                    {ipam.Spec{CIDR: "224.0.0.0/24"}, `contains no unicast addresses for VMs`},
		"loopback":                     {ipam.Spec{CIDR: "127.0.0.0/8"}, `contains no unicast addresses for VMs`},
		"link_local":                   {ipam.Spec{CIDR: "fe80::/64"}, `contains no unicast addresses for VMs`},
		"gateway_with_prefix":          {ipam.Spec{CIDR: "10.0.0.0/24", Gateway: "10.0.0.1/24"}, `gateway "10.0.0.1/24" is not an address: want one without a prefix, such as 10.0.0.1`},
		"gateway_outside":              {ipam.Spec{CIDR: "10.0.0.0/24", Gateway: "10.0.1.1"}, `gateway 10.0.1.1 is not inside 10.0.0.0/24: VMs could not reach it`},
		"gateway_of_other_family":      {ipam.Spec{CIDR: "10.0.0.0/24", Gateway: "fd00::1"}, `gateway fd00::1 has a different address family than 10.0.0.0/24`},
		"gateway_is_broadcast":         {ipam.Spec{CIDR: "10.0.0.0/24", Gateway: "10.0.0.255"}, `gateway 10.0.0.255 is the network or the broadcast address of 10.0.0.0/24`},
		"range_not_an_address":         {ipam.Spec{CIDR: "10.0.0.0/24", Ranges: []string{"all"}}, `ranges[0] "all" is not an address, range or subnet: want a format like 10.0.0.0, 10.0.0.0-10.0.0.255 or 10.0.0.0/24`},
		"range_backwards":              {ipam.Spec{CIDR: "10.0.0.0/24", Ranges: []string{"10.0.0.9-10.0.0.2"}}, `ranges[0] "10.0.0.9-10.0.0.2" ends before it begins: write 10.0.0.2-10.0.0.9`},
		"range_outside":                {ipam.Spec{CIDR: "10.0.0.0/24", Ranges: []string{"10.0.0.9-10.0.1.2"}}, `ranges[0] "10.0.0.9-10.0.1.2" is not inside 10.0.0.0/24`},
		"range_of_other_family":        {ipam.Spec{CIDR: "10.0.0.0/24", Ranges: []string{"fd00::/64"}}, `ranges[0] "fd00::/64" has a different address family than 10.0.0.0/24`},
		"range_with_host_bits":         {ipam.Spec{CIDR: "10.0.0.0/24", Ranges: []string{"10.0.0.9/28"}}, `ranges[0] "10.0.0.9/28" is not a subnet: use 10.0.0.0/28`},
		"range_in_address_of_one_host": {ipam.Spec{CIDR: "10.0.0.5/24", Ranges: []string{"10.0.0.6"}}, `cidr 10.0.0.5/24 is the address of one host and cannot have ranges: use the subnet 10.0.0.0/24`},
		"exclusion_outside":            {ipam.Spec{CIDR: "10.0.0.0/24", Exclude: []string{"10.0.0.1", "10.0.2.0"}}, `exclude[1] "10.0.2.0" is not inside 10.0.0.0/24`},
		"nothing_left":                 {ipam.Spec{CIDR: "10.0.0.0/30", Gateway: "10.0.0.1", Exclude: []string{"10.0.0.2"}}, `cidr 10.0.0.0/30 has no address left for a VM`},
		"host_is_broadcast":            {ipam.Spec{CIDR: "10.0.0.255/24"}, `has no address left for a VM`},
		"host_is_gateway":              {ipam.Spec{CIDR: "10.0.0.1/24", Gateway: "10.0.0.1"}, `has no address left for a VM`},
	} {
		NewWithT(t).Expect(ipam.NewPool(row.spec)).Error().To(MatchError(ContainSubstring(row.want)), name)
	}
}

func TestPickHugePool(t *testing.T) {
	t.Parallel()
	for _, cidr := range []string{"fd00::/32", "fd00::/63", "fd00::/64", "fd00::/65", "2001:db8::/96", "10.0.0.0/8"} {
		g := NewWithT(t)
		p := pool(t, ipam.Spec{CIDR: cidr})
		taken := map[netip.Addr]bool{}
		for n := range 200 {
			addr, ok := p.Pick(string(rune(n%50)), state(taken))
			g.Expect(ok).To(BeTrue())
			g.Expect(p.Subnet().Contains(addr)).To(BeTrue(), "%s is not in %s", addr, cidr)
			g.Expect(taken).NotTo(HaveKey(addr))
			taken[addr] = true
		}
	}
}
