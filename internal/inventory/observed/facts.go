// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package observed

import (
	"net/netip"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// Facts are the properties of a Cluster that are not in the resource list and rarely
// change. They are read at first contact, then one at a time as the call budget allows, and
// earlier after Invalidate. Facts are immutable.
type Facts struct {
	// User is the user or token that Proxmox authenticated.
	User string
	// Permissions are our privileges by path.
	Permissions proxmox.Permissions
	// Roles are the privileges of all roles by name; nil before the first Invalidate.
	Roles map[string][]string
	// SecurityGroups are the firewall's groups by name.
	SecurityGroups map[string]bool
	// VNets are the SDN's virtual networks by name.
	VNets map[string]proxmox.VNet
	// Bridges are the bridges and vnets for NICs by Host and name.
	Bridges map[string]map[string]proxmox.Bridge
	// InterfaceAddresses are the addresses of all interfaces by Host.
	InterfaceAddresses map[string][]netip.Addr
	// Pools reports whether a resource pool exists, for each pool passed to Invalidate.
	Pools map[string]bool
	// Snippets are the volumes on each storage passed to Invalidate.
	Snippets map[StorageKey]map[string]bool
	// Directories are the visible directory mappings by ID; nil before the first
	// Invalidate.
	Directories map[string]proxmox.DirectoryMapping
	// USB are the visible USB mappings by ID; nil before the first Invalidate.
	USB map[string]proxmox.USBMapping
	// Topologies are the layouts that pve-hook published in the notes of Hosts. Hosts
	// without one are omitted.
	Topologies map[string]PublishedTopology
	// HAGroups are the HA groups by name; nil before the first Invalidate, and from 9.0 on.
	HAGroups map[string]proxmox.HAGroup
	// HARules are the HA rules by name, without their resources; nil before the first
	// Invalidate, and before 9.0.
	HARules map[string]proxmox.HARule
}

// topologyOf returns the published topology of a Host. Nil Facts have none.
func (f *Facts) topologyOf(host string) PublishedTopology {
	if f == nil {
		return PublishedTopology{}
	}
	return f.Topologies[host]
}
