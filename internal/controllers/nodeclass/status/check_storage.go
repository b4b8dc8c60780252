// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package status

import (
	"fmt"
	"slices"
	"strings"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/placement"
)

// checkStorage checks whether the Host has storages for the disk, the boot drive and the
// snippets of the class, and whether clones on them are fast enough.
func checkStorage(z zone) *problem {
	if storage := z.class.Spec.BootDevice.Storage; storage != "" {
		row, ok := z.snapshot.Storages[inventory.StorageKey{Host: z.host, Storage: storage}]
		content := strings.Join(row.Content, ",")
		switch {
		case !ok:
			return z.hostProblem("spec.bootDevice.storage %q is not on this host, which has %s", storage, strings.Join(z.snapshot.StoragesOf(z.host), ", "))
		case !slices.Contains(row.Content, "images"):
			return z.hostProblem("spec.bootDevice.storage %q has the content types %s, but not images; run: pvesm set %s --content images,%s", storage, content, storage, content)
		}
	}
	if z.class.Spec.MetadataOptions.IsRendered() {
		if _, err := placement.ISOStorage(z.snapshot, z.host, "spec.metadataOptions.storage", z.class.Spec.MetadataOptions.Storage); err != nil {
			return z.hostProblem("%v", err)
		}
	}
	if p := checkCloudInit(z); p != nil {
		return p
	}
	if z.template != nil {
		if reason := cloneProblem(z.snapshot, *z.template, z.class); reason != "" {
			return z.hostProblem("%s", reason)
		}
	}
	if z.cloneTooSlow != "" {
		return z.hostProblem("%s", z.cloneTooSlow)
	}
	return nil
}

// cloneProblem returns why a template on another Host cannot be cloned to this one,
// although its storage is shared; empty if it can.
func cloneProblem(snapshot *inventory.Snapshot, zone v1alpha1.TemplateZone, class *v1alpha1.ProxmoxNodeClass) string {
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
