// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package inventory

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

// Fact identifies something that is read from a Cluster besides its resource list.
type Fact struct {
	kind, of, on string
	vmid         int
}

// Facts that exist once per Cluster.
var (
	// FactOptions are the datacenter options, which include the allowed tags.
	FactOptions = Fact{kind: "options"}
	// FactPermissions are our privileges.
	FactPermissions = Fact{kind: "permissions"}
	// FactRoles are the roles. They are read on demand.
	FactRoles = Fact{kind: "roles"}
	// FactSecurityGroups are the security groups of the firewall.
	FactSecurityGroups = Fact{kind: "security groups"}
	// FactVNets are the virtual networks of the SDN.
	FactVNets = Fact{kind: "vnets"}
	// FactDirectories are the directory mappings. They are read on demand.
	FactDirectories = Fact{kind: "directories"}
	// FactUSB are the USB mappings. They are read on demand.
	FactUSB = Fact{kind: "usb"}
	// FactHAGroups are the HA groups of releases before 9.0. They are read on demand.
	FactHAGroups = Fact{kind: "HA groups"}
	// FactHARules are the HA rules of releases from 9.0 on. They are read on demand.
	FactHARules = Fact{kind: "HA rules"}

	factVersion     = Fact{kind: "release"}
	factMappings    = Fact{kind: "mappings"}
	factMaintenance = Fact{kind: "maintenance"}
	factSDN         = Fact{kind: "SDN"}
	// factAgents is whether Proxmox allows reading agents. Its value is never used.
	factAgents = Fact{kind: "agents"}
)

// FactBridges returns the Fact for the bridges of a Host.
func FactBridges(host string) Fact { return Fact{kind: "bridges", of: host} }

// FactTopology returns the Fact for the topology in the notes of a Host.
func FactTopology(host string) Fact { return Fact{kind: "topology", of: host} }

// FactPool returns the Fact for the existence of a resource pool. It is read on demand.
func FactPool(pool string) Fact { return Fact{kind: "pool", of: pool} }

// FactSnippets returns the Fact for the snippets on a storage of a Host. It is read on
// demand. Without Datastore.Allocate on the storage, Proxmox omits snippets from the list.
func FactSnippets(key StorageKey) Fact {
	return Fact{kind: "snippets", of: key.Storage, on: key.Host}
}

// kindAgent are the addresses that the agent of a VM reports.
const kindAgent = "agent"

func factHardware(host string) Fact { return Fact{kind: "hardware", of: host} }
func factConfig(vmid int) Fact      { return Fact{kind: "config", vmid: vmid} }
func factContainer(vmid int) Fact   { return Fact{kind: "container", vmid: vmid} }
func factAgent(vmid int) Fact       { return Fact{kind: kindAgent, vmid: vmid} }
