// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package status

import (
	"slices"
	"strings"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance/plan"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
)

// storages looks whether the Host has storages for the disk and for the boot drive,
// the snippets of the class, and whether clones on them end in time.
func storages(z zone) *finding {
	if storage := z.class.Spec.BootDevice.Storage; storage != "" {
		row, ok := z.snapshot.Storages[inventory.StorageKey{Host: z.host, Storage: storage}]
		content := strings.Join(row.Content, ",")
		switch {
		case !ok:
			return z.onHost("spec.bootDevice.storage %q is not on this host, which has %s", storage, strings.Join(z.snapshot.StoragesOf(z.host), ", "))
		case !slices.Contains(row.Content, "images"):
			return z.onHost("spec.bootDevice.storage %q takes %s but no disk images; run: pvesm set %s --content images,%s", storage, content, storage, content)
		}
	}
	if z.class.Spec.MetadataOptions.Rendered() {
		if _, err := plan.ISOStorage(z.snapshot, z.host, z.class.Spec.MetadataOptions.Storage); err != nil {
			return z.onHost("%v", err)
		}
	}
	if f := cloudInit(z); f != nil {
		return f
	}
	if z.template != nil {
		if reason := outOfReach(z.snapshot, *z.template, z.class); reason != "" {
			return z.onHost("%s", reason)
		}
	}
	if z.tooSlow != "" {
		return z.onHost("%s", z.tooSlow)
	}
	return nil
}
