// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"testing"

	. "github.com/onsi/gomega"
)

func TestDiskSizes(t *testing.T) {
	t.Parallel()
	NewWithT(t).Expect(diskSizes(map[string]string{
		"scsi0":   "local-lvm:vm-1-disk-0,size=30G",
		"scsi1":   "local-lvm:vm-1-disk-1,serial=data,size=10G,wwn=0x5525400ABCDEF012",
		"virtio1": "local-lvm:vm-1-disk-2,serial=scratch,size=1G",
		"ide2":    "local:iso/a.iso,media=cdrom",
	})).To(Equal(map[string]int64{"/dev/disk/by-id/wwn-0x5525400abcdef012": 10 << 30, "/dev/disk/by-id/virtio-scratch": 1 << 30}))
}

func TestMounts(t *testing.T) {
	t.Parallel()
	const format = "fs_setup: [{device: /dev/disk/by-id/virtio-data, filesystem: ext4}]"
	mount := func(device, target string) string {
		return "mounts: [[" + device + ", " + target + ", ext4, defaults], [share, /mnt, virtiofs, defaults]]"
	}
	for name, c := range map[string]struct {
		config []string
		want   int64
	}{
		"kubelet_directory": {[]string{format, mount("/dev/disk/by-id/virtio-data", "/var/lib/kubelet")}, 100},
		"parent_directory":  {[]string{format, mount("/dev/disk/by-id/virtio-data", "/var/lib/")}, 100},
		"other_directory":   {[]string{format, mount("/dev/disk/by-id/virtio-data", "/var/lib/containerd")}, 30},
		"no_file_system":    {[]string{mount("/dev/disk/by-id/virtio-data", "/var/lib/kubelet")}, 30},
		"missing_device":    {[]string{"fs_setup: [{device: /dev/sdz, filesystem: ext4}]", mount("/dev/sdz", "/var/lib/kubelet")}, 30},
		"none":              {nil, 30},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := NewWithT(t)
			vm := newGuest(newDisk(nil), seedWith(t, "i-1", lines(append([]string{"#cloud-config"}, c.config...)...)))
			vm.disks = map[string]int64{"/dev/disk/by-id/virtio-data": 100 << 30}
			_, ok := vm.cloudInit()
			g.Expect(ok).To(BeTrue())
			g.Expect(vm.ephemeralBytes()).To(Equal(c.want << 30))
		})
	}
}

func TestIgnitionFilesystems(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	const config = `{"ignition": {"version": "3.4.0"}, "storage": {"filesystems": [{"device": "/dev/disk/by-id/virtio-data", "path": "/var/lib/kubelet", "format": "ext4"}]}}`
	vm := newGuest(newDisk(nil))
	_, ok := vm.ignite([]byte(config))
	g.Expect(ok).To(BeFalse(), "the device does not exist")
	vm = newGuest(newDisk(nil))
	vm.disks = map[string]int64{"/dev/disk/by-id/virtio-data": 100 << 30}
	_, ok = vm.ignite([]byte(config))
	g.Expect(ok).To(BeTrue())
	g.Expect(vm.ephemeralBytes()).To(Equal(int64(100 << 30)))
}
