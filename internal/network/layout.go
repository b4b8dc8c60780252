// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package network

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/ipam"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// Layout describes how the interfaces of a class's VMs get their addresses, on Hosts with
// the same template.
type Layout struct {
	Interfaces []Interface
	// DNS and Search are the name servers and search domains.
	DNS, Search []string
}

// Interface is a network interface of a VM.
type Interface struct {
	Slot   string // net0
	Bridge string
	VLAN   int // 0 for none
	MTU    int // 0 for the default or that of the bridge
	V4, V6 Source
	// Device and Routing are the settings of the class.
	Device  v1alpha1.InterfaceDevice
	Routing v1alpha1.InterfaceRouting
}

// Source is where an interface gets its addresses of one family from. The zero value means
// no addresses.
type Source struct {
	// Pool to pick each VM's address from; nil for none.
	Pool        *ipam.Pool
	DHCP, SLAAC bool
	// Fixed: each machine of the class has its own address, so none is picked from the Pool.
	Fixed bool
	// From is the field that configures the source, for messages.
	From string
}

func (s Source) hasAddresses() bool { return s.Pool != nil || s.DHCP || s.SLAAC }

// NewLayout combines the class and its template. The error names every invalid field.
func NewLayout(class *v1alpha1.ProxmoxNodeClass, template proxmox.VMConfig) (Layout, error) {
	requested, errs := classInterfaces(class)
	errs = append(errs, invalidNameServers(class)...)
	l := Layout{DNS: splitList(template.Options["nameserver"]), Search: splitList(template.Options["searchdomain"])}
	if n := class.Spec.Network; n != nil {
		if len(n.DNSServers) > 0 {
			l.DNS = n.DNSServers
		}
		if len(n.SearchDomains) > 0 {
			l.Search = n.SearchDomains
		}
	}
	nics := NICs(class, template)
	for _, nic := range nics {
		i, err4, err6 := templateInterface(nic.NIC, template.Network().IPConfig(nic.Slot))
		own := requested[nic.Slot]
		if i.V4 = cmp.Or(own.V4, i.V4); own.V4 == (Source{}) {
			errs = append(errs, err4)
		}
		if i.V6 = cmp.Or(own.V6, i.V6); own.V6 == (Source{}) {
			errs = append(errs, err6)
		}
		i.Device, i.Routing = own.Device, own.Routing
		if i.V4 == (Source{}) && i.V6 == (Source{}) {
			i.V4 = Source{DHCP: true}
		}
		if i.Routing.IsSet() && !i.V4.hasAddresses() && !i.V6.hasAddresses() {
			errs = append(errs, fmt.Errorf("spec.network: %s has no addresses, so it is not in the boot data: remove its routes and name servers", i.Slot))
		}
		l.Interfaces = append(l.Interfaces, i)
	}
	errs = append(errs, unknownInterfaces(class, nics)...)
	errs = append(errs, invalidDevices(class, nics)...)
	errs = append(errs, invalidMachines(class, l.Interfaces)...)
	setFixed(class, l.Interfaces)
	if err := errors.Join(append(errs, findOverlaps(l.Interfaces)...)...); err != nil {
		return Layout{}, err
	}
	return l, nil
}

// invalidNameServers returns an error for each name server of the class that the API server's
// pattern accepts but that is not an address.
func invalidNameServers(class *v1alpha1.ProxmoxNodeClass) []error {
	if class.Spec.Network == nil {
		return nil
	}
	var errs []error
	for n, server := range class.Spec.Network.DNSServers {
		if err := checkAddress(fmt.Sprintf("spec.network.dnsServers[%d]", n), server); err != nil {
			errs = append(errs, err)
		}
	}
	return errs
}

// classInterfaces returns the class's interfaces by slot.
func classInterfaces(class *v1alpha1.ProxmoxNodeClass) (map[string]Interface, []error) {
	if class.Spec.Network == nil {
		return nil, nil
	}
	requested := map[string]Interface{}
	var errs []error
	for n, in := range class.Spec.Network.Interfaces {
		i := Interface{Slot: in.Name, Device: in.InterfaceDevice, Routing: in.InterfaceRouting}
		errs = append(errs, invalidRoutes(fmt.Sprintf("spec.network.interfaces[%d]", n), in.InterfaceRouting)...)
		for _, family := range []struct {
			name   string
			source *v1alpha1.AddressSource
			out    *Source
		}{{"address4", in.Address4, &i.V4}, {"address6", in.Address6, &i.V6}} {
			var err error
			if *family.out, err = classSource(fmt.Sprintf("spec.network.interfaces[%d].%s", n, family.name), family.source); err != nil {
				errs = append(errs, err)
			}
		}
		requested[in.Name] = i
	}
	return requested, errs
}

