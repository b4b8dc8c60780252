// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package boot

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/bootdata"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/network"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// guestNetwork returns the guest's network for the boot data, in the order of the
// interfaces.
func guestNetwork(in instance.Intent, bridges func(name string) proxmox.Bridge) bootdata.Network {
	out := bootdata.Network{
		Interfaces:  make([]bootdata.Interface, 0, len(in.MACs)),
		NameServers: in.Network.DNS, SearchDomains: in.Network.Search,
	}
	for _, slot := range sortedInterfaces(in.MACs) {
		assigned, known := in.Network.Interfaces[slot]
		if known && assigned.IPConfig() == (proxmox.IPConfig{}) {
			continue // the class leaves it unconfigured
		}
		// An unknown interface gets DHCP, the default of bootdata.
		nic := bootdata.Interface{
			Name: guestName(slot), MacAddr: in.MACs[slot], MTU: assigned.MTU,
			DHCPv4: assigned.DHCP4, DHCPv6: assigned.DHCP6, SLAAC: assigned.SLAAC,
			Address4: prefixes(assigned.Address4), Gateway4: addrString(assigned.Gateway4),
			Address6: prefixes(assigned.Address6), Gateway6: addrString(assigned.Gateway6),
			OnLink4: isOnLink(assigned.Address4, assigned.Gateway4), OnLink6: isOnLink(assigned.Address6, assigned.Gateway6),
		}
		if bridges != nil {
			bridge := bridges(assigned.Bridge)
			nic.NodeAddress4, nic.NodeGateway4 = prefixString(bridge.CIDR4), addrString(bridge.Gateway4)
			nic.NodeAddress6, nic.NodeGateway6 = prefixString(bridge.CIDR6), addrString(bridge.Gateway6)
		}
		out.Interfaces = append(out.Interfaces, withRouting(nic, assigned))
	}
	return out
}

// guestName returns the name of an interface in the guest: eth0 for net0.
func guestName(slot string) string { return "eth" + strings.TrimPrefix(slot, "net") }

// withRouting adds the routes and name servers that the class sets on an interface.
func withRouting(nic bootdata.Interface, assigned network.InterfaceAddresses) bootdata.Interface {
	r := assigned.Routing
	if use := r.DefaultRoute; use != nil && !*use {
		nic.NoDefaultRoute4, nic.NoDefaultRoute6 = true, true
	} else {
		if nic.Gateway4 != "" || nic.DHCPv4 {
			nic.Metric4 = int(r.Metric)
		}
		if nic.Gateway6 != "" || nic.DHCPv6 || nic.SLAAC {
			nic.Metric6 = int(r.Metric)
		}
	}
	for _, route := range r.Routes {
		via, _ := netip.ParseAddr(route.Via) // invalid if it is empty
		subnet := assigned.Address4
		if via.Is6() {
			subnet = assigned.Address6
		}
		nic.Routes = append(nic.Routes, bootdata.Route{
			To: route.To, Via: route.Via, Metric: int(route.Metric), Table: int(route.Table), OnLink: subnet.IsValid() && isOnLink(subnet, via),
		})
	}
	for _, rule := range r.PolicyRoutes {
		nic.PolicyRoutes = append(nic.PolicyRoutes, bootdata.PolicyRoute{From: rule.From, To: rule.To, Table: int(rule.Table), Priority: int(rule.Priority)})
	}
	nic.NameServers, nic.SearchDomains = r.DNSServers, r.SearchDomains
	return nic
}

// isOnLink reports whether a gateway needs a route of its own: it is outside of the
// subnet. Every interface with IPv6 has a route to link-local addresses.
func isOnLink(p netip.Prefix, gateway netip.Addr) bool {
	return gateway.IsValid() && !p.Contains(gateway) && !(gateway.Is6() && gateway.IsLinkLocalUnicast())
}

func addrString(a netip.Addr) string {
	if !a.IsValid() {
		return ""
	}
	return a.String()
}

func prefixString(p netip.Prefix) string {
	if !p.IsValid() {
		return ""
	}
	return p.String()
}

func prefixes(p netip.Prefix) []string {
	if !p.IsValid() {
		return nil
	}
	return []string{p.String()}
}

// sortedInterfaces returns the interfaces in numerical order: net0, net2, net10.
func sortedInterfaces(macs map[string]string) []string {
	return slices.SortedFunc(maps.Keys(macs), func(a, b string) int {
		return cmp.Or(cmp.Compare(len(a), len(b)), strings.Compare(a, b))
	})
}
