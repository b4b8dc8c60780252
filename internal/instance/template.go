// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"fmt"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/placement"
)

// FindTemplate returns the Template for VMs on a Host, as listed in the NodeClass's
// status.
func FindTemplate(view inventory.View, class *v1alpha1.ProxmoxNodeClass, zone placement.Zone) (inventory.Guest, error) {
	for _, entry := range class.Status.SelectedZones {
		selected, err := v1alpha1.ParseTemplateZone(entry)
		if err != nil || selected.Region != zone.Region || selected.Host != zone.Host {
			continue
		}
		guest, ok := view.Guest(zone.Region, selected.VMID)
		if !ok || guest.Config == nil || !guest.Config.IsTemplate() {
			return inventory.Guest{}, fmt.Errorf("%s/%s: template %d of NodeClass %s does not exist any more", zone.Region, zone.Host, selected.VMID, class.Name)
		}
		return guest, nil
	}
	return inventory.Guest{}, fmt.Errorf("%s/%s: NodeClass %s has no template there", zone.Region, zone.Host, class.Name)
}

// PlacedTemplate returns the Template that a placement is cloned from: that of its
// slot, otherwise that of the Host.
func PlacedTemplate(view inventory.View, class *v1alpha1.ProxmoxNodeClass, chosen placement.Placement) (inventory.Guest, error) {
	if chosen.Binding == nil || chosen.Binding.Slot == 0 {
		return FindTemplate(view, class, chosen.Zone)
	}
	return slotTemplate(view, chosen.Zone, chosen.Binding.Slot)
}

// currentTemplate returns the Template that the intent's VM would be cloned from now. A
// VM in a slot stays there as long as the slot exists.
func currentTemplate(view inventory.View, class *v1alpha1.ProxmoxNodeClass, in Intent) (inventory.Guest, error) {
	zone := placement.Zone{Region: in.Region, Host: in.Host}
	if in.Binding != nil && in.Binding.Method == placement.PinBySlot {
		return slotTemplate(view, zone, in.TemplateID)
	}
	return FindTemplate(view, class, zone)
}

func slotTemplate(view inventory.View, zone placement.Zone, vmid int) (inventory.Guest, error) {
	guest, ok := view.Guest(zone.Region, vmid)
	if !ok || guest.Config == nil || !guest.IsSlot() {
		return inventory.Guest{}, fmt.Errorf("%s: slot template %d does not exist any more", zone, vmid)
	}
	return guest, nil
}
