// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package network

import (
	"fmt"
	"net/netip"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
)

// invalidRoutes returns an error for each address of an interface's routing that the API
// server's patterns accept but that is not one.
func invalidRoutes(field string, r v1alpha1.InterfaceRouting) []error {
	var errs []error
	subnet := func(at, text string) {
		prefix, err := netip.ParsePrefix(text)
		switch {
		case err != nil:
			errs = append(errs, fmt.Errorf("%s.%s %q is not a subnet: want a subnet such as 10.0.0.0/8 or 2001:db8::/64", field, at, text))
		case prefix != prefix.Masked():
			errs = append(errs, fmt.Errorf("%s.%s %s is an address in a subnet: want the subnet %s", field, at, text, prefix.Masked()))
		}
	}
	address := func(at, text string) {
		if err := checkAddress(field+"."+at, text); err != nil {
			errs = append(errs, err)
		}
	}
	for n, route := range r.Routes {
		subnet(fmt.Sprintf("routes[%d].to", n), route.To)
		if route.Via != "" {
			address(fmt.Sprintf("routes[%d].via", n), route.Via)
		}
	}
	for n, rule := range r.PolicyRoutes {
		if rule.From != "" {
			subnet(fmt.Sprintf("policyRoutes[%d].from", n), rule.From)
		}
		if rule.To != "" {
			subnet(fmt.Sprintf("policyRoutes[%d].to", n), rule.To)
		}
	}
	for n, server := range r.DNSServers {
		address(fmt.Sprintf("dnsServers[%d]", n), server)
	}
	return errs
}

// checkAddress fails if the text of a field is not an IP address.
func checkAddress(field, text string) error {
	if _, err := netip.ParseAddr(text); err != nil {
		return fmt.Errorf("%s %q is not an address: want an address such as 192.168.0.1 or 2001:db8::1", field, text)
	}
	return nil
}
