// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"slices"

	"k8s.io/utils/cpuset"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/ownership"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// isTopologyVM reports whether a guest is the VM by which the daemon of
// sergelogvinov/karpenter-provider-proxmox describes its Host. It has the size and all CPUs
// of the Host and never runs, so it uses none of them.
func (g Guest) isTopologyVM() bool {
	return g.Kind == proxmox.KindQEMU && g.Name == "node-capacity" && slices.Contains(g.Tags, "karpenter") && g.Status == statusStopped
}

// pinnedCPUs returns the CPUs that a guest is pinned to by its affinity or by a hookscript.
// Proxmox has no record of the latter; the ownership mark in the notes does.
func (g Guest) pinnedCPUs() cpuset.CPUSet {
	if g.Config == nil || g.isTopologyVM() {
		return cpuset.New()
	}
	set := g.Config.Compute().Affinity()
	mark, ok := ownership.Read(g.Config.Description())
	if !ok || mark.VMID != g.VMID {
		return set
	}
	hooked, _ := proxmox.ParseCPUs(mark.CPUs) // empty if it does not parse
	return set.Union(hooked)
}
