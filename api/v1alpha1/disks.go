// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"cmp"
	"crypto/sha256"
	"fmt"
	"path"
	"strings"
)

// DiskOptions are options of a disk that do not depend on its size and storage.
type DiskOptions struct {
	// ssd presents the disk as a solid-state drive instead of a rotating one. The bus virtio does not have this option. The
	// default is the template's setting. The upstream provider does not have this field.
	// +optional
	SSD *bool `json:"ssd,omitempty"`

	// discard passes TRIM requests of the guest to the storage, which frees unused blocks of thin-provisioned disks. The
	// default is the template's setting. The upstream provider does not have this field.
	// +optional
	Discard *bool `json:"discard,omitempty"`

	// cache is the cache mode of the disk. The default is the template's setting, or none. The upstream provider does not have
	// this field.
	// +kubebuilder:validation:Enum=none;writethrough;writeback;unsafe;directsync
	// +optional
	Cache string `json:"cache,omitempty"`

	// aio is the method for asynchronous I/O. The default is the template's setting, or the one that Proxmox chooses for the
	// storage. The upstream provider does not have this field.
	// +kubebuilder:validation:Enum=native;threads;io_uring
	// +optional
	AIO string `json:"aio,omitempty"`

	// ioThread gives the disk its own I/O thread. It needs the bus virtio, or the bus scsi and a template with the SCSI
	// controller virtio-scsi-single. The default is the template's setting. The upstream provider does not have this field.
	// +optional
	IOThread *bool `json:"ioThread,omitempty"`

	// readLimit limits read operations. The upstream provider does not have this field.
	// +optional
	ReadLimit *DiskLimit `json:"readLimit,omitempty"`

	// writeLimit limits write operations. The upstream provider does not have this field.
	// +optional
	WriteLimit *DiskLimit `json:"writeLimit,omitempty"`

	// backup includes the disk in backups of the VM. The default is false. The upstream provider does not have this field.
	// +optional
	Backup *bool `json:"backup,omitempty"`

	// replicate includes the disk in storage replication jobs. The default is false. The upstream provider does not have this
	// field.
	// +optional
	Replicate *bool `json:"replicate,omitempty"`
}

// DiskLimit limits the operations of a disk in one direction.
// +kubebuilder:validation:MinProperties=1
// +kubebuilder:validation:XValidation:rule="!has(self.iopsBurst) || (has(self.iops) && self.iopsBurst >= self.iops)",message="iopsBurst must be at least iops, which must be set"
// +kubebuilder:validation:XValidation:rule="!has(self.mbpsBurst) || (has(self.mbps) && self.mbpsBurst >= self.mbps)",message="mbpsBurst must be at least mbps, which must be set"
type DiskLimit struct {
	// iops is the maximum number of operations per second.
	// +kubebuilder:validation:Minimum=1
	// +optional
	IOPS int32 `json:"iops,omitempty"`

	// iopsBurst is the maximum number of operations per second for short bursts.
	// +kubebuilder:validation:Minimum=1
	// +optional
	IOPSBurst int32 `json:"iopsBurst,omitempty"`

	// mbps is the maximum bandwidth in MiB per second.
	// +kubebuilder:validation:Minimum=1
	// +optional
	MBps int32 `json:"mbps,omitempty"`

	// mbpsBurst is the maximum bandwidth in MiB per second for short bursts.
	// +kubebuilder:validation:Minimum=1
	// +optional
	MBpsBurst int32 `json:"mbpsBurst,omitempty"`
}

// DiskBus is the bus that a guest sees a disk on.
// +kubebuilder:validation:Enum=scsi;virtio;sata
type DiskBus string

const (
	// DiskBusSCSI uses the SCSI controller of the Template.
	DiskBusSCSI DiskBus = "scsi"
	// DiskBusVirtIO is virtio-blk.
	DiskBusVirtIO DiskBus = "virtio"
	// DiskBusSATA is for guests without drivers for the others.
	DiskBusSATA DiskBus = "sata"
)

