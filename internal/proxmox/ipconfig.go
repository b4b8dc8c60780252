// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox

import (
	"net/netip"
	"strings"
)

// Words that stand in an ipconfigN option instead of an address.
const (
	IPConfigDHCP = "dhcp"
	// IPConfigAuto is SLAAC; for IPv6 only.
	IPConfigAuto = "auto"
	// IPConfigManual is no address at all.
	IPConfigManual = "manual"
)

// IPConfig is what cloud-init is told about an interface, "ipconfigN" in a VM's
// config. Proxmox takes and keeps it on VMs without a cloud-init drive as well, so
// that it also serves to tell others which addresses a VM has.
type IPConfig struct {
	// Address4 and Address6 are in CIDR form, or one of the words above.
	Address4, Gateway4 string
	Address6, Gateway6 string
}

// ParseIPConfig reads the value of an ipconfigN option.
func ParseIPConfig(value string) IPConfig {
	p := ParseProperties(value)
	return IPConfig{Address4: p.Value("ip"), Gateway4: p.Value("gw"), Address6: p.Value("ip6"), Gateway6: p.Value("gw6")}
}

// Encode writes the option. Proxmox refuses a gateway without an address.
func (c IPConfig) Encode() string {
	var p Properties
	for _, part := range []struct{ address, gateway, key, gatewayKey string }{
		{c.Address4, c.Gateway4, "ip", "gw"}, {c.Address6, c.Gateway6, "ip6", "gw6"},
	} {
		if part.address == "" {
			continue
		}
		p = append(p, Property{Key: part.key, Value: part.address})
		if part.gateway != "" {
			p = append(p, Property{Key: part.gatewayKey, Value: part.gateway})
		}
	}
	return p.Encode()
}

// IPConfigSlot is the option that belongs to an interface: ipconfig0 to net0.
func IPConfigSlot(nic string) string { return "ipconfig" + strings.TrimPrefix(nic, "net") }

// IsSubnet tells whether an address with its prefix names the subnet and no host in it:
// 192.168.0.0/24. Single addresses and the pairs of a point-to-point link are hosts.
func IsSubnet(p netip.Prefix) bool {
	return p == p.Masked() && p.Addr().BitLen()-p.Bits() > 1
}
