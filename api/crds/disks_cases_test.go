// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package crds_test

var diskCases = admissionCases{
	"boot_disk_options": {spec: `
bootDevice: {size: 30G, storages: [fast, local-lvm], ssd: true, discard: true, cache: writeback, aio: io_uring, ioThread: true,
  readLimit: {iops: 1000, iopsBurst: 2000, mbps: 100, mbpsBurst: 200}, writeLimit: {mbps: 50}, backup: true, replicate: false}`},
	"disks": {spec: `
disks: [{name: data, size: 100Gi, storageSelector: "storage.type == 'rbd'", bus: virtio, ioThread: true, mountPath: /var/lib/kubelet, fileSystem: xfs},
  {name: a-disk-of-20-chars-x, size: 1T, bus: sata, ssd: true, storage: tank}]`},
	"retained_disk": {spec: `{machines: [{name: db-1, zone: pve1}], disks: [{name: a, size: 1Gi, storage: tank, retain: true}]}`},
	"retained_disk_without_storage": {`{machines: [{name: db-1, zone: pve1}], disks: [{name: a, size: 1Gi, retain: true}]}`,
		"retain needs one storage, on which the disk is found again: set storage"},
	"retained_disk_of_machine_without_zone": {`
machines: [{name: db-1, zone: pve1}, {name: db-2}]
disks: [{name: a, size: 1Gi, storage: tank, retain: true}]`,
		"a disk with retain belongs to a machine on one host: set machines, each with a zone"},
	"machines":                  {spec: `machines: [{name: db-1, zone: pve1, region: home, addresses: [{interface: net0, address4: 10.0.0.11, address6: 'fd00::11'}]}, {name: db-2.example.com}]`},
	"machine_with_invalid_name": {`machines: [{name: DB_1}]`, "spec.machines[0].name"},
	"machine_with_region_only": {`machines: [{name: db-1, region: home}]`,
		"region is only used with zone: set zone, or remove region"},
	"machine_twice": {`machines: [{name: db-1}, {name: db-1}]`, "spec.machines[1]: Duplicate value"},
	"machine_address_with_prefix": {`machines: [{name: db-1, addresses: [{interface: net0, address4: 10.0.0.11/24}]}]`,
		"address4"},
	"machine_interface_without_address": {`machines: [{name: db-1, addresses: [{interface: net0}]}]`,
		"set address4, address6, or both"},
	"storage_and_storages": {`bootDevice: {storage: a, storages: [b]}`,
		"set only one of storage, storages and storageSelector"},
	"empty_storages": {`bootDevice: {storages: []}`, "spec.bootDevice.storages"},
	"burst_without_limit": {`bootDevice: {readLimit: {iopsBurst: 100}}`,
		"iopsBurst must be at least iops, which must be set"},
	"burst_below_limit": {`bootDevice: {writeLimit: {mbps: 100, mbpsBurst: 50}}`,
		"mbpsBurst must be at least mbps, which must be set"},
	"unknown_cache": {`bootDevice: {cache: fast}`,
		`supported values: "none", "writethrough", "writeback", "unsafe", "directsync"`},
	"disk_without_size": {`disks: [{name: a}]`, "spec.disks[0].size: Required value"},
	"disk_of_size_0":    {`disks: [{name: a, size: 0G}]`, "the size must be greater than 0"},
	"long_disk_name":    {`disks: [{name: a-disk-of-21-chars-xy, size: 1Gi}]`, "spec.disks[0].name"},
	"duplicate_disk":    {`disks: [{name: a, size: 1Gi}, {name: a, size: 2Gi}]`, "spec.disks[1]: Duplicate value"},
}

// diskOptionCases are NodeClasses with one disk.
var diskOptionCases = admissionCases{
	"retained_disk_without_machines": {`storage: tank, retain: true`,
		"a disk with retain belongs to a machine on one host: set machines, each with a zone"},
	"storages_and_selector": {`storages: [b], storageSelector: storage.shared`,
		"set only one of storage, storages and storageSelector"},
	"SSD_on_virtio": {`bus: virtio, ssd: true`,
		"ssd is not available on the bus virtio: remove it, or use the bus scsi"},
	"IO_thread_on_SATA": {`bus: sata, ioThread: true`,
		"ioThread is not available on the bus sata: remove it, or use the bus scsi or virtio"},
	"file_system_without_mount_path": {`fileSystem: xfs`,
		"fileSystem is only used with mountPath: set mountPath, or remove fileSystem"},
	"relative_mount_path": {`mountPath: data`, "spec.disks[0].mountPath"},
	"unknown_bus":         {`bus: ide`, `supported values: "scsi", "virtio", "sata"`},
}.within(`disks: [{name: a, size: 1Gi, `, `}]`)
