// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package template_test

import "github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"

// sharedStorage adds a storage that is shared by all hosts.
func sharedStorage(kind string, content ...string) func(*pvesim.Scenario) {
	return func(s *pvesim.Scenario) {
		s.Storages = append(s.Storages, pvesim.Storage{ID: "shared", Type: kind, Content: content, Size: pvesim.TiB})
	}
}

// withAllResources adds the pools, mappings and privileges that a template can use.
func withAllResources(release string) func(*pvesim.Scenario) {
	return func(s *pvesim.Scenario) {
		s.Version = release
		s.Pools = []pvesim.Pool{{ID: "karpenter"}}
		s.Mappings = []pvesim.Mapping{{Kind: "pci", ID: "gpu", Map: []string{"id=10de:2204,node=pve1,path=0000:01:00.0"}}}
		s.Roles[0].Privileges = append(s.Roles[0].Privileges, "Mapping.Use", "Pool.Audit", "Pool.Allocate")
	}
}
