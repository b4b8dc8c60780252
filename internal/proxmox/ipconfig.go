// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox

import (
	"net/netip"
	"strings"
)

// Values of an ipconfigN option instead of an address.
const (
	IPConfigDHCP = "dhcp"
	// IPConfigAuto is SLAAC; for IPv6 only.
	IPConfigAuto = "auto"
	// IPConfigManual configures no address.
	IPConfigManual = "manual"
)

// IPConfig is cloud-init's configuration of an interface, "ipconfigN" in a VM's config.
// Proxmox also accepts it on VMs without a cloud-init drive, where it documents the
// VM's addresses for other users of the Cluster.
type IPConfig struct {
	// Address4 and Address6 are in CIDR notation, or one of the values above.
	Address4, Gateway4 string
	Address6, Gateway6 string
}

// ParseIPConfig parses the value of an ipconfigN option.
func ParseIPConfig(value string) IPConfig {
	p := ParseProperties(value)
	return IPConfig{Address4: p.Value("ip"), Gateway4: p.Value("gw"), Address6: p.Value("ip6"), Gateway6: p.Value("gw6")}
}

// Encode returns the value of the option. It omits a gateway without an address,
// which Proxmox refuses.
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

// IPConfigSlot returns the option of an interface: ipconfig0 for net0.
func IPConfigSlot(nic string) string { return "ipconfig" + strings.TrimPrefix(nic, "net") }

// isSubnet reports whether a prefix is a subnet and not the address of a host in it:
// 192.168.0.0/24. Single addresses and the pairs of a point-to-point link are hosts.
func isSubnet(p netip.Prefix) bool {
	return p == p.Masked() && p.Addr().BitLen()-p.Bits() > 1
}
