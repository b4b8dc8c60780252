// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package network

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/ipam"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// Assignment is the network configuration of one VM. It is stored in the Claim's intent.
type Assignment struct {
	// Interfaces by slot.
	Interfaces map[string]InterfaceAddresses `json:"interfaces,omitempty"`
	DNS        []string                      `json:"dns,omitempty"`
	Search     []string                      `json:"search,omitempty"`
}

// InterfaceAddresses are the addresses of one interface.
type InterfaceAddresses struct {
	Address4 netip.Prefix `json:"address4,omitzero"`
	Gateway4 netip.Addr   `json:"gateway4,omitzero"`
	Address6 netip.Prefix `json:"address6,omitzero"`
	Gateway6 netip.Addr   `json:"gateway6,omitzero"`
	DHCP4    bool         `json:"dhcp4,omitempty"`
	DHCP6    bool         `json:"dhcp6,omitempty"`
	SLAAC    bool         `json:"slaac,omitempty"`
	// Bridge and MTU are from the class or the template. An MTU of 0 is the default.
	Bridge string `json:"bridge,omitempty"`
	MTU    int    `json:"mtu,omitempty"`
	// Device and Routing are the settings of the class.
	Device  v1alpha1.InterfaceDevice  `json:"device,omitzero"`
	Routing v1alpha1.InterfaceRouting `json:"routing,omitzero"`
}

// WithAddresses returns the assignment with these addresses instead of those of the same subnets.
func (a Assignment) WithAddresses(addresses []netip.Addr) Assignment {
	a.Interfaces = maps.Clone(a.Interfaces)
	for slot, i := range a.Interfaces {
		for _, address := range addresses {
			switch {
			case i.Address4.Contains(address):
				i.Address4 = netip.PrefixFrom(address, i.Address4.Bits())
			case i.Address6.Contains(address):
				i.Address6 = netip.PrefixFrom(address, i.Address6.Bits())
			}
		}
		a.Interfaces[slot] = i
	}
	return a
}

// WithConfig returns the addresses with those of cloud-init's configuration of the interface.
func (a InterfaceAddresses) WithConfig(c proxmox.IPConfig) InterfaceAddresses {
	a.Address4, _ = netip.ParsePrefix(c.Address4)
	a.Address6, _ = netip.ParsePrefix(c.Address6)
	a.Gateway4, _ = netip.ParseAddr(c.Gateway4)
	a.Gateway6, _ = netip.ParseAddr(c.Gateway6)
	a.DHCP4, a.DHCP6, a.SLAAC = c.Address4 == proxmox.IPConfigDHCP, c.Address6 == proxmox.IPConfigDHCP, c.Address6 == proxmox.IPConfigAuto
	return a
}

// Request describes the VM to assign addresses to.
type Request struct {
	View         inventory.View
	Region, Host string
	// Key identifies the VM. The same key picks the same addresses.
	Key string
	// Machine has the addresses that are not picked; the zero value has none.
	Machine v1alpha1.Machine
	// Busy are addresses that are in use although the View does not show it.
	Busy map[netip.Addr]bool
}

// ExhaustedError reports that all addresses of a pool are taken.
type ExhaustedError struct {
	Source Source
}

func (e *ExhaustedError) Error() string {
	return fmt.Sprintf("%s: all %.0f addresses of %s are taken", e.Source.From, e.Source.Pool.Size(), e.Source.Pool.Subnet())
}

// Assign picks the VM's addresses. It returns an *ExhaustedError if a pool has none left.
func (l Layout) Assign(r Request) (Assignment, error) {
	out := Assignment{Interfaces: make(map[string]InterfaceAddresses, len(l.Interfaces)), DNS: l.DNS, Search: l.Search}
	gateways4 := l.gateways(r, func(i Interface, b proxmox.Bridge) (Source, netip.Addr, netip.Addr) {
		return i.V4, b.CIDR4.Addr(), b.Gateway4
	})
	gateways6 := l.gateways(r, func(i Interface, b proxmox.Bridge) (Source, netip.Addr, netip.Addr) {
		return i.V6, b.CIDR6.Addr(), b.Gateway6
	})
	for _, i := range l.Interfaces {
		assigned := InterfaceAddresses{
			Bridge: i.Bridge, MTU: i.MTU, DHCP4: i.V4.DHCP, DHCP6: i.V6.DHCP, SLAAC: i.V6.SLAAC, Device: i.Device, Routing: i.Routing,
		}
		assigned.Gateway4, assigned.Gateway6 = gateways4[i.Slot], gateways6[i.Slot]
		var err error
		fixed := machineAddresses(r.Machine, i.Slot)
		if assigned.Address4, err = r.pick(i.V4, i.Slot, fixed.Address4, assigned.Gateway4); err != nil {
			return Assignment{}, err
		}
		if assigned.Address6, err = r.pick(i.V6, i.Slot, fixed.Address6, assigned.Gateway6); err != nil {
			return Assignment{}, err
		}
		out.Interfaces[i.Slot] = assigned
	}
	return out, nil
}

