// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// family is an address family, as an option of the ip command.
type family string

const (
	ipv4 family = "-4"
	ipv6 family = "-6"
)

func familyOf(ip netip.Addr) family {
	if ip.Is4() {
		return ipv4
	}
	return ipv6
}

// firstAddresses returns the guest's first address of each family, in the given order.
func (g *guest) firstAddresses(families ...family) []netip.Addr {
	var out []netip.Addr
	for _, f := range families {
		if i := slices.IndexFunc(g.addresses, func(a address) bool { return familyOf(a.Addr()) == f }); i >= 0 {
			out = append(out, g.addresses[i].Addr())
		}
	}
	return out
}

// sourceAddresses returns the output of a script that prints the source addresses of routes,
// separated by commas.
func (g *guest) sourceAddresses(script string) string {
	families := slices.DeleteFunc([]family{ipv4, ipv6}, func(f family) bool {
		return !strings.Contains(script, "ip "+string(f)+" route get ")
	})
	return joinAddresses(g.firstAddresses(families...))
}

func joinAddresses(ips []netip.Addr) string {
	texts := make([]string, 0, len(ips))
	for _, ip := range ips {
		texts = append(texts, ip.String())
	}
	return strings.Join(texts, ",")
}

// parseNodeIPs parses --node-ip: one address, or one of each family. A kubelet ignores
// addresses that it cannot parse.
func parseNodeIPs(text string) ([]netip.Addr, error) {
	var ips []netip.Addr
	for part := range strings.SplitSeq(text, ",") {
		if ip, err := netip.ParseAddr(strings.TrimSpace(part)); err == nil {
			ips = append(ips, ip)
		}
	}
	switch {
	case len(ips) > 2, len(ips) == 2 && familyOf(ips[0]) == familyOf(ips[1]):
		return nil, fmt.Errorf("bad --node-ip %q: must contain either a single IP or a dual-stack pair of IPs", text)
	case len(ips) == 2 && slices.ContainsFunc(ips, netip.Addr.IsUnspecified):
		return nil, fmt.Errorf("bad --node-ip %q: dual-stack node IP cannot include '0.0.0.0' or '::'", text)
	}
	return ips, nil
}

// providedNodeIP returns the value of the annotation by which a kubelet passes --node-ip to
// an external cloud provider, or "" if it sets no annotation.
func (s kubeletSettings) providedNodeIP() string {
	if !s.externalProvider || slices.ContainsFunc(s.nodeIPs, netip.Addr.IsUnspecified) {
		return ""
	}
	return joinAddresses(s.nodeIPs)
}

// nodeAddresses returns the addresses that the kubelet sets on a Node that has none:
// --node-ip, or by default one address of the guest, preferably IPv4. With an external
// cloud provider there is no default; the cloud controller manager sets the addresses.
func (k *kubelet) nodeAddresses() []corev1.NodeAddress {
	ips := k.settings.nodeIPs
	switch {
	case len(ips) == 0 && k.settings.externalProvider:
	case len(ips) == 0 || ips[0].IsUnspecified():
		preference := []family{ipv4, ipv6}
		if len(ips) > 0 && familyOf(ips[0]) == ipv6 {
			slices.Reverse(preference)
		}
		ips = k.firstAddresses(preference...)[:1]
	default:
		for _, ip := range ips {
			if !slices.ContainsFunc(k.addresses, func(a address) bool { return a.Addr() == ip }) {
				k.console.printf("kubelet: failed to validate nodeIP: node IP: %q not found in the host's network interfaces", ip)
				return nil
			}
		}
	}
	var out []corev1.NodeAddress
	for _, ip := range ips {
		out = append(out, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: ip.String()})
	}
	return append(out, corev1.NodeAddress{Type: corev1.NodeHostName, Address: k.settings.nodeName})
}
