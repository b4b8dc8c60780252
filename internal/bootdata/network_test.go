// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package bootdata_test

import (
	"testing"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/bootdata"
)

// Interfaces with static addresses of both families, and with an on-link gateway. The golden file of the defaults shows
// the others.
func TestRenderDefaultNetworkConfig(t *testing.T) {
	t.Parallel()
	files := render(t, bootdata.Templates{}, bootdata.Data{Network: bootdata.Network{Interfaces: []bootdata.Interface{
		{
			MacAddr: "BC:24:11:00:00:01", MTU: 1400,
			Address4: []string{"192.168.0.17/24"}, Gateway4: "192.168.0.1", Address6: []string{"2001:db8::17/64"}, Gateway6: "fe80::1",
		},
		{MacAddr: "BC:24:11:00:00:03", Address4: []string{"203.0.113.5/32"}, Gateway4: "172.31.1.1", OnLink4: true},
	}}})
	NewWithT(t).Expect(files.NetworkConfig).To(MatchYAML(`
version: 2
ethernets:
  eth0: {match: {macaddress: "bc:24:11:00:00:01"}, set-name: eth0, mtu: 1400, dhcp4: false, dhcp6: false, accept-ra: false,
    addresses: [192.168.0.17/24, "2001:db8::17/64"], routes: [{to: 0.0.0.0/0, via: 192.168.0.1}, {to: "::/0", via: "fe80::1"}]}
  eth1: {match: {macaddress: "bc:24:11:00:00:03"}, set-name: eth1, dhcp4: false, dhcp6: false,
    addresses: [203.0.113.5/32], routes: [{to: 0.0.0.0/0, via: 172.31.1.1, on-link: true}]}
`))
}
