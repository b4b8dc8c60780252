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

// FindTemplateHost returns the Host of the Template for VMs on a Host, also while it cannot be read.
func FindTemplateHost(view inventory.View, class *v1alpha1.ProxmoxNodeClass, in Intent) (string, error) {
	for _, entry := range class.Status.SelectedZones {
		zone, err := v1alpha1.ParseTemplateZone(entry)
		if err != nil || zone.Region != in.Region || zone.Host != in.Host {
			continue
		}
		if guest, ok := view.Guest(zone.Region, zone.VMID); ok {
			return guest.Host, nil
		}
	}
	return "", fmt.Errorf("%s/%s: NodeClass %s has no template there", in.Region, in.Host, class.Name)
}

// PlacedTemplate returns the Template that a placement is cloned from: that of its
// slot, otherwise that of the Host.
func PlacedTemplate(view inventory.View, class *v1alpha1.ProxmoxNodeClass, chosen placement.Placement) (inventory.Guest, error) {
	if chosen.Binding == nil || chosen.Binding.Slot == 0 {
		return FindTemplate(view, class, chosen.Zone)
	}
	return slotTemplate(view, chosen.Zone, chosen.Binding.Slot)
}

// templatesLike returns the Templates that may be in the place of the one that a VM was cloned from: the
// same one, or a class's on the same Host. A VM in a slot stays there as long as the slot exists.
func templatesLike(view inventory.View, class *v1alpha1.ProxmoxNodeClass, in Intent) (out []inventory.Guest) {
	if in.Binding != nil && in.Binding.Method == placement.PinBySlot {
		if slot, err := slotTemplate(view, placement.Zone{Region: in.Region, Host: in.Host}, in.TemplateID); err == nil {
			out = append(out, slot)
		}
		return out
	}
	for _, entry := range class.Status.SelectedZones {
		zone, err := v1alpha1.ParseTemplateZone(entry)
		if err != nil || zone.Region != in.Region {
			continue
		}
		guest, ok := view.Guest(zone.Region, zone.VMID)
		if ok && guest.Config != nil && guest.Config.IsTemplate() && (guest.VMID == in.TemplateID || guest.Host == in.TemplateHost) {
			out = append(out, guest)
		}
	}
	return out
}

func slotTemplate(view inventory.View, zone placement.Zone, vmid int) (inventory.Guest, error) {
	guest, ok := view.Guest(zone.Region, vmid)
	if !ok || guest.Config == nil || !guest.IsSlot() {
		return inventory.Guest{}, fmt.Errorf("%s: slot template %d does not exist any more", zone, vmid)
	}
	return guest, nil
}
