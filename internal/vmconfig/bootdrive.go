// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package vmconfig

import (
	"fmt"
	"slices"
	"strings"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// bootDriveSlots are tried in this order: cloud images read IDE drives first, and
// q35 machines have all four IDE slots as well.
var bootDriveSlots = []string{"ide2", "ide0", "ide1", "ide3", "sata5", "sata4", "sata3", "sata2", "sata1", "sata0"}

// attachISO puts the boot drive into a free slot and removes inherited cloud-init
// drives: a guest with two cidata drives may read the wrong one.
func (b *builder) attachISO(disk proxmox.Drive) error {
	slot, replaced, err := bootDriveSlot(b.clone)
	if err != nil {
		return err
	}
	b.set[slot] = b.want.ISO + ",media=cdrom"
	b.set["boot"] = "order=" + strings.Join(bootOrder(b.clone, disk.Slot, slot, replaced), ";")
	for _, drive := range replaced {
		if drive != slot {
			b.remove = append(b.remove, drive)
		}
	}
	return nil
}

// bootDriveSlot returns the slot for a boot drive, and the slots of the cloud-init
// drives that it replaces.
func bootDriveSlot(cfg proxmox.VMConfig) (slot string, replaced []string, err error) {
	used := map[string]bool{}
	for _, drive := range cfg.Drives().All() {
		if drive.IsCloudInit {
			replaced = append(replaced, drive.Slot)
			continue
		}
		used[drive.Slot] = true
	}
	for _, candidate := range bootDriveSlots {
		if !used[candidate] {
			return candidate, replaced, nil
		}
	}
	return "", nil, fmt.Errorf("the template has no free IDE or SATA slot for the boot drive")
}

// bootOrder returns the Template's boot order with the boot drive last: Proxmox
// would append it anyway, and a drive that is not in the boot order of a running VM
// cannot be detached without a pending change.
func bootOrder(cfg proxmox.VMConfig, disk, iso string, replaced []string) []string {
	order := slices.DeleteFunc(slices.Clone(cfg.Drives().BootOrder()), func(slot string) bool {
		return slot == iso || slices.Contains(replaced, slot)
	})
	if len(order) == 0 {
		order = []string{disk}
	}
	return append(order, iso)
}
