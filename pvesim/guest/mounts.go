// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"fmt"
	"path"
	"strings"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/qm"
)

const (
	// fstabFile lists the file systems that each boot mounts.
	fstabFile = "/etc/fstab"
	// kubeletDirectory is the directory whose file system is the Node's ephemeral storage.
	kubeletDirectory = "/var/lib/kubelet"
)

// diskSizes returns the sizes of disks by their paths in /dev/disk/by-id. SCSI and SATA
// disks have one with their World Wide Name, virtio disks one with their serial number.
func diskSizes(options map[string]string) map[string]int64 {
	sizes := map[string]int64{}
	for _, d := range qm.VolumeDrives(options) {
		size, _ := qm.ParseSize(d.Opts["size"])
		switch wwn, serial := d.Opts["wwn"], d.Opts["serial"]; {
		case wwn != "":
			sizes["/dev/disk/by-id/wwn-"+strings.ToLower(wwn)] = size
		case serial != "" && strings.HasPrefix(d.Key, "virtio"):
			sizes["/dev/disk/by-id/virtio-"+serial] = size
		}
	}
	return sizes
}

// fileSystem is an entry of cloud-init's fs_setup.
type fileSystem struct {
	Device     string `yaml:"device"`
	FileSystem string `yaml:"filesystem"`
}

// setupDisks creates file systems and adds the mounts of disks to /etc/fstab. Other mounts,
// such as shares, are ignored.
func (g *guest) setupDisks(config cloudConfig) {
	created := map[string]bool{}
	for _, f := range config.FSSetup {
		if _, exists := g.disks[f.Device]; !exists {
			g.console.printf("cloud-init: disk_setup: device %s does not exist", f.Device)
			continue
		}
		created[f.Device] = true
	}
	for _, mount := range config.Mounts {
		if len(mount) < 3 || !strings.HasPrefix(mount[0], "/dev/") {
			continue
		}
		if !created[mount[0]] {
			g.console.printf("cloud-init: mounts: %s has no file system", mount[0])
			continue
		}
		g.mount(mount[0], mount[1], mount[2])
	}
}

// mount adds a file system to /etc/fstab.
func (g *guest) mount(device, target, kind string) {
	fstab, _ := g.storage.Read(fstabFile)
	g.storage.Write(fstabFile, fmt.Appendf(fstab, "%s %s %s\n", device, path.Clean(target), kind))
	g.console.printf("mounted %s to %s (%s)", device, target, kind)
}

// ephemeralBytes returns the size of the file system with the kubelet's directory.
func (h hardware) ephemeralBytes() int64 {
	size, longest := h.disk, 0
	fstab, _ := h.storage.Read(fstabFile)
	for line := range strings.Lines(string(fstab)) {
		fields := strings.Fields(line)
		if len(fields) < 2 || len(fields[1]) <= longest || !strings.HasPrefix(kubeletDirectory+"/", fields[1]+"/") {
			continue
		}
		if bytes, exists := h.disks[fields[0]]; exists {
			size, longest = bytes, len(fields[1])
		}
	}
	return size
}
