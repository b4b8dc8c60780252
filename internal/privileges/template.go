// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package privileges

import (
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/observed"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// Template is a future Template of a ProxmoxTemplate on one Host.
type Template struct {
	Snapshot *observed.Snapshot
	Host     string
	// ImageStorage and Storage are the storages of the image file and of the disk; empty if
	// there is none.
	ImageStorage, Storage string
	// Volume is whether the image exists and is not downloaded.
	Volume bool
	// Storages are those that the ProxmoxTemplate names.
	Storages     []string
	ResourcePool string
	// Prepared is whether a builder VM prepares the Template, and BootDriveStorage the
	// storage of its boot drive; empty if there is none.
	Prepared         bool
	BootDriveStorage string
	// Config contains the options that the Template is created with.
	Config proxmox.VMConfig
}

// ForTemplate returns the privileges for downloading an image, building a Template from it
// and deleting both. A storage that is invisible because Datastore.Audit is missing may be
// for the image or for the disk, so it requires the privileges for both.
func ForTemplate(t Template) []Required {
	held := t.Snapshot.Facts.Permissions
	var all []Required
	if !t.Volume && (!held.Has("/", "Sys.Audit") || !held.Has("/", "Sys.Modify")) { // these allow downloads too
		all = on("/nodes/"+t.Host, "Sys.AccessNetwork")
	}
	all = append(all, OnVM(t.ResourcePool, "VM.Audit", "VM.Allocate", "VM.Config.CPU", "VM.Config.Memory", "VM.Config.HWType",
		"VM.Config.Options", "VM.Config.Disk")...)
	if len(t.Config.Network().NICs()) > 0 {
		all = append(all, OnVM(t.ResourcePool, "VM.Config.Network")...)
	}
	if t.Prepared {
		all = append(all, OnVM(t.ResourcePool, "VM.PowerMgmt", "VM.Config.CDROM")...)
		if _, has := t.Config.Drives().CloudInit(); has { // it is added after the preparation
			all = append(all, OnVM(t.ResourcePool, "VM.Config.Cloudinit")...)
		}
	}
	all = append(all, t.onStorages()...)
	devices := forDevices(t.Snapshot, t.Host, t.Config)
	sortByPath(devices)
	return append(all, devices...)
}

func (t Template) onStorages() []Required {
	var out []Required
	for _, name := range t.invisibleStorages() {
		path := "/storage/" + name
		if t.Snapshot.Facts.Permissions.Has(path, "Datastore.Audit") {
			out = append(out, on(path, "Datastore.Audit")...) // it does not exist
			continue
		}
		out = append(out, on(path, append([]string{"Datastore.AllocateSpace"}, t.onImage()...)...)...)
	}
	if t.ImageStorage != "" {
		out = append(out, on("/storage/"+t.ImageStorage, t.onImage()...)...)
	}
	if t.Storage != "" {
		out = append(out, on("/storage/"+t.Storage, "Datastore.AllocateSpace", "Datastore.Audit")...)
	}
	return append(out, t.onBootDrive()...)
}

// onBootDrive returns the privileges for uploading and deleting the boot drive of a builder
// VM.
func (t Template) onBootDrive() []Required {
	switch {
	case !t.Prepared:
		return nil
	case t.BootDriveStorage == "":
		return onHiddenStorages(t.Snapshot.Facts.Permissions)
	}
	return on("/storage/"+t.BootDriveStorage, imageFilePrivileges...)
}

// onImage returns the privileges on the storage of the image.
func (t Template) onImage() []string {
	if t.Volume {
		return []string{"Datastore.Audit"}
	}
	return imageFilePrivileges
}

// invisibleStorages returns the storages that the ProxmoxTemplate names and that do not
// exist on the Host, or are not visible because Datastore.Audit is missing. They matter
// only if the visible ones do not suffice.
func (t Template) invisibleStorages() []string {
	if t.ImageStorage != "" && t.Storage != "" {
		return nil
	}
	var out []string
	for _, name := range t.Storages {
		if _, visible := t.Snapshot.Storages[observed.StorageKey{Host: t.Host, Storage: name}]; !visible {
			out = append(out, name)
		}
	}
	return out
}
