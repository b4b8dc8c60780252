// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"fmt"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/observed"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/placement"
)

// FindTemplate returns the Template for VMs on a Host, as listed in the NodeClass's
// status.
func FindTemplate(view inventory.View, class *v1alpha1.ProxmoxNodeClass, zone placement.Zone) (observed.Guest, error) {
	vmid, ok := SelectedTemplate(class, zone)
	if !ok {
		return observed.Guest{}, fmt.Errorf("%s/%s: NodeClass %s has no template there", zone.Region, zone.Host, class.Name)
	}
	guest, ok := view.Guest(zone.Region, vmid)
	if !ok || guest.Config == nil || !guest.Config.IsTemplate() {
		return observed.Guest{}, fmt.Errorf("%s/%s: template %d of NodeClass %s does not exist any more", zone.Region, zone.Host, vmid, class.Name)
	}
	return guest, nil
}

// SelectedTemplate returns the VMID of the Template for VMs on a Host; false if the class has no VMs there.
func SelectedTemplate(class *v1alpha1.ProxmoxNodeClass, zone placement.Zone) (vmid int, ok bool) {
	for _, entry := range class.Status.SelectedZones {
		if selected, err := v1alpha1.ParseTemplateZone(entry); err == nil && selected.Region == zone.Region && selected.Host == zone.Host {
			return selected.VMID, true
		}
	}
	return 0, false
}

// PlacedTemplate returns the Template that a placement is cloned from: that of its
// slot, otherwise that of the Host.
func PlacedTemplate(view inventory.View, class *v1alpha1.ProxmoxNodeClass, chosen placement.Placement) (observed.Guest, error) {
	if chosen.Binding == nil || chosen.Binding.Slot == 0 {
		return FindTemplate(view, class, chosen.Zone)
	}
	return slotTemplate(view, chosen.Zone, chosen.Binding.Slot)
}

// templatesLike returns the Templates that may be in the place of the one that a VM was cloned from: the
// same one, or a class's on the same Host. A VM in a slot stays there as long as the slot exists.
func templatesLike(view inventory.View, class *v1alpha1.ProxmoxNodeClass, in Intent) (out []observed.Guest) {
	if in.Binding != nil && in.Binding.Method == placement.PinBySlot {
		if slot, err := slotTemplate(view, in.Zone(), in.TemplateID); err == nil {
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

func slotTemplate(view inventory.View, zone placement.Zone, vmid int) (observed.Guest, error) {
	guest, ok := view.Guest(zone.Region, vmid)
	if !ok || guest.Config == nil || !guest.IsSlot() {
		return observed.Guest{}, fmt.Errorf("%s: slot template %d does not exist any more", zone, vmid)
	}
	return guest, nil
}
