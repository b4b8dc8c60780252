// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox_test

import (
	"testing"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

func TestIPConfig(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]proxmox.IPConfig{
		"":                                 {},
		"ip=dhcp,ip6=auto":                 {Address4: "dhcp", Address6: "auto"},
		"ip=192.168.0.5/24,gw=192.168.0.1": {Address4: "192.168.0.5/24", Gateway4: "192.168.0.1"},
		"ip=10.0.0.0/24,ip6=fd00::/64,gw6=fe80::1": {Address4: "10.0.0.0/24", Address6: "fd00::/64", Gateway6: "fe80::1"},
	} {
		g := NewWithT(t)
		g.Expect(proxmox.ParseIPConfig(text)).To(Equal(want))
		g.Expect(want.Encode()).To(Equal(text))
	}
	g := NewWithT(t)
	g.Expect(proxmox.IPConfig{Gateway4: "192.168.0.1", Address6: "auto"}.Encode()).To(Equal("ip6=auto"), "a gateway without an address is refused")
	g.Expect(proxmox.IPConfigSlot("net12")).To(Equal("ipconfig12"))
	g.Expect(proxmox.VMConfig{Options: map[string]string{"ipconfig1": "ip=dhcp"}}.Network().IPConfig("net1")).To(Equal(proxmox.IPConfig{Address4: "dhcp"}))
}

func TestNetworkAddresses(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	for name, row := range map[string]struct {
		options map[string]string
		want    []string
	}{
		"VM": {map[string]string{
			"net0": "virtio=BC:24:11:00:00:01,bridge=vmbr0", "ipconfig0": "ip=192.168.0.5/24,gw=192.168.0.1,ip6=fd00::5/64", "ipconfig1": "ip=dhcp,ip6=auto",
		}, []string{"192.168.0.5", "fd00::5"}},
		"container":                      {map[string]string{"net0": "name=eth0,bridge=vmbr0,gw=192.168.0.1,ip=192.168.0.53/24,ip6=manual", "hostname": "dns"}, []string{"192.168.0.53"}},
		"subnet":                         {map[string]string{"ipconfig0": "ip=192.168.0.0/24,ip6=fd00::/64"}, nil},
		"single_host_and_point_to_point": {map[string]string{"ipconfig0": "ip=192.168.0.0/32", "ipconfig1": "ip=10.0.0.4/31,ip6=fd00::/127"}, []string{"10.0.0.4", "192.168.0.0", "fd00::"}},
		"invalid":                        {map[string]string{"ipconfig0": "ip=here,ip6=there", "ipconfigX": "ip=10.0.0.1/24", "description": "ip=10.0.0.1/24"}, nil},
	} {
		var found []string
		for _, addr := range (proxmox.VMConfig{Options: row.options}).Network().Addresses() {
			found = append(found, addr.String())
		}
		g.Expect(found).To(ConsistOf(row.want), name)
	}
}

func TestNetworkAgentEnabled(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]bool{"": false, "1": true, "0": false, "enabled=1,fstrim_cloned_disks=1": true, "1,type=isa": true, "enabled=0": false} {
		NewWithT(t).Expect(proxmox.VMConfig{Options: map[string]string{"agent": text}}.Network().AgentEnabled()).To(Equal(want), text)
	}
}
