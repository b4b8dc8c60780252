// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package instancetype

import (
	"slices"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/observed"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/placement"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/storageselection"
)

// kubeletDiskBytes is the size of the disk with the kubelet's directory; 0 if that is the
// boot disk.
func (c classInput) kubeletDiskBytes() int64 {
	disk, ok := c.Spec.KubeletDisk()
	if !ok {
		return 0
	}
	return disk.GiB() << 30
}

// findStorages returns the storages of a Host that the disks may use; nil if there is only
// the boot disk, and its storage needs no choice. The reason is why the Host has no
// storage for a disk; empty if it has. A template on another Host is cloned to shared
// storages only.
func (c classInput) findStorages(snapshot *observed.Snapshot, host, templateHost string) (disks *placement.Disks, reason string) {
	if snapshot == nil || (len(c.Spec.Disks) == 0 && len(c.Spec.BootDevice.Storages) == 0 && c.Spec.BootDevice.StorageSelector == "") {
		return nil, ""
	}
	disks = &placement.Disks{}
	var err error
	if c.Spec.BootDevice.Storage == "" {
		if disks.Boot, err = c.selectStorages(snapshot, host, c.Spec.BootDevice.StorageSelection()); err != nil {
			return disks, err.Error()
		}
		if templateHost != "" && templateHost != host && len(disks.Boot.Names) > 0 {
			disks.Boot.Names = slices.DeleteFunc(disks.Boot.Names, func(name string) bool {
				return !snapshot.Storages[observed.StorageKey{Host: host, Storage: name}].Shared
			})
			if len(disks.Boot.Names) == 0 {
				return disks, "the template is on another host, and none of the storages of spec.bootDevice is shared"
			}
		}
	}
	for _, d := range c.Spec.Disks {
		disk := placement.Disk{Name: d.Name, Bytes: d.GiB() << 30}
		if d.Retain {
			disk.Bytes = 0 // it usually exists, and a replacement must not need its space twice
		}
		if disk.Storages, err = c.selectStorages(snapshot, host, d.StorageSelection()); err != nil {
			return disks, err.Error()
		}
		disks.More = append(disks.More, disk)
	}
	return disks, ""
}

// newSelectors returns the Selectors of the disks by field, which are used for all Hosts.
func (c classInput) newSelectors() map[string]storageselection.Selector {
	selectors := map[string]storageselection.Selector{}
	add := func(selection v1alpha1.StorageSelection) {
		selectors[selection.Field] = storageselection.New(selection)
	}
	add(c.Spec.BootDevice.StorageSelection())
	for _, d := range c.Spec.Disks {
		add(d.StorageSelection())
	}
	return selectors
}

func (c classInput) selectStorages(snapshot *observed.Snapshot, host string, selection v1alpha1.StorageSelection) (placement.Storages, error) {
	names, err := c.selectors[selection.Field].Find(snapshot, host)
	return placement.Storages{Names: names, MostFree: selection.Selector != ""}, err
}

// sameZone reports whether instance types are the same for both zones. The storages matter
// only for the availability of offerings, which is always computed.
func sameZone(a, b zone) bool {
	a.disks, b.disks = nil, nil
	return a == b
}
