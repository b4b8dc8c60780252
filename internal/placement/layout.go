// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"fmt"
	"strconv"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
)

// Layout is how a VM must lie on its Host. The zero value leaves all to the Host.
type Layout struct {
	// Bound gives the guest cells that match cells of the Host. Without it the rest
	// means nothing.
	Bound bool
	// Exclusive gives it whole cores that no other VM of ours gets.
	Exclusive bool
	// PageMiB is the size of the hugepages that its memory is made of; 0 = none.
	PageMiB int
}

// Means are what there is in a zone to get what Proxmox reserves for root.
type PinningSupport struct {
	// SlotTag marks the slot templates that may be cloned.
	SlotTag string
	// Hook: the template's hookscript pins its clones.
	Hook bool
	// Root: the Cluster has a login of root for these options.
	Root bool
	// Hugepages is the option that the template hands to its clones.
	Hugepages string
}

// Way is how a VM gets its cores.
type PinningMethod string

// Ways, in the order of preference.
const (
	// PinBySlot clones a template that root made for these very cores.
	PinBySlot PinningMethod = "slot"
	// PinByHook has the template's hookscript pin after the start.
	PinByHook PinningMethod = "hook"
	// PinByRoot sets the affinity as root.
	PinByRoot PinningMethod = "root"
)

// Binding is where a VM lies on its Host, and how it comes to.
type Binding struct {
	inventory.Binding
	// Way to the cores; empty where the vCPUs float.
	Method PinningMethod
	// Slot is the template to clone, where the way is a slot.
	Slot int
	// Pin is the Host's CPU of each vCPU, where it has cores of its own.
	Pin []int
	// Hugepages is the option that root must set; empty where the template brings it.
	Hugepages string
}

// brings tells whether an option "hugepages" gives pages of a size.
func brings(option string, pageMiB int) bool {
	return option == "any" || option == strconv.Itoa(pageMiB)
}

// pages tells whether a zone can give hugepages without a slot.
func (m PinningSupport) pages(l Layout) bool {
	return l.PageMiB == 0 || m.Root || brings(m.Hugepages, l.PageMiB)
}

// own is how cores that we pick ourselves are given; empty where they cannot be.
func (m PinningSupport) own(l Layout) PinningMethod {
	switch {
	case !m.pages(l):
		return ""
	case m.Hook:
		return PinByHook
	case m.Root:
		return PinByRoot
	}
	return ""
}

// Lacking tells why a Host can never lay a VM out like that, whatever room it has:
// what an admin has to do about it. Empty where it can.
func UnsupportedReason(cells *inventory.CellAccounts, l Layout, m PinningSupport) string {
	if !l.Bound {
		return ""
	}
	if cells.Problem != "" {
		return "its NUMA cells are not known: " + cells.Problem
	}
	slots := 0
	for n := range cells.Slots {
		if serves(cells.Slots[n], l, m) {
			slots++
		}
	}
	switch {
	case l.Exclusive && slots > 0:
		return ""
	case l.Exclusive && !m.Hook && !m.Root:
		return fmt.Sprintf("spec.cpu.pinning Exclusive needs one of: templates made by root with an affinity and the tag %s, a hookscript named %s in the template, a root login in the cloud config; this host has none of them",
			m.SlotTag, HookName)
	case !m.pages(l):
		return fmt.Sprintf("spec.cpu.hugepages needs one of: the option hugepages=%d in the template, set by root, or a root login in the cloud config; this host has neither", l.PageMiB)
	case l.Exclusive && cells.Unnumbered != "":
		return "no cores can be picked: " + cells.Unnumbered
	}
	return ""
}

// HookName is how the file of a hookscript that pins must begin.
const HookName = "pve-hook"
