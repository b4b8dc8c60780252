// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox

import (
	"context"
	"fmt"
	"net/netip"
)

// ContainerConfig reads the configuration of a container in the form of a VM's.
func (c *client) ContainerConfig(ctx context.Context, host string, vmid int) (VMConfig, error) {
	var config VMConfig
	if err := c.get(ctx, at("/nodes/{node}/lxc/{vmid}/config", host, vmid), &config); err != nil {
		return VMConfig{}, fmt.Errorf("reading the config of container %d on host %s, %w", vmid, host, err)
	}
	return config, nil
}

// SDNAddress is an address that Proxmox's own IPAM gave.
type SDNAddress struct {
	Address netip.Addr
	MAC     string
	// VMID is 0 for the gateway of a subnet.
	VMID       int
	VNet, Zone string
}

// SDNAddresses lists what Proxmox's own IPAM gave on virtual networks that the caller
// may see. Clusters without software-defined networks answer with none.
func (c *client) SDNAddresses(ctx context.Context) ([]SDNAddress, error) {
	var rows []struct {
		IP   string  `json:"ip"`
		MAC  string  `json:"mac"`
		VMID numeric `json:"vmid"`
		VNet string  `json:"vnet"`
		Zone string  `json:"zone"`
	}
	if err := c.get(ctx, at("/cluster/sdn/ipams/{ipam}/status", "pve"), &rows); err != nil {
		return nil, fmt.Errorf("reading the addresses of the cluster's own IPAM, %w", err)
	}
	out := make([]SDNAddress, 0, len(rows))
	for _, row := range rows {
		if addr, err := netip.ParseAddr(row.IP); err == nil {
			out = append(out, SDNAddress{Address: addr, MAC: row.MAC, VMID: int(row.VMID), VNet: row.VNet, Zone: row.Zone})
		}
	}
	return out, nil
}

// GuestAddresses asks a VM's guest agent which addresses the guest has, loopback and
// link-local ones left out. Where no agent answers, the call blocks one of the Host's
// few workers for three seconds: ask seldom.
func (c *client) GuestAddresses(ctx context.Context, host string, vmid int) ([]netip.Addr, error) {
	// An error of the agent itself comes as a result that is no list.
	var out struct {
		Result agentInterfaces `json:"result"`
	}
	if err := c.get(ctx, at("/nodes/{node}/qemu/{vmid}/agent/network-get-interfaces", host, vmid), &out); err != nil {
		return nil, fmt.Errorf("asking the guest agent of VM %d on host %s, %w", vmid, host, err)
	}
	return out.Result.addresses(), nil
}
