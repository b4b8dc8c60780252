// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package vmconfig

import (
	"fmt"
	"slices"
	"strings"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// SCSIBootDriveSlot is the preferred slot on SCSI. The Proxmox CSI driver attaches
// volumes to scsi1 to scsi29, so the boot drive takes none of its slots.
const SCSIBootDriveSlot = "scsi30"

// bootDriveSlots returns the slots for the boot drive, the preferred one first. If the
// boot disk is on virtio-scsi, the boot drive is too: the guest has that driver in its
// initramfs. It may have no driver for AHCI, which IDE slots are on q35 (the cloud
// kernel of Debian 12), and machines of arm64 have no IDE slots. Other SCSI controllers
// are not used: Linux's driver for megasas ignores drives other than the first one.
func bootDriveSlots(cfg proxmox.VMConfig, disk proxmox.Drive) []string {
	slots := []string{"ide2", "ide0", "ide1", "ide3", "sata5", "sata4", "sata3", "sata2", "sata1", "sata0"}
	if strings.HasPrefix(disk.Slot, "scsi") && strings.HasPrefix(cfg.Options["scsihw"], "virtio-scsi") {
		slots = slices.Insert(slots, 0, SCSIBootDriveSlot)
	}
	return slots
}

// attachISO puts the boot drive into a free slot and removes inherited cloud-init
// drives: a guest with two cidata drives may read the wrong one.
func (b *builder) attachISO(disk proxmox.Drive) error {
	slot, replaced, err := bootDriveSlot(b.clone, disk)
	if err != nil {
		return err
	}
	order := bootOrder(b.clone, disk.Slot, slot, replaced)
	b.set[slot] = b.want.ISO + ",media=cdrom"
	for _, drive := range replaced {
		switch {
		case drive == slot:
		case b.clone.Protected():
			// Proxmox removes no drive while the clone has the Template's protection, even if
			// the same write ends it. It allows to replace the volume.
			b.set[drive] = "none,media=cdrom"
			order = append(order, drive)
		default:
			b.remove = append(b.remove, drive)
		}
	}
	b.set["boot"] = "order=" + strings.Join(order, ";")
	return nil
}

// bootDriveSlot returns the slot for a boot drive, and the slots of the cloud-init
// drives that it replaces.
func bootDriveSlot(cfg proxmox.VMConfig, disk proxmox.Drive) (slot string, replaced []string, err error) {
	used := map[string]bool{}
	for _, drive := range cfg.Drives().All() {
		if drive.IsCloudInit {
			replaced = append(replaced, drive.Slot)
			continue
		}
		used[drive.Slot] = true
	}
	for _, candidate := range bootDriveSlots(cfg, disk) {
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
