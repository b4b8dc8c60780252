// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox

import (
	"regexp"
	"slices"
	"strconv"
	"strings"
)

var (
	// volumeName matches the VMID and the rest of a volume's name: vm-100-disk-0,
	// 100/vm-100-disk-0.qcow2.
	volumeName = regexp.MustCompile(`(?:^|[:/])(?:vm|base|subvol)-(\d+)-([^/]*)$`)
	// diskName matches the names that Proxmox gives to the disks of a VM.
	diskName = regexp.MustCompile(`^(disk-\d+|cloudinit|state-.+|fleece-\d+)(\.[a-z0-9]+)?$`)
	// quotedVolume matches a volume in the log of a task: Could not remove disk
	// 'local-lvm:vm-100-disk-0', check manually: ...
	quotedVolume = regexp.MustCompile(`'([^'\s]+:[^'\s]+)'`)
)

// VolumeOwner returns the VMID in the name of a volume. It returns false if the name has
// none.
func VolumeOwner(volume string) (vmid string, ok bool) {
	name := volumeName.FindStringSubmatch(volume)
	if name == nil {
		return "", false
	}
	return name[1], true
}

// IsDiskOf reports whether Proxmox created a volume as a disk of the VM.
func IsDiskOf(volume string, vmid int) bool {
	name := volumeName.FindStringSubmatch(volume)
	return name != nil && name[1] == strconv.Itoa(vmid) && diskName.MatchString(name[2])
}

// LeakedDisks returns the disks of a VM that the log of its destroy names. Proxmox destroys
// a VM even if it cannot delete its disks, and then the task has warnings.
func LeakedDisks(log []string, vmid int) []string {
	var volumes []string
	for _, found := range quotedVolume.FindAllStringSubmatch(strings.Join(log, "\n"), -1) {
		if volume := found[1]; IsDiskOf(volume, vmid) && !slices.Contains(volumes, volume) {
			volumes = append(volumes, volume)
		}
	}
	return volumes
}
