// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package observed

import (
	"slices"
	"strings"

	"k8s.io/utils/cpuset"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/ownership"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// isTopologyVM reports whether a guest is the VM by which the daemon of
// sergelogvinov/karpenter-provider-proxmox describes its Host. It has the size and all CPUs
// of the Host and never runs, so it uses none of them.
func (g Guest) isTopologyVM() bool {
	return g.Kind == proxmox.KindQEMU && g.Name == "node-capacity" && slices.Contains(g.Tags, "karpenter") && g.Status == StatusStopped
}

// PinnedCPUs returns the CPUs that a guest is pinned to by its affinity or by a hookscript.
// Proxmox has no record of the latter; the ownership mark in the notes does.
func (g Guest) PinnedCPUs() cpuset.CPUSet {
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

// SlotTagPrefix is the prefix of the tag on a slot template: a template with an affinity,
// created by root, whose CPUs only one clone may use at a time. The rest of the tag is the
// name of the template object that it is a slot of.
const SlotTagPrefix = "karpenter-slot-"

// IsSlot reports whether a guest is a slot template.
func (g Guest) IsSlot() bool {
	return g.Template && slices.ContainsFunc(g.Tags, func(tag string) bool { return strings.HasPrefix(tag, SlotTagPrefix) })
}

// HeldDevices returns the devices that a guest uses. A guest without an allocation, such as
// a stopped one, uses none.
func (g Guest) HeldDevices() []proxmox.HostPCI {
	if g.Config == nil || g.Allocated == (Amount{}) {
		return nil
	}
	return g.Config.HostDevices().PCI()
}
