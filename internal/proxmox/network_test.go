// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox_test

import (
	"net/netip"
	"testing"

	. "github.com/onsi/gomega"
)

func TestInterfaceAddresses(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	c, host := clientOf(t, always(data(`[{"type":"bridge","iface":"vmbr0","cidr":"192.168.0.10/24","cidr6":"2001:db8::a/64"},{"type":"eth","iface":"eno1"},`+
		`{"type":"vlan","iface":"vmbr0.10","cidr":"10.10.0.2/24","address":"10.10.0.2","netmask":"24"}]`)))
	addresses, err := c.InterfaceAddresses(testContext(t), "pve1")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(addresses).To(Equal([]netip.Addr{netip.MustParseAddr("192.168.0.10"), netip.MustParseAddr("2001:db8::a"), netip.MustParseAddr("10.10.0.2")}))
	g.Expect(host.requests()[0].uri).To(Equal("/nodes/pve1/network"))
}