// Disk is a disk of a VM besides the boot disk. It is created and deleted with the VM, unless it is retained.
// +kubebuilder:validation:XValidation:rule="[has(self.storage), has(self.storages), has(self.storageSelector)].filter(x, x).size() <= 1",message="set only one of storage, storages and storageSelector"
// +kubebuilder:validation:XValidation:rule="!has(self.ssd) || !has(self.bus) || self.bus != 'virtio'",message="ssd is not available on the bus virtio: remove it, or use the bus scsi"
// +kubebuilder:validation:XValidation:rule="!has(self.ioThread) || !has(self.bus) || self.bus != 'sata'",message="ioThread is not available on the bus sata: remove it, or use the bus scsi or virtio"
// +kubebuilder:validation:XValidation:rule="!has(self.fileSystem) || has(self.mountPath)",message="fileSystem is only used with mountPath: set mountPath, or remove fileSystem"
// +kubebuilder:validation:XValidation:rule="!has(self.retain) || !self.retain || has(self.storage)",message="retain needs one storage, on which the disk is found again: set storage"
// +kubebuilder:validation:XValidation:rule="!has(self.retain) || !self.retain || !has(oldSelf.retain) || !oldSelf.retain || self.storage == oldSelf.storage",message="storage of a disk with retain cannot be changed, because the data would stay on the old storage: add a disk with another name"
type Disk struct {
	// name is the name of the disk, and its serial number in the guest. It has at most 20 characters.
	// +kubebuilder:validation:MaxLength=20
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	// +required
	Name string `json:"name,omitempty"`

	// size is the size of the disk, for example 100G or 100Gi. It is rounded up to GiB.
	// +kubebuilder:validation:XValidation:rule="!self.matches('^0+[A-Z]')",message="the size must be greater than 0"
	// +required
	Size DiskSize `json:"size,omitempty"`

	// storage is the Proxmox storage that the disk is created on. If none of storage, storages and storageSelector is set, it
	// is the storage of the boot disk.
	// +kubebuilder:validation:MaxLength=30
	// +optional
	Storage string `json:"storage,omitempty"`

	// storages are Proxmox storages in order of preference. The disk is created on the first one that the host has and that
	// has enough free space.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=30
	// +listType=atomic
	// +optional
	Storages []string `json:"storages,omitempty"`

	// storageSelector is a CEL expression that selects storages of the host, for example storage.type == 'zfspool' &&
	// !storage.shared. It can use storage.name, storage.type, storage.free (bytes) and storage.shared. The disk is created on
	// the selected storage with the most free space.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1024
	// +optional
	StorageSelector string `json:"storageSelector,omitempty"`

	// retain keeps the disk when the VM is deleted. The next VM of the same machine gets it again, with its data. It needs machines
	// with a zone, and storage. The provider never deletes the disk, also if the machine or the class is deleted. A size that is
	// increased grows the disk when the VM is replaced. The default is false.
	// +optional
	Retain bool `json:"retain,omitempty"`

	// bus is scsi, virtio or sata. The default is scsi.
	// +optional
	Bus DiskBus `json:"bus,omitempty"`

	DiskOptions `json:",inline"`

	// mountPath is the directory in the guest where the boot data templates mount the disk. If it contains /var/lib/kubelet, the
	// size of the disk is the ephemeral storage of the node. If empty, the boot data templates do not use the disk.
	// +kubebuilder:validation:MaxLength=256
	// +kubebuilder:validation:Pattern=`^(/[a-zA-Z0-9._-]+)+$`
	// +optional
	MountPath string `json:"mountPath,omitempty"`

	// fileSystem is the file system that the boot data templates create on the disk: ext4 or xfs. The default is ext4.
	// +kubebuilder:validation:Enum=ext4;xfs
	// +optional
	FileSystem string `json:"fileSystem,omitempty"`
}

// defaultFileSystem is the file system of disks that name none.
const defaultFileSystem = "ext4"

// kubeletDirectory is the directory whose file system a Node reports as its ephemeral storage.
const kubeletDirectory = "/var/lib/kubelet"

// BusOrDefault returns the bus of the disk.
func (d Disk) BusOrDefault() DiskBus { return cmp.Or(d.Bus, DiskBusSCSI) }

// FileSystemOrDefault returns the file system of the disk.
func (d Disk) FileSystemOrDefault() string { return cmp.Or(d.FileSystem, defaultFileSystem) }

// GiB returns the size of the disk in GiB, rounded up. The API server has validated it.
func (d Disk) GiB() int64 {
	bytes, err := d.Size.Bytes()
	if err != nil {
		return 0
	}

	return (bytes + 1<<30 - 1) >> 30
}

// WWN returns the World Wide Name of the disk; empty if its bus has none. It is derived from the name, and unique in a VM.
func (d Disk) WWN() string {
	if d.BusOrDefault() == DiskBusVirtIO {
		return ""
	}

	sum := sha256.Sum256([]byte(d.Name))

	// 5 is the format of names with a vendor, 525400 that of QEMU.
	return fmt.Sprintf("0x5525400%x", sum[:8])[:18]
}

// DevicePath returns the path of the disk in the guest. SCSI disks have no path with their serial number as of QEMU's machine
// version 10.0, so theirs contains the World Wide Name.
func (d Disk) DevicePath() string {
	if wwn := d.WWN(); wwn != "" {
		return "/dev/disk/by-id/wwn-" + wwn
	}

	return "/dev/disk/by-id/virtio-" + d.Name
}

// StorageSelection is how the storage of a disk is chosen.
type StorageSelection struct {
	// Field is the path of the disk in the NodeClass, for messages.
	Field string
	// Storage, Storages and Selector are those of the disk. At most one of them is set.
	Storage  string
	Storages []string
	Selector string
}

// IsZero reports whether the disk names no storage.
func (s StorageSelection) IsZero() bool {
	return s.Storage == "" && len(s.Storages) == 0 && s.Selector == ""
}

// StorageSelection returns how the storage of the disk is chosen.
func (b BootDevice) StorageSelection() StorageSelection {
	return StorageSelection{Field: "spec.bootDevice", Storage: b.Storage, Storages: b.Storages, Selector: b.StorageSelector}
}

// StorageSelection returns how the storage of the disk is chosen.
func (d Disk) StorageSelection() StorageSelection {
	return StorageSelection{
		Field: fmt.Sprintf("spec.disks[name=%s]", d.Name), Storage: d.Storage, Storages: d.Storages, Selector: d.StorageSelector,
	}
}

// StorageSelections returns how the storages of the boot disk and of the other disks are chosen, the boot disk first.
func (in *ProxmoxNodeClass) StorageSelections() []StorageSelection {
	out := []StorageSelection{in.Spec.BootDevice.StorageSelection()}
	for _, d := range in.Spec.Disks {
		out = append(out, d.StorageSelection())
	}

	return out
}

// KubeletDisk returns the disk with the directory of the kubelet. It returns false if that is the boot disk.
func (s ProxmoxNodeClassSpec) KubeletDisk() (Disk, bool) {
	var found Disk

	for _, d := range s.Disks {
		mount := path.Clean(d.MountPath) + "/"
		if strings.HasPrefix(kubeletDirectory+"/", mount) && len(d.MountPath) > len(found.MountPath) {
			found = d
		}
	}

	return found, found.MountPath != ""
}
