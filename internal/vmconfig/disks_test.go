// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package vmconfig

import (
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

func TestChangeDisks(t *testing.T) {
	t.Parallel()
	virtio := ubuntuClone()
	virtio.Options["virtio0"] = virtio.Options["scsi0"]
	virtio.Options["boot"] = "order=virtio0"
	delete(virtio.Options, "scsi0")
	delete(virtio.Options, "scsihw")
	used := ubuntuClone()
	used.Options["scsi1"], used.Options["scsi3"] = "local-lvm:vm-20001-disk-1,size=1G", "local-lvm:vm-20001-disk-2,size=1G"
	limited := ubuntuClone()
	limited.Options["scsi0"] += ",mbps=50,mbps_max=80,bps_max_length=3,iops=500,iops_max=900,iops_max_length=5,iops_wr=7"
	const boot = "local-lvm:vm-20001-disk-0,discard=on,iothread=1,size=3G"
	for name, c := range map[string]struct {
		clone proxmox.VMConfig
		boot  v1alpha1.DiskOptions
		disks []v1alpha1.Disk
		want  map[string]string
	}{
		"none": {clone: ubuntuClone(), want: map[string]string{"scsi0": boot + ",backup=0,replicate=0"}},
		"boot_disk": {
			clone: ubuntuClone(),
			boot: v1alpha1.DiskOptions{
				SSD: new(true), Discard: new(false), Cache: "writeback", AIO: "threads", IOThread: new(false), Backup: new(true), Replicate: new(true),
				ReadLimit: &v1alpha1.DiskLimit{IOPS: 1000, IOPSBurst: 2000}, WriteLimit: &v1alpha1.DiskLimit{MBps: 100, MBpsBurst: 200},
			},
			want: map[string]string{"scsi0": "local-lvm:vm-20001-disk-0,discard=ignore,iothread=0,size=3G,ssd=1,cache=writeback,aio=threads," +
				"iops_rd=1000,iops_rd_max=2000,mbps_wr=100,mbps_wr_max=200,backup=1,replicate=1"},
		},
		"total_limits_of_template": {
			clone: limited,
			want:  map[string]string{"scsi0": boot + ",mbps=50,mbps_max=80,bps_max_length=3,iops=500,iops_max=900,iops_max_length=5,iops_wr=7,backup=0,replicate=0"},
		},
		"bandwidth_instead_of_total": {
			clone: limited,
			boot:  v1alpha1.DiskOptions{WriteLimit: &v1alpha1.DiskLimit{MBps: 100, MBpsBurst: 200}},
			want:  map[string]string{"scsi0": boot + ",iops=500,iops_max=900,iops_max_length=5,iops_wr=7,mbps_wr=100,mbps_wr_max=200,backup=0,replicate=0"},
		},
		"IOPS_instead_of_total": {
			clone: limited,
			boot:  v1alpha1.DiskOptions{ReadLimit: &v1alpha1.DiskLimit{IOPS: 1000}},
			want:  map[string]string{"scsi0": boot + ",mbps=50,mbps_max=80,bps_max_length=3,iops_wr=7,iops_rd=1000,backup=0,replicate=0"},
		},
		"one_per_bus": {
			clone: ubuntuClone(),
			disks: []v1alpha1.Disk{
				{Name: "data", Size: "100G", Storage: "ceph", DiskOptions: v1alpha1.DiskOptions{SSD: new(true), IOThread: new(true), Discard: new(true)}},
				{Name: "scratch", Size: "10Gi", Bus: v1alpha1.DiskBusVirtIO},
				{Name: "old", Size: "1Ti", Bus: v1alpha1.DiskBusSATA},
			},
			want: map[string]string{
				"scsi1":   "ceph:94,serial=data,wwn=0x55254003a6eb0790,ssd=1,iothread=1,discard=on,backup=0,replicate=0",
				"virtio1": "local-lvm:10,serial=scratch,backup=0,replicate=0",
				"sata1":   "local-lvm:1024,serial=old,wwn=0x5525400cba06b573,backup=0,replicate=0",
			},
		},
		"free_slots": {
			clone: used,
			disks: []v1alpha1.Disk{{Name: "a", Size: "1Gi"}, {Name: "b", Size: "1Gi"}},
			want:  map[string]string{"scsi2": "local-lvm:1,serial=a,wwn=0x5525400ca978112c,backup=0,replicate=0", "scsi4": "local-lvm:1,serial=b,wwn=0x55254003e23e8160,backup=0,replicate=0"},
		},
		"first_SCSI_disk": {
			clone: virtio,
			disks: []v1alpha1.Disk{{Name: "a", Size: "1Gi", DiskOptions: v1alpha1.DiskOptions{IOThread: new(true)}}},
			want:  map[string]string{"scsihw": "virtio-scsi-single", "scsi1": "local-lvm:1,serial=a,wwn=0x5525400ca978112c,iothread=1,backup=0,replicate=0"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := NewWithT(t)
			want := desired()
			want.BootDisk, want.Disks = c.boot, c.disks
			change, err := Change(c.clone, want)
			g.Expect(err).NotTo(HaveOccurred())
			expectSet(g, change, c.want)
			g.Expect(strings.Count(change.Set["boot"], ";")).To(BeNumerically("<=", strings.Count(c.clone.Options["boot"], ";")+1), "the VM does not boot from the new disks")
		})
	}
}

// expectSet expects that a change sets these options.
func expectSet(g Gomega, change proxmox.ConfigChange, want map[string]string) {
	for option, value := range want {
		g.Expect(change.Set).To(HaveKeyWithValue(option, value))
	}
}

func TestCheckTemplateDisks(t *testing.T) {
	t.Parallel()
	full := ubuntuClone()
	for _, slot := range []string{"sata1", "sata2", "sata3", "sata4", "sata5"} {
		full.Options[slot] = "local-lvm:vm-20001-disk-1,size=1G"
	}
	shared := ubuntuClone()
	shared.Options["scsihw"] = "virtio-scsi-pci"
	virtio := ubuntuClone()
	virtio.Options["virtio0"], virtio.Options["boot"] = virtio.Options["scsi0"], "order=virtio0"
	for name, c := range map[string]struct {
		template proxmox.VMConfig
		class    v1alpha1.ProxmoxNodeClassSpec
		want     string
	}{
		"no_free_slot": {full, v1alpha1.ProxmoxNodeClassSpec{Disks: []v1alpha1.Disk{{Name: "data", Size: "1Gi", Bus: v1alpha1.DiskBusSATA}}},
			"spec.disks[name=data]: the template has no free slot among sata1 to sata5"},
		"IO_thread_of_shared_controller": {shared, v1alpha1.ProxmoxNodeClassSpec{BootDevice: v1alpha1.BootDevice{DiskOptions: v1alpha1.DiskOptions{IOThread: new(true)}}},
			`spec.bootDevice.ioThread is true, but the disk scsi0 is on the bus scsi with the SCSI controller "virtio-scsi-pci"; it needs the bus virtio, or the bus scsi and the controller virtio-scsi-single: qm set TEMPLATE --scsihw virtio-scsi-single`},
		"SSD_on_virtio": {virtio, v1alpha1.ProxmoxNodeClassSpec{BootDevice: v1alpha1.BootDevice{DiskOptions: v1alpha1.DiskOptions{SSD: new(true)}}},
			"spec.bootDevice.ssd is true, but the disk virtio0 is on the bus virtio, which does not have this option; remove it, or use a template with its disk on the bus scsi"},
	} {
		NewWithT(t).Expect(CheckTemplate(c.template, &v1alpha1.ProxmoxNodeClass{Spec: c.class})).To(MatchError(c.want), name)
	}
}