func classSource(field string, s *v1alpha1.AddressSource) (Source, error) {
	if s == nil {
		return Source{}, nil
	}
	out := Source{From: field, DHCP: s.Method == v1alpha1.AddressMethodDHCP, SLAAC: s.Method == v1alpha1.AddressMethodSLAAC}
	if s.CIDR == "" {
		return out, nil
	}
	pool, err := ipam.NewPool(ipam.Spec{CIDR: s.CIDR, Ranges: s.Ranges, Exclude: s.Exclude, Gateway: s.Gateway})
	if err != nil {
		return out, fmt.Errorf("%s.%w", field, err)
	}
	out.Pool = &pool
	return out, nil
}

// templateInterface returns an interface of the template, and an error for each family whose
// address is invalid.
func templateInterface(nic proxmox.NIC, c proxmox.IPConfig) (i Interface, err4, err6 error) {
	i = Interface{Slot: nic.Slot, Bridge: nic.Bridge, VLAN: nic.VLAN, MTU: nic.MTU}
	if nic.MTU == 1 {
		i.MTU = 0 // means the MTU of the bridge; the virtio NIC reports it to the guest
	}
	from := proxmox.IPConfigSlot(nic.Slot) + " of the template"
	i.V4, err4 = parseIPConfig(from, c.Address4, c.Gateway4)
	i.V6, err6 = parseIPConfig(from, c.Address6, c.Gateway6)
	return i, err4, err6
}

func parseIPConfig(from, address, gateway string) (Source, error) {
	switch address {
	case "":
		return Source{}, nil
	case proxmox.IPConfigManual:
		return Source{From: from}, nil
	case proxmox.IPConfigDHCP:
		return Source{From: from, DHCP: true}, nil
	case proxmox.IPConfigAuto:
		return Source{From: from, SLAAC: true}, nil
	}
	pool, err := ipam.NewPool(ipam.Spec{CIDR: address, Gateway: gateway})
	if err != nil {
		return Source{From: from}, fmt.Errorf("%s: %w", from, err)
	}
	return Source{From: from, Pool: &pool}, nil
}

// unknownInterfaces returns an error for each interface in the class that its VMs lack.
func unknownInterfaces(class *v1alpha1.ProxmoxNodeClass, nics []NIC) []error {
	has := func(slot string) bool {
		return slices.ContainsFunc(nics, func(nic NIC) bool { return nic.Slot == slot })
	}
	var errs []error
	if class.Spec.Network != nil {
		for n, in := range class.Spec.Network.Interfaces {
			if !has(in.Name) {
				errs = append(errs, fmt.Errorf("spec.network.interfaces[%d].name %s is not an interface of the template, which has %s: set bridge to create it",
					n, in.Name, templateSlots(nics)))
			}
		}
	}
	for n, group := range class.Spec.SecurityGroups {
		if !has(group.Interface) {
			errs = append(errs, fmt.Errorf("spec.securityGroups[%d].interface %s is not an interface of the template, which has %s, nor of spec.network",
				n, group.Interface, templateSlots(nics)))
		}
	}
	return errs
}

// templateSlots lists the interfaces of the template.
func templateSlots(nics []NIC) string {
	var slots []string
	for _, nic := range nics {
		if !nic.IsNew {
			slots = append(slots, nic.Slot)
		}
	}
	if len(slots) == 0 {
		return "none"
	}
	return strings.Join(slots, ", ")
}

// findOverlaps returns an error for each pair of interfaces in one subnet: the guest could
// not choose between them.
func findOverlaps(interfaces []Interface) []error {
	slices.SortFunc(interfaces, func(a, b Interface) int { return compareSlots(a.Slot, b.Slot) })
	var errs []error
	for n, a := range interfaces {
		for _, b := range interfaces[n+1:] {
			for _, pair := range [][2]Source{{a.V4, b.V4}, {a.V6, b.V6}} {
				if pair[0].Pool != nil && pair[1].Pool != nil && pair[0].Pool.Subnet().Overlaps(pair[1].Pool.Subnet()) {
					errs = append(errs, fmt.Errorf("%s (%s) and %s (%s) overlap: each interface needs its own subnet",
						pair[0].From, pair[0].Pool.Subnet(), pair[1].From, pair[1].Pool.Subnet()))
				}
			}
		}
	}
	return errs
}

// Pools returns the sources with a pool.
func (l Layout) Pools() []Source {
	var out []Source
	for _, i := range l.Interfaces {
		for _, s := range []Source{i.V4, i.V6} {
			if s.Pool != nil {
				out = append(out, s)
			}
		}
	}
	return out
}

// splitList splits a list like Proxmox: at spaces, commas and semicolons.
func splitList(list string) []string {
	if list == "" {
		return nil
	}
	return strings.FieldsFunc(list, func(r rune) bool { return r == ' ' || r == ',' || r == ';' })
}