// gateways returns the gateways of one address family by slot: that of the pool, else that of the
// Host's bridge, else the Host itself, unless there is another default route. An interface
// without a default route has none.
func (l Layout) gateways(r Request, family func(Interface, proxmox.Bridge) (s Source, host, router netip.Addr)) map[string]netip.Addr {
	out, routed := map[string]netip.Addr{}, false
	fallbackSlot, fallback := "", netip.Addr{}
	for _, i := range l.Interfaces {
		if use := i.Routing.DefaultRoute; use != nil && !*use {
			continue
		}
		s, host, router := family(i, FindBridge(r.View, r.Region, r.Host, i.Bridge))
		if gateway := s.gateway(host, router); gateway.IsValid() {
			out[i.Slot], routed = gateway, true
		} else if fallbackSlot == "" && s.Pool != nil && s.Pool.Subnet().Contains(host) {
			fallbackSlot, fallback = i.Slot, host
		}
		routed = routed || s.DHCP || s.SLAAC
	}
	if fallbackSlot != "" && !routed {
		out[fallbackSlot] = fallback
	}
	return out
}

// gateway returns the gateway of the pool, else that of the Host's bridge if VMs can reach it;
// the zero value if there is none.
func (s Source) gateway(host, router netip.Addr) netip.Addr {
	switch {
	case s.Pool == nil:
		return netip.Addr{}
	case s.Pool.Gateway().IsValid():
		return s.Pool.Gateway()
	case s.Pool.Subnet().Contains(router), router.Is6() && router.IsLinkLocalUnicast() && s.Pool.Subnet().Contains(host):
		return router
	}
	return netip.Addr{}
}

// pick picks an address from a pool, unless the machine has a fixed one.
func (r Request) pick(s Source, slot, fixed string, gateway netip.Addr) (netip.Prefix, error) {
	if s.Pool == nil {
		return netip.Prefix{}, nil
	}
	addresses := r.View.Addresses()
	if fixed != "" {
		address, err := r.checkFixed(s, fixed)
		return netip.PrefixFrom(address, s.Pool.Subnet().Bits()), err
	}
	address, ok := s.Pool.Pick(r.Key+"/"+slot, func(a netip.Addr) ipam.State {
		switch {
		case a == gateway, addresses.IsTaken(a), r.Busy[a]:
			return ipam.Taken
		case addresses.IsRecentlyReleased(a):
			return ipam.RecentlyReleased
		}
		return ipam.Free
	})
	if !ok {
		return netip.Prefix{}, &ExhaustedError{Source: s}
	}
	return netip.PrefixFrom(address, s.Pool.Subnet().Bits()), nil
}

// FindBridge returns a Host's bridge by name, or the zero value if it is unknown.
func FindBridge(view inventory.View, region, host, name string) proxmox.Bridge {
	snapshot, ok := view.Snapshots[region]
	if !ok || snapshot.Facts == nil {
		return proxmox.Bridge{}
	}
	return snapshot.Facts.Bridges[host][name]
}

// Exhausted returns an error for the first pool of the layout without free addresses; nil
// if all have some.
func (l Layout) Exhausted(view inventory.View) *ExhaustedError {
	for _, s := range l.Pools() {
		if !s.Fixed && float64(s.Pool.Used(view.Addresses().All())) >= s.Pool.Size() {
			return &ExhaustedError{Source: s}
		}
	}
	return nil
}

// Addresses returns the addresses that were picked from pools, sorted.
func (a Assignment) Addresses() []netip.Addr {
	var out []netip.Addr
	for _, i := range a.Interfaces {
		for _, prefix := range []netip.Prefix{i.Address4, i.Address6} {
			if prefix.IsValid() {
				out = append(out, prefix.Addr())
			}
		}
	}
	slices.SortFunc(out, netip.Addr.Compare)
	return out
}

// IPConfig returns the ipconfigN value for Proxmox. It makes the addresses visible to other
// users and is the input of Proxmox's cloud-init drive.
func (a InterfaceAddresses) IPConfig() proxmox.IPConfig {
	c := proxmox.IPConfig{}
	switch {
	case a.Address4.IsValid():
		c.Address4 = a.Address4.String()
	case a.DHCP4:
		c.Address4 = proxmox.IPConfigDHCP
	}
	switch {
	case a.Address6.IsValid():
		c.Address6 = a.Address6.String()
	case a.DHCP6:
		c.Address6 = proxmox.IPConfigDHCP
	case a.SLAAC:
		c.Address6 = proxmox.IPConfigAuto
	}
	if a.Address4.IsValid() && a.Gateway4.IsValid() {
		c.Gateway4 = a.Gateway4.String()
	}
	if a.Address6.IsValid() && a.Gateway6.IsValid() {
		c.Gateway6 = a.Gateway6.String()
	}
	return c
}
