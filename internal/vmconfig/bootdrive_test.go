// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package vmconfig

import (
	"testing"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

func TestChangeBootDrive(t *testing.T) {
	t.Parallel()
	const iso, empty, cloudInit = "local:iso/x.iso,media=cdrom", "none,media=cdrom", "local-lvm:vm-20001-cloudinit,media=cdrom"
	type drives map[string]string
	for name, test := range map[string]struct {
		template drives // changes of the Template's options; empty values are deleted
		set      drives
		remove   []string
		order    string
	}{
		"disk_on_virtio_scsi_single": {set: drives{"scsi30": iso}, remove: []string{"ide2"}, order: "order=scsi0;net0;scsi30"},
		"disk_on_virtio_scsi_pci":    {drives{"scsihw": "virtio-scsi-pci", "machine": "q35"}, drives{"scsi30": iso}, []string{"ide2"}, "order=scsi0;net0;scsi30"},
		"no_cloud_init_drive":        {template: drives{"ide2": ""}, set: drives{"scsi30": iso}, order: "order=scsi0;net0;scsi30"},
		"cloud_init_drive_on_SCSI": {drives{"ide2": "", "scsi1": cloudInit, "boot": "order=scsi0;scsi1"},
			drives{"scsi30": iso}, []string{"scsi1"}, "order=scsi0;scsi30"},
		"cloud_init_drive_in_the_slot": {drives{"ide2": "", "scsi30": cloudInit, "boot": "order=scsi30;scsi0"},
			drives{"scsi30": iso}, nil, "order=scsi0;scsi30"},
		"occupied_slot":      {template: drives{"scsi30": "local-lvm:vm-20001-disk-1,size=1G"}, set: drives{"ide2": iso}, order: "order=scsi0;net0;ide2"},
		"default_controller": {template: drives{"scsihw": ""}, set: drives{"ide2": iso}, order: "order=scsi0;net0;ide2"},
		"megasas":            {template: drives{"scsihw": "megasas"}, set: drives{"ide2": iso}, order: "order=scsi0;net0;ide2"},
		"disk_on_virtio": {drives{"scsi0": "", "virtio0": "local-lvm:vm-20001-disk-0,size=3G", "boot": "order=virtio0", "machine": "q35"},
			drives{"ide2": iso}, nil, "order=virtio0;ide2"},
		"disk_on_SATA": {drives{"scsi0": "", "sata0": "local-lvm:vm-20001-disk-0,size=3G", "boot": "order=sata0"},
			drives{"ide2": iso}, nil, "order=sata0;ide2"},
		"occupied_IDE_slot": {drives{"scsihw": "", "ide2": "local:iso/tools.iso,media=cdrom"}, drives{"ide0": iso}, nil, "order=scsi0;net0;ide0"},
		// Proxmox removes no drive of a protected VM, and allows to empty it.
		"protected_template": {template: drives{"protection": "1"}, set: drives{"scsi30": iso, "ide2": empty}, order: "order=scsi0;net0;scsi30;ide2"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := NewWithT(t)
			clone := ubuntuClone()
			for option, value := range test.template {
				clone.Options[option] = value
				if value == "" {
					delete(clone.Options, option)
				}
			}
			disk, _ := clone.Drives().Boot()
			change, err := Change(clone, desired())
			g.Expect(err).NotTo(HaveOccurred())
			set := drives{}
			for _, drive := range (proxmox.VMConfig{Options: change.Set}).Drives().All() {
				if drive.Slot != disk.Slot {
					set[drive.Slot] = change.Set[drive.Slot]
				}
			}
			g.Expect(set).To(Equal(test.set))
			g.Expect(change.Delete).To(Equal(test.remove))
			g.Expect(change.Set).To(HaveKeyWithValue("boot", test.order))
		})
	}
}
