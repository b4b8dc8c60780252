// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package network

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/ipam"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// Assignment is what one VM was given. It stands in the Claim's intent.
type Assignment struct {
	// Interfaces by slot.
	Interfaces map[string]InterfaceAddresses `json:"interfaces,omitempty"`
	DNS        []string                      `json:"dns,omitempty"`
	Search     []string                      `json:"search,omitempty"`
}

// Given is what one interface was given.
type InterfaceAddresses struct {
	Address4 netip.Prefix `json:"address4,omitzero"`
	Gateway4 netip.Addr   `json:"gateway4,omitzero"`
	Address6 netip.Prefix `json:"address6,omitzero"`
	Gateway6 netip.Addr   `json:"gateway6,omitzero"`
	DHCP4    bool         `json:"dhcp4,omitempty"`
	DHCP6    bool         `json:"dhcp6,omitempty"`
	SLAAC    bool         `json:"slaac,omitempty"`
	// Bridge and MTU are the Template's; a MTU of 0 is the default.
	Bridge string `json:"bridge,omitempty"`
	MTU    int    `json:"mtu,omitempty"`
}

// Request asks for a VM's addresses.
type Request struct {
	View         inventory.View
	Region, Host string
	// Key belongs to the VM: the same one asks for the same addresses.
	Key string
	// Busy tells of addresses that others have and no View shows; nil for none.
	Busy func(netip.Addr) bool
}

// ExhaustedError says that a pool has nothing left to give.
type ExhaustedError struct {
	Source Source
}

func (e *ExhaustedError) Error() string {
	return fmt.Sprintf("%s: all %.0f addresses of %s are taken", e.Source.From, e.Source.Pool.Size(), e.Source.Pool.Subnet())
}

// Assign picks the VM's addresses. The error is an *ExhaustedError.
func (l Layout) Assign(r Request) (Assignment, error) {
	out := Assignment{Interfaces: make(map[string]InterfaceAddresses, len(l.Interfaces)), DNS: l.DNS, Search: l.Search}
	for _, i := range l.Interfaces {
		given := InterfaceAddresses{Bridge: i.Bridge, MTU: i.MTU, DHCP4: i.V4.DHCP, DHCP6: i.V6.DHCP, SLAAC: i.V6.SLAAC}
		bridge := FindBridge(r.View, r.Region, r.Host, i.Bridge)
		var err error
		if given.Address4, given.Gateway4, err = r.pick(i.V4, i.Slot, bridge.CIDR4.Addr(), bridge.Gateway4); err != nil {
			return Assignment{}, err
		}
		if given.Address6, given.Gateway6, err = r.pick(i.V6, i.Slot, bridge.CIDR6.Addr(), bridge.Gateway6); err != nil {
			return Assignment{}, err
		}
		out.Interfaces[i.Slot] = given
	}
	return out, nil
}

// pick takes an address out of a pool, and finds the gateway: the pool's, else that of
// the Host's bridge, else the Host itself, as on a bridge that the Host routes for.
func (r Request) pick(s Source, slot string, host, router netip.Addr) (netip.Prefix, netip.Addr, error) {
	if s.Pool == nil {
		return netip.Prefix{}, netip.Addr{}, nil
	}
	gateway := s.Pool.Gateway()
	for _, candidate := range []netip.Addr{router, host} {
		if !gateway.IsValid() && candidate.IsValid() && s.Pool.Subnet().Contains(candidate) {
			gateway = candidate
		}
	}
	addresses := r.View.Addresses()
	address, ok := s.Pool.Pick(r.Key+"/"+slot, func(a netip.Addr) ipam.State {
		switch {
		case a == gateway, addresses.IsTaken(a), r.Busy != nil && r.Busy(a):
			return ipam.Taken
		case addresses.IsRecentlyReleased(a):
			return ipam.RecentlyReleased
		}
		return ipam.Free
	})
	if !ok {
		return netip.Prefix{}, netip.Addr{}, &ExhaustedError{Source: s}
	}
	return netip.PrefixFrom(address, s.Pool.Subnet().Bits()), gateway, nil
}

// Bridge finds a Host's bridge by name; the zero value where it is not known.
func FindBridge(view inventory.View, region, host, name string) proxmox.Bridge {
	snapshot, ok := view.Snapshots[region]
	if !ok || snapshot.Facts == nil {
		return proxmox.Bridge{}
	}
	return snapshot.Facts.Bridges[host][name]
}

// Exhausted tells which pool of the layout has nothing left; nil when all have.
func (l Layout) Exhausted(view inventory.View) *ExhaustedError {
	for _, s := range l.Pools() {
		if float64(s.Pool.Used(view.Addresses().All())) >= s.Pool.Size() {
			return &ExhaustedError{Source: s}
		}
	}
	return nil
}

// Addresses that were picked from pools.
func (a Assignment) Addresses() []netip.Addr {
	var out []netip.Addr
	for _, given := range a.Interfaces {
		for _, prefix := range []netip.Prefix{given.Address4, given.Address6} {
			if prefix.IsValid() {
				out = append(out, prefix.Addr())
			}
		}
	}
	slices.SortFunc(out, netip.Addr.Compare)
	return out
}

// IPConfig writes it for Proxmox, where others can see it, and from where Proxmox's own
// cloud-init drive takes it.
func (g InterfaceAddresses) IPConfig() proxmox.IPConfig {
	c := proxmox.IPConfig{}
	switch {
	case g.Address4.IsValid():
		c.Address4 = g.Address4.String()
	case g.DHCP4:
		c.Address4 = proxmox.IPConfigDHCP
	}
	switch {
	case g.Address6.IsValid():
		c.Address6 = g.Address6.String()
	case g.DHCP6:
		c.Address6 = proxmox.IPConfigDHCP
	case g.SLAAC:
		c.Address6 = proxmox.IPConfigAuto
	}
	if g.Address4.IsValid() && g.Gateway4.IsValid() {
		c.Gateway4 = g.Gateway4.String()
	}
	if g.Address6.IsValid() && g.Gateway6.IsValid() {
		c.Gateway6 = g.Gateway6.String()
	}
	return c
}
