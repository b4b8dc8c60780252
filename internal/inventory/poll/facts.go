// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package poll

import (
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/observed"
)

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
func FactSnippets(key observed.StorageKey) Fact {
	return Fact{kind: "snippets", of: key.Storage, on: key.Host}
}

// kindAgent are the addresses that the agent of a VM reports.
const kindAgent = "agent"

func factHardware(host string) Fact { return Fact{kind: "hardware", of: host} }
func factConfig(vmid int) Fact      { return Fact{kind: "config", vmid: vmid} }
func factContainer(vmid int) Fact   { return Fact{kind: "container", vmid: vmid} }
func factAgent(vmid int) Fact       { return Fact{kind: kindAgent, vmid: vmid} }
