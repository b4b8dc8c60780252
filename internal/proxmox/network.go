// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
)

// NetworkClient reads the networks of a Cluster and sets the firewall of VMs.
type NetworkClient interface {
	// Bridges returns the bridges and vnets of a Host that the user may use.
	Bridges(ctx context.Context, host string) ([]Bridge, error)
	// InterfaceAddresses returns the addresses of all of a Host's interfaces. It needs Sys.Audit on the Host.
	InterfaceAddresses(ctx context.Context, host string) ([]netip.Addr, error)
	// VNets returns the virtual networks of the SDN visible to the user.
	VNets(ctx context.Context) ([]VNet, error)
	// SDNAddresses returns the addresses assigned by Proxmox's own IPAM on virtual
	// networks visible to the user. There are none without SDN.
	SDNAddresses(ctx context.Context) ([]SDNAddress, error)
	// SecurityGroups returns the names of the Cluster's firewall groups.
	SecurityGroups(ctx context.Context) ([]string, error)
	// SecurityGroupRules returns the rules of a VM that refer to a security group.
	SecurityGroupRules(ctx context.Context, host string, vmid int) ([]SecurityGroupRule, error)
	// SetFirewall enables the VM's firewall and sets its security-group rules, which
	// are compared by group and interface and not by position. Without rules it
	// removes the groups and disables the firewall. Several calls.
	SetFirewall(ctx context.Context, host string, vmid int, rules []SecurityGroupRule) error
}

type networkClient struct{ *caller }

// Bridge is a network of a Host that a VM's NIC can be attached to.
type Bridge struct {
	Name string
	Type string // bridge, OVSBridge, or vnet for one of the SDN
	// VLANAware bridges handle the NICs' VLAN tags themselves. On the ports of other
	// bridges Proxmox creates a VLAN interface.
	VLANAware bool
	Ports     string
	// CIDR4 and CIDR6 are the Host's own address on the bridge, if it has one.
	CIDR4, CIDR6       netip.Prefix
	Gateway4, Gateway6 netip.Addr
}

func (c networkClient) Bridges(ctx context.Context, host string) ([]Bridge, error) {
	var rows []struct {
		Iface     string
		Type      string
		Ports     string  `json:"bridge_ports"`
		OVSPorts  string  `json:"ovs_ports"`
		VLANAware numeric `json:"bridge_vlan_aware"`
		CIDR      string
		CIDR6     string
		Gateway   string
		Gateway6  string
	}
	if err := c.get(ctx, at("/nodes/{node}/network", host).with("type", "any_bridge"), &rows); err != nil {
		return nil, fmt.Errorf("reading the bridges of host %s: %w", host, err)
	}
	bridges := make([]Bridge, 0, len(rows))
	for _, row := range rows {
		bridge := Bridge{
			Name: row.Iface, Type: row.Type, VLANAware: row.VLANAware.isSet(), Ports: strings.TrimSpace(row.Ports + " " + row.OVSPorts),
		}
		// Addresses are optional: those that do not parse stay zero.
		bridge.CIDR4, _ = netip.ParsePrefix(row.CIDR)
		bridge.CIDR6, _ = netip.ParsePrefix(row.CIDR6)
		bridge.Gateway4, _ = netip.ParseAddr(row.Gateway)
		bridge.Gateway6, _ = netip.ParseAddr(row.Gateway6)
		bridges = append(bridges, bridge)
	}
	return bridges, nil
}

func (c networkClient) InterfaceAddresses(ctx context.Context, host string) ([]netip.Addr, error) {
	var rows []struct{ CIDR, CIDR6 string }
	if err := c.get(ctx, at("/nodes/{node}/network", host), &rows); err != nil {
		return nil, fmt.Errorf("reading the interfaces of host %s: %w", host, err)
	}
	var addresses []netip.Addr
	for _, row := range rows {
		for _, text := range []string{row.CIDR, row.CIDR6} {
			if prefix, err := netip.ParsePrefix(text); err == nil {
				addresses = append(addresses, prefix.Addr())
			}
		}
	}
	return addresses, nil
}

// VNet is a virtual network of the Cluster's SDN.
type VNet struct {
	Name      string
	Zone      string
	VLANAware bool
}

func (c networkClient) VNets(ctx context.Context) ([]VNet, error) {
	var rows []struct {
		VNet      string
		Zone      string
		VLANAware numeric
	}
	if err := c.get(ctx, at("/cluster/sdn/vnets"), &rows); err != nil {
		return nil, fmt.Errorf("reading the vnets: %w", err)
	}
	vnets := make([]VNet, 0, len(rows))
	for _, row := range rows {
		vnets = append(vnets, VNet{Name: row.VNet, Zone: row.Zone, VLANAware: row.VLANAware.isSet()})
	}
	return vnets, nil
}

// SDNAddress is an address assigned by Proxmox's own IPAM.
type SDNAddress struct {
	Address netip.Addr
	MAC     string
	// VMID is 0 for the gateway of a subnet.
	VMID       int
	VNet, Zone string
}

func (c networkClient) SDNAddresses(ctx context.Context) ([]SDNAddress, error) {
	var rows []struct {
		IP   string  `json:"ip"`
		MAC  string  `json:"mac"`
		VMID numeric `json:"vmid"`
		VNet string  `json:"vnet"`
		Zone string  `json:"zone"`
	}
	if err := c.get(ctx, at("/cluster/sdn/ipams/{ipam}/status", "pve"), &rows); err != nil {
		return nil, fmt.Errorf("reading the addresses of the cluster's own IPAM: %w", err)
	}
	out := make([]SDNAddress, 0, len(rows))
	for _, row := range rows {
		if addr, err := netip.ParseAddr(row.IP); err == nil {
			out = append(out, SDNAddress{Address: addr, MAC: row.MAC, VMID: int(row.VMID.whole()), VNet: row.VNet, Zone: row.Zone})
		}
	}
	return out, nil
}

func (c networkClient) SecurityGroups(ctx context.Context) ([]string, error) {
	var rows []struct{ Group string }
	if err := c.get(ctx, at("/cluster/firewall/groups"), &rows); err != nil {
		return nil, fmt.Errorf("reading the security groups: %w", err)
	}
	names := make([]string, 0, len(rows))
	for _, row := range rows {
		names = append(names, row.Group)
	}
	return names, nil
}
