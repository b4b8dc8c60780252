// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package pvesim

import "fmt"

// PoolID is the resource pool of PoolScoped.
const PoolID = "karpenter"

// PoolScoped replaces the cluster-wide permissions of the default scenario's token with permissions on a resource pool,
// the templates, and the storages, bridges and hosts that it uses.
func PoolScoped(s *Scenario) {
	s.Pools = append(s.Pools, Pool{ID: PoolID})
	s.Roles = []Role{
		{ID: "KarpenterVM", Privileges: []string{
			"VM.Audit", "VM.Allocate", "VM.Clone", "VM.Config.CDROM", "VM.Config.CPU", "VM.Config.Memory", "VM.Config.Disk",
			"VM.Config.Network", "VM.Config.HWType", "VM.Config.Cloudinit", "VM.Config.Options", "VM.PowerMgmt", "Pool.Audit",
		}},
		{ID: "KarpenterTemplate", Privileges: []string{"VM.Audit", "VM.Clone"}},
		{ID: "KarpenterDisk", Privileges: []string{"Datastore.AllocateSpace", "Datastore.Audit"}},
		{ID: "KarpenterISO", Privileges: []string{"Datastore.Allocate", "Datastore.AllocateSpace", "Datastore.AllocateTemplate", "Datastore.Audit"}},
		{ID: "KarpenterHost", Privileges: []string{"Sys.Audit"}},
		{ID: "KarpenterNet", Privileges: []string{"SDN.Use", "SDN.Audit"}},
	}
	const user = "kubernetes@pve"
	s.ACLs = []ACL{
		{Path: "/pool/" + PoolID, Role: "KarpenterVM", User: user},
		{Path: "/storage/local-lvm", Role: "KarpenterDisk", User: user},
		{Path: "/storage/local", Role: "KarpenterISO", User: user},
		{Path: "/nodes", Role: "KarpenterHost", User: user},
		{Path: "/sdn/zones/localnetwork", Role: "KarpenterNet", User: user},
	}
	for _, guest := range s.Guests {
		if guest.Config["template"] == "1" {
			s.ACLs = append(s.ACLs, ACL{Path: fmt.Sprintf("/vms/%d", guest.VMID), Role: "KarpenterTemplate", User: user})
		}
	}
}
