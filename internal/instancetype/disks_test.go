// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package instancetype_test

import (
	"testing"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// A Node reports the size of the file system with the directory of the kubelet.
func TestCapacityWithKubeletDisk(t *testing.T) {
	t.Parallel()
	p, _ := newProvider(t, newViewer())
	for mountPath, want := range map[string]int64{
		"/var/lib/kubelet": 200, "/var/lib": 200, "/var": 200,
		"/var/lib/containerd": 100, "/var/lib/kubelet-data": 100, "/srv": 100, "": 100,
	} {
		class := newNodeClassWithAllHosts()
		class.Spec.BootDevice.Size = "100Gi"
		class.Spec.Disks = []v1alpha1.Disk{{Name: "other", Size: "1Ti"}, {Name: "data", Size: "200Gi", MountPath: mountPath}}
		it := find(t, p.List(class, ""), "t1.2VCPU-6GB")
		NewWithT(t).Expect(it.Capacity.StorageEphemeral().Value()).To(Equal(want*gib*93/100), "%q: the ephemeral storage", mountPath)
	}
}

func TestOfferingsOfStorages(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	v := newViewer()
	v.change(func(resources map[string]*proxmox.Resources) {
		for _, region := range resources {
			for _, row := range region.Storages {
				row.Name, row.Type, row.TotalBytes = "tank", "zfspool", 200*gib
				if row.Host != "pve9" {
					region.Storages = append(region.Storages, row)
				}
			}
		}
	})
	disk := func(change func(*v1alpha1.Disk)) func(*v1alpha1.ProxmoxNodeClassSpec) {
		return func(s *v1alpha1.ProxmoxNodeClassSpec) {
			d := v1alpha1.Disk{Name: "data", Size: "150Gi"}
			change(&d)
			s.Disks = []v1alpha1.Disk{d}
		}
	}
	for name, c := range map[string]struct {
		class      func(*v1alpha1.ProxmoxNodeClassSpec)
		pve1, pve9 bool
	}{
		"default":                 {disk(func(*v1alpha1.Disk) {}), true, true},
		"storage":                 {disk(func(d *v1alpha1.Disk) { d.Storage = "tank" }), true, false},
		"storages":                {disk(func(d *v1alpha1.Disk) { d.Storages = []string{"tank", "local"} }), true, true},
		"selector":                {disk(func(d *v1alpha1.Disk) { d.StorageSelector = "storage.type == 'zfspool'" }), true, false},
		"too_large":               {disk(func(d *v1alpha1.Disk) { d.Storage, d.Size = "tank", "190Gi" }), false, false},
		"too_large_for_first":     {disk(func(d *v1alpha1.Disk) { d.Storages, d.Size = []string{"tank", "local"}, "190Gi" }), true, true},
		"boot_disk_storages":      {func(s *v1alpha1.ProxmoxNodeClassSpec) { s.BootDevice.Storages = []string{"tank"} }, true, false},
		"boot_disk_selector":      {func(s *v1alpha1.ProxmoxNodeClassSpec) { s.BootDevice.StorageSelector = "storage.free > 500 * Gi" }, true, true},
		"boot_disk_invalid":       {func(s *v1alpha1.ProxmoxNodeClassSpec) { s.BootDevice.StorageSelector = "storage" }, false, false},
		"disk_beside_a_boot_disk": {disk(func(d *v1alpha1.Disk) { d.Size = "880Gi" }), false, false},
	} {
		p, _ := newProvider(t, v) // which remembers what was unavailable
		class := newNodeClassWithAllHosts()
		c.class(&class.Spec)
		available := availability(find(t, p.List(class, ""), "t1.2VCPU-6GB"))
		g.Expect(available["pve1"]).To(Equal(c.pve1), "%s: available on pve1", name)
		g.Expect(available["pve9"]).To(Equal(c.pve9), "%s: available on pve1", name)
	}
}
