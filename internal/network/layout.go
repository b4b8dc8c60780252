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

// Layout is how the interfaces of a class's VMs get their addresses, on the Hosts that
// have the same Template.
type Layout struct {
	Interfaces []Interface
	// DNS and Search are the name servers and search domains.
	DNS, Search []string
}

// Interface of a VM.
type Interface struct {
	Slot   string // net0
	Bridge string
	VLAN   int // 0 = none
	MTU    int // 0 = the default, or the bridge's
	V4, V6 Source
}

// Source of the addresses of one family. The zero value gives none.
type Source struct {
	// Pool that each VM gets an address of; nil where there is none.
	Pool        *ipam.Pool
	DHCP, SLAAC bool
	// From says where that stands, for messages.
	From string
}

// Of puts together what the class and its Template say. The error names every field
// that is wrong.
func NewLayout(class *v1alpha1.ProxmoxNodeClass, template proxmox.VMConfig) (Layout, error) {
	asked, errs := sources(class)
	l := Layout{DNS: words(template.Options["nameserver"]), Search: words(template.Options["searchdomain"])}
	if n := class.Spec.Network; n != nil {
		if len(n.DNSServers) > 0 {
			l.DNS = n.DNSServers
		}
		if len(n.SearchDomains) > 0 {
			l.Search = n.SearchDomains
		}
	}
	var slots []string
	for _, nic := range template.Network().NICs() {
		slots = append(slots, nic.Slot)
		i, err := inherited(nic, template.Network().IPConfig(nic.Slot))
		if own, ok := asked[nic.Slot]; ok {
			i.V4, i.V6 = cmp.Or(own.V4, i.V4), cmp.Or(own.V6, i.V6)
			if own.V4 != (Source{}) && own.V6 != (Source{}) {
				err = nil // what the template says is not used
			}
		}
		if err != nil {
			errs = append(errs, err)
		}
		if i.V4 == (Source{}) && i.V6 == (Source{}) {
			i.V4 = Source{DHCP: true}
		}
		l.Interfaces = append(l.Interfaces, i)
	}
	errs = append(errs, unknown(class, slots)...)
	if err := errors.Join(append(errs, overlaps(l.Interfaces)...)...); err != nil {
		return Layout{}, err
	}
	return l, nil
}

// Check tells what is wrong with a class whatever its Template.
func Check(class *v1alpha1.ProxmoxNodeClass) error {
	asked, errs := sources(class)
	var interfaces []Interface
	for _, i := range asked {
		interfaces = append(interfaces, i)
	}
	return errors.Join(append(errs, overlaps(interfaces)...)...)
}

// sources reads the class's interfaces, by slot.
func sources(class *v1alpha1.ProxmoxNodeClass) (map[string]Interface, []error) {
	if class.Spec.Network == nil {
		return nil, nil
	}
	asked := map[string]Interface{}
	var errs []error
	for n, in := range class.Spec.Network.Interfaces {
		i := Interface{Slot: in.Name}
		for _, family := range []struct {
			name   string
			source *v1alpha1.AddressSource
			out    *Source
		}{{"address4", in.Address4, &i.V4}, {"address6", in.Address6, &i.V6}} {
			var err error
			if *family.out, err = source(fmt.Sprintf("spec.network.interfaces[%d].%s", n, family.name), family.source); err != nil {
				errs = append(errs, err)
			}
		}
		asked[in.Name] = i
	}
	return asked, errs
}

func source(field string, s *v1alpha1.AddressSource) (Source, error) {
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

// inherited reads what the Template says about an interface.
func inherited(nic proxmox.NIC, c proxmox.IPConfig) (Interface, error) {
	i := Interface{Slot: nic.Slot, Bridge: nic.Bridge, VLAN: nic.VLAN, MTU: nic.MTU}
	if nic.MTU == 1 {
		i.MTU = 0 // Proxmox's word for the bridge's, which the guest learns from its card
	}
	from := proxmox.IPConfigSlot(nic.Slot) + " of the template"
	var err4, err6 error
	i.V4, err4 = worded(from, c.Address4, c.Gateway4)
	i.V6, err6 = worded(from, c.Address6, c.Gateway6)
	return i, errors.Join(err4, err6)
}

func worded(from, address, gateway string) (Source, error) {
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

// unknown names the interfaces that the class knows and the Template does not.
func unknown(class *v1alpha1.ProxmoxNodeClass, slots []string) []error {
	has := "none"
	if len(slots) > 0 {
		has = strings.Join(slots, ", ")
	}
	var errs []error
	if class.Spec.Network != nil {
		for n, in := range class.Spec.Network.Interfaces {
			if !slices.Contains(slots, in.Name) {
				errs = append(errs, fmt.Errorf("spec.network.interfaces[%d].name %s is no interface of the template, which has %s", n, in.Name, has))
			}
		}
	}
	for n, group := range class.Spec.SecurityGroups {
		if !slices.Contains(slots, group.Interface) {
			errs = append(errs, fmt.Errorf("spec.securityGroups[%d].interface %s is no interface of the template, which has %s", n, group.Interface, has))
		}
	}
	return errs
}

// overlaps finds pairs of interfaces in one subnet: the guest could not tell which of
// the two leads to its neighbours.
func overlaps(interfaces []Interface) []error {
	slices.SortFunc(interfaces, func(a, b Interface) int { return cmp.Or(len(a.Slot)-len(b.Slot), cmp.Compare(a.Slot, b.Slot)) })
	var errs []error
	for n, a := range interfaces {
		for _, b := range interfaces[n+1:] {
			for _, pair := range [][2]Source{{a.V4, b.V4}, {a.V6, b.V6}} {
				if pair[0].Pool != nil && pair[1].Pool != nil && pair[0].Pool.Subnet().Overlaps(pair[1].Pool.Subnet()) {
					errs = append(errs, fmt.Errorf("%s (%s) and %s (%s) overlap: each interface needs a subnet of its own",
						pair[0].From, pair[0].Pool.Subnet(), pair[1].From, pair[1].Pool.Subnet()))
				}
			}
		}
	}
	return errs
}

// Pools lists the sources that are pools.
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

// words takes a list apart as Proxmox does.
func words(list string) []string {
	if list == "" {
		return nil
	}
	return strings.FieldsFunc(list, func(r rune) bool { return r == ' ' || r == ',' || r == ';' })
}
