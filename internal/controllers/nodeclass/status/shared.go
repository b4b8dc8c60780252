// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package status

import (
	"fmt"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
)

// outOfReach says why a Template that is on another Host cannot be cloned to this one,
// although its storage is shared.
func outOfReach(snapshot *inventory.Snapshot, zone v1alpha1.TemplateZone, class *v1alpha1.ProxmoxNodeClass) string {
	guest, ok := snapshot.Guests[zone.VMID]
	if !ok || guest.Host == zone.Host {
		return ""
	}
	if !snapshot.Hosts[guest.Host].Online {
		return fmt.Sprintf("template %d is on host %s, which is offline", zone.VMID, guest.Host)
	}
	storage := class.Spec.BootDevice.Storage
	if storage != "" && !snapshot.Storages[inventory.StorageKey{Host: zone.Host, Storage: storage}].Shared {
		return fmt.Sprintf("template %d is on host %s, and Proxmox clones to another host on shared storage only: spec.bootDevice.storage %q is local; leave it empty, or have a template on this host",
			zone.VMID, guest.Host, storage)
	}
	return ""
}
