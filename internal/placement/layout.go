// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"fmt"
	"strconv"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
)

// Layout is how a VM is laid out on the NUMA cells and cores of its Host. The zero value
// leaves this to the Host.
type Layout struct {
	// Bound gives the guest NUMA cells that match cells of the Host. The other fields
	// require it.
	Bound bool
	// Exclusive gives the VM whole cores that no other VM of this provider gets.
	Exclusive bool
	// PageMiB is the hugepage size of the VM's memory; 0 disables hugepages.
	PageMiB int
}

// PinningSupport is what a zone provides for options that Proxmox reserves for root.
type PinningSupport struct {
	// SlotTag is the tag of the slot templates that may be cloned.
	SlotTag string
	// Hook is set if the template has a hookscript that pins its clones.
	Hook bool
	// Root is set if the Cluster has a root login for these options.
	Root bool
	// Hugepages is the hugepages option of the template, which its clones inherit.
	Hugepages string
}

// PinningMethod is how a VM is pinned to its cores.
type PinningMethod string

// Pinning methods in order of preference.
const (
	// PinBySlot clones a template that root created with the affinity to these cores.
	PinBySlot PinningMethod = "slot"
	// PinByHook lets the template's hookscript pin the VM after the start.
	PinByHook PinningMethod = "hook"
	// PinByRoot sets the affinity with the root login.
	PinByRoot PinningMethod = "root"
)

// Binding is the assignment of a VM to NUMA cells and cores of its Host.
type Binding struct {
	inventory.Binding
	// Method is how the VM is pinned; empty when its vCPUs are not pinned.
	Method PinningMethod
	// Slot is the VMID of the template to clone if Method is PinBySlot.
	Slot int
	// Pin is the Host CPU of each vCPU of a VM with exclusive cores.
	Pin []int
	// Hugepages is the option that root must set; empty when the template sets it.
	Hugepages string
}

// optionProvidesPages reports whether a hugepages option provides pages of the size.
func optionProvidesPages(option string, pageMiB int) bool {
	return option == "any" || option == strconv.Itoa(pageMiB)
}

// supportsPages reports whether VMs can have the layout's hugepages without a slot.
func (m PinningSupport) supportsPages(l Layout) bool {
	return l.PageMiB == 0 || m.Root || optionProvidesPages(m.Hugepages, l.PageMiB)
}

// pinningMethod returns how VMs are pinned without a slot; empty if they cannot be.
func (m PinningSupport) pinningMethod(l Layout) PinningMethod {
	switch {
	case !m.supportsPages(l):
		return ""
	case m.Hook:
		return PinByHook
	case m.Root:
		return PinByRoot
	}
	return ""
}

// UnsupportedReason returns why a Host can never provide the layout, regardless of its
// free capacity, and what an administrator can do. It returns "" if the Host can.
func UnsupportedReason(cells *inventory.CellAccounts, l Layout, m PinningSupport) string {
	if !l.Bound {
		return ""
	}
	if cells.Problem != "" {
		return "its NUMA cells are unknown: " + cells.Problem
	}
	matching, others := countSlots(cells, l, m)
	switch {
	case l.Exclusive && matching > 0:
		return ""
	case l.Exclusive && !m.Hook && !m.Root && others > 0:
		return fmt.Sprintf("its %d templates with the tag %s have other hugepages, and the class has %s: change one of them", others, m.SlotTag, l.pages())
	case l.Exclusive && !m.Hook && !m.Root:
		return fmt.Sprintf("spec.cpu.pinning Exclusive needs one of: templates created by root with an affinity and the tag %s, a hookscript named %s in the template, a root login in the cloud config; this host has none of them",
			m.SlotTag, HookName)
	case !m.supportsPages(l):
		return fmt.Sprintf("spec.cpu.hugepages needs one of: the option hugepages=%d in the template, set by root, or a root login in the cloud config; this host has neither", l.PageMiB)
	case l.Exclusive && cells.Unnumbered != "":
		return "cores cannot be assigned: " + cells.Unnumbered
	}
	return ""
}

// pages describes the hugepages of the class.
func (l Layout) pages() string {
	if l.PageMiB > 0 {
		return fmt.Sprintf("spec.cpu.hugepages of %d MiB", l.PageMiB)
	}
	return "no spec.cpu.hugepages"
}

// HookName is the required prefix of the file name of a hookscript that pins VMs.
const HookName = "pve-hook"
