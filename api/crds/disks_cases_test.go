// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package crds_test

const templateRef = "instanceTemplateRef: {kind: ProxmoxTemplate, name: default}"

func diskCases() []admissionCase {
	return []admissionCase{
		{
			name: "boot_disk_options",
			spec: "{" + templateRef + ", bootDevice: {size: 30G, storages: [fast, local-lvm], ssd: true, discard: true, cache: writeback, aio: io_uring, ioThread: true, " +
				"readLimit: {iops: 1000, iopsBurst: 2000, mbps: 100, mbpsBurst: 200}, writeLimit: {mbps: 50}, backup: true, replicate: false}}",
		}, {
			name: "disks",
			spec: "{" + templateRef + ", disks: [{name: data, size: 100Gi, storageSelector: \"storage.type == 'rbd'\", bus: virtio, ioThread: true, mountPath: /var/lib/kubelet, fileSystem: xfs}, " +
				"{name: a-disk-of-20-chars-x, size: 1T, bus: sata, ssd: true, storage: tank}]}",
		}, {
			name: "retained_disk",
			spec: "{" + templateRef + ", machines: [{name: db-1, zone: pve1}], disks: [{name: a, size: 1Gi, storage: tank, retain: true}]}",
		}, {
			name:    "retained_disk_without_storage",
			spec:    "{" + templateRef + ", machines: [{name: db-1, zone: pve1}], disks: [{name: a, size: 1Gi, retain: true}]}",
			refusal: "retain needs one storage, on which the disk is found again: set storage",
		}, {
			name:    "retained_disk_without_machines",
			spec:    "{" + templateRef + ", disks: [{name: a, size: 1Gi, storage: tank, retain: true}]}",
			refusal: "a disk with retain belongs to a machine on one host: set machines, each with a zone",
		}, {
			name:    "retained_disk_of_machine_without_zone",
			spec:    "{" + templateRef + ", machines: [{name: db-1, zone: pve1}, {name: db-2}], disks: [{name: a, size: 1Gi, storage: tank, retain: true}]}",
			refusal: "a disk with retain belongs to a machine on one host: set machines, each with a zone",
		}, {
			name: "machines",
			spec: "{" + templateRef + ", machines: [{name: db-1, zone: pve1, region: home, addresses: [{interface: net0, address4: 10.0.0.11, address6: 'fd00::11'}]}, {name: db-2.example.com}]}",
		}, {
			name:    "machine_with_invalid_name",
			spec:    "{" + templateRef + ", machines: [{name: DB_1}]}",
			refusal: "spec.machines[0].name",
		}, {
			name:    "machine_with_region_only",
			spec:    "{" + templateRef + ", machines: [{name: db-1, region: home}]}",
			refusal: "region is only used with zone: set zone, or remove region",
		}, {
			name:    "machine_twice",
			spec:    "{" + templateRef + ", machines: [{name: db-1}, {name: db-1}]}",
			refusal: "spec.machines[1]: Duplicate value",
		}, {
			name:    "machine_address_with_prefix",
			spec:    "{" + templateRef + ", machines: [{name: db-1, addresses: [{interface: net0, address4: 10.0.0.11/24}]}]}",
			refusal: "address4",
		}, {
			name:    "machine_interface_without_address",
			spec:    "{" + templateRef + ", machines: [{name: db-1, addresses: [{interface: net0}]}]}",
			refusal: "set address4, address6, or both",
		}, {
			name:    "storage_and_storages",
			spec:    "{" + templateRef + ", bootDevice: {storage: a, storages: [b]}}",
			refusal: "set only one of storage, storages and storageSelector",
		}, {
			name:    "storages_and_selector",
			spec:    "{" + templateRef + ", disks: [{name: a, size: 1Gi, storages: [b], storageSelector: storage.shared}]}",
			refusal: "set only one of storage, storages and storageSelector",
		}, {
			name:    "empty_storages",
			spec:    "{" + templateRef + ", bootDevice: {storages: []}}",
			refusal: "spec.bootDevice.storages",
		}, {
			name:    "SSD_on_virtio",
			spec:    "{" + templateRef + ", disks: [{name: a, size: 1Gi, bus: virtio, ssd: true}]}",
			refusal: "ssd is not available on the bus virtio: remove it, or use the bus scsi",
		}, {
			name:    "IO_thread_on_SATA",
			spec:    "{" + templateRef + ", disks: [{name: a, size: 1Gi, bus: sata, ioThread: true}]}",
			refusal: "ioThread is not available on the bus sata: remove it, or use the bus scsi or virtio",
		}, {
			name:    "file_system_without_mount_path",
			spec:    "{" + templateRef + ", disks: [{name: a, size: 1Gi, fileSystem: xfs}]}",
			refusal: "fileSystem is only used with mountPath: set mountPath, or remove fileSystem",
		}, {
			name:    "relative_mount_path",
			spec:    "{" + templateRef + ", disks: [{name: a, size: 1Gi, mountPath: data}]}",
			refusal: "spec.disks[0].mountPath",
		}, {
			name:    "burst_without_limit",
			spec:    "{" + templateRef + ", bootDevice: {readLimit: {iopsBurst: 100}}}",
			refusal: "iopsBurst must be at least iops, which must be set",
		}, {
			name:    "burst_below_limit",
			spec:    "{" + templateRef + ", bootDevice: {writeLimit: {mbps: 100, mbpsBurst: 50}}}",
			refusal: "mbpsBurst must be at least mbps, which must be set",
		}, {
			name:    "unknown_cache",
			spec:    "{" + templateRef + ", bootDevice: {cache: fast}}",
			refusal: `supported values: "none", "writethrough", "writeback", "unsafe", "directsync"`,
		}, {
			name:    "unknown_bus",
			spec:    "{" + templateRef + ", disks: [{name: a, size: 1Gi, bus: ide}]}",
			refusal: `supported values: "scsi", "virtio", "sata"`,
		}, {
			name:    "disk_without_size",
			spec:    "{" + templateRef + ", disks: [{name: a}]}",
			refusal: "spec.disks[0].size: Required value",
		}, {
			name:    "disk_of_size_0",
			spec:    "{" + templateRef + ", disks: [{name: a, size: 0G}]}",
			refusal: "the size must be greater than 0",
		}, {
			name:    "long_disk_name",
			spec:    "{" + templateRef + ", disks: [{name: a-disk-of-21-chars-xy, size: 1Gi}]}",
			refusal: "spec.disks[0].name",
		}, {
			name:    "duplicate_disk",
			spec:    "{" + templateRef + ", disks: [{name: a, size: 1Gi}, {name: a, size: 2Gi}]}",
			refusal: "spec.disks[1]: Duplicate value",
		},
	}
}
