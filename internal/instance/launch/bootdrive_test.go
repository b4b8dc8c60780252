// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package launch_test

import (
	"testing"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
)

func TestLaunchBootDriveSlot(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		template map[string]string
		slot     string
		drives   []string // of the VM
	}{
		"disk_on_virtio_scsi": {map[string]string{"machine": "q35"}, "scsi30", []string{"scsi0", "scsi30"}},
		"no_disk_hotplug":     {map[string]string{"hotplug": "network"}, "scsi30", []string{"scsi0", "scsi30"}},
		"protected_template":  {map[string]string{"protection": "1"}, "scsi30", []string{"ide2", "scsi0", "scsi30"}},
		"disk_on_another_bus": {map[string]string{"scsihw": ""}, "ide2", []string{"ide2", "scsi0"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := testenv.NewFake(t, testenv.Scenario(templatesWith(test.template)))
			p := w.StartProcess()
			claim := p.Launched("pool-abc", w.NodeClass)
			in := w.Intent(claim)
			var drives []string
			for _, drive := range w.VMConfig(in).Drives().All() {
				drives = append(drives, drive.Slot)
			}
			w.Expect(drives).To(Equal(test.drives))
			drive, _ := w.VMConfig(in).Drives().Find(test.slot)
			w.Expect(drive.VolumeID).To(ContainSubstring(string(claim.UID)))
			w.Expect(w.Booted(in.VMID).CDROM).To(ContainSubstring("pool-abc"), "the guest reads its boot data there")

			w.Expect(p.Instances.Deleter.CleanupBootDrive(t.Context(), claim)).To(Succeed())
			drive, _ = w.VMConfig(in).Drives().Find(test.slot)
			w.Expect(drive.VolumeID).To(Equal("none"), "no change is pending")
			w.ExpectNoBootDrives()
			p.Delete(w.Stored(claim))
			w.ExpectNoOrphans()
		})
	}
}
