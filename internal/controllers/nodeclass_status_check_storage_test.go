// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package controllers_test

import (
	"testing"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

// proxmoxDrive configures boot data that Proxmox generates.
func proxmoxDrive(options *v1alpha1.CloudInit) func(*v1alpha1.ProxmoxNodeClass) {
	return func(c *v1alpha1.ProxmoxNodeClass) {
		c.Spec.MetadataOptions = v1alpha1.MetadataOptions{Type: v1alpha1.MetadataTypeCloudInit, CloudInit: options}
	}
}

func vendorSnippet(volume string) func(*v1alpha1.ProxmoxNodeClass) {
	return proxmoxDrive(&v1alpha1.CloudInit{Snippets: &v1alpha1.Snippets{Vendor: volume}})
}

// withoutDrive removes the cloud-init drive from the templates.
func withoutDrive(s *pvesim.Scenario) {
	for _, guest := range s.Guests {
		delete(guest.Config, "ide2")
	}
}

// workerSnippet adds a snippet.
func workerSnippet(s *pvesim.Scenario) {
	s.Files = []pvesim.File{{Storage: "local", Name: "snippets/worker.yaml", Text: "#cloud-config"}}
}

// onCephOnly lets the token use the storage ceph-vm, and not that of the templates, which have
// no cloud-init drive.
func onCephOnly(s *pvesim.Scenario) {
	withoutDrive(s)
	s.Storages = append(s.Storages, pvesim.Storage{ID: "ceph-vm", Type: "rbd", Shared: true, Content: []string{"images"}, Size: pvesim.TiB})
	s.ACLs = append(s.ACLs, pvesim.ACL{Path: "/storage/local-lvm", Role: "PVETemplateUser", User: "kubernetes@pve"})
}

// diskOnCeph selects the storage of the boot disk, which is also that of the cloud-init drive.
func diskOnCeph(disk v1alpha1.BootDevice) func(*v1alpha1.ProxmoxNodeClass) {
	return func(c *v1alpha1.ProxmoxNodeClass) {
		proxmoxDrive(nil)(c)
		disk.Size = c.Spec.BootDevice.Size
		c.Spec.BootDevice = disk
	}
}

// localContent sets the content types of the storage local.
func localContent(types ...string) func(*pvesim.Scenario) {
	return func(s *pvesim.Scenario) { s.Storages[0].Content = types }
}

func TestCheckStorage(t *testing.T) {
	bootDrive := func(storage string) func(*v1alpha1.ProxmoxNodeClass) {
		return func(c *v1alpha1.ProxmoxNodeClass) { c.Spec.MetadataOptions.Storage = storage }
	}
	runChecks(t, v1alpha1.ConditionStorageReady, v1alpha1.ReasonStorageUnsuitable, map[string]checkCase{
		"unknown_storage": {class: func(c *v1alpha1.ProxmoxNodeClass) { c.Spec.BootDevice.Storage = "ceph" },
			want: `region-1/pve1: spec.bootDevice.storage "ceph" is not on this host, which has local, local-lvm`},
		"unknown_storage_of_disk": {
			class: func(c *v1alpha1.ProxmoxNodeClass) {
				c.Spec.Disks = []v1alpha1.Disk{{Name: "data", Size: "1Gi", Storages: []string{"nas", "ceph"}}}
			},
			want: "region-1/pve1: spec.disks[name=data].storages lists nas, ceph, none of which is on this host with the content type images; " +
				"the host has local (dir), local-lvm (lvmthin)",
		},
		"invalid_selector": {class: func(c *v1alpha1.ProxmoxNodeClass) { c.Spec.BootDevice.StorageSelector = "storage.typ == 'rbd'" },
			want: `spec.bootDevice.storageSelector "storage.typ == 'rbd'" is invalid: 1:1: undeclared reference to 'storage' (in container ''); ` +
				"want a CEL expression over storage.name, storage.type, storage.free (bytes) and storage.shared that is true or false"},
		"no_storage_for_boot_drives": {scenario: localContent("images"),
			want: "region-1/pve1: no storage takes iso content, which the boot drive needs; run: pvesm set local --content iso,images"},
		"no_boot_drive": {
			scenario: localContent("images"),
			class: func(c *v1alpha1.ProxmoxNodeClass) {
				c.Spec.MetadataOptions = v1alpha1.MetadataOptions{Type: v1alpha1.MetadataTypeNone}
			},
		},
		"unknown_boot_drive_storage": {class: bootDrive("nas"),
			want: `region-1/pve1: spec.metadataOptions.storage "nas" is not on this host, which has local, local-lvm`},
		"boot_drive_storage_without_iso": {
			scenario: func(s *pvesim.Scenario) {
				s.Storages = append(s.Storages, pvesim.Storage{ID: "nas", Type: "nfs", Content: []string{"backup"}, Shared: true, Size: pvesim.TiB})
			},
			class: bootDrive("nas"),
			want:  `region-1/pve1: spec.metadataOptions.storage "nas" has the content types backup, but not iso; run: pvesm set nas --content iso,backup`,
		},
		"boot_drive_storage_type_without_iso": {class: bootDrive("local-lvm"),
			want: `region-1/pve1: spec.metadataOptions.storage "local-lvm" is of type lvmthin, which takes no iso content; name one that holds files`},
	})
}

func TestCheckCloudInit(t *testing.T) {
	runChecks(t, v1alpha1.ConditionStorageReady, v1alpha1.ReasonStorageUnsuitable, map[string]checkCase{
		"complete":                            {scenario: workerSnippet, class: vendorSnippet("local:snippets/worker.yaml")},
		"no_options_and_no_drive_in_template": {scenario: withoutDrive, class: proxmoxDrive(nil)},
		"drive_on_storage_of_disk":            {scenario: onCephOnly, class: diskOnCeph(v1alpha1.BootDevice{Storage: "ceph-vm"})},
		"drive_on_listed_storage_of_disk":     {scenario: onCephOnly, class: diskOnCeph(v1alpha1.BootDevice{Storages: []string{"ceph-vm"}})},
		"drive_on_selected_storage_of_disk":   {scenario: onCephOnly, class: diskOnCeph(v1alpha1.BootDevice{StorageSelector: "storage.type == 'rbd'"})},
		"snippet_on_one_host": {hosts: 2, scenario: both(workerSnippet, func(s *pvesim.Scenario) { s.Files[0].Host = "pve2" }),
			class: vendorSnippet("local:snippets/worker.yaml"), unread: true,
			unusable: map[string]string{"pve1": "the vendor snippet local:snippets/worker.yaml does not exist..."}},
		"unknown_snippet": {scenario: workerSnippet, class: vendorSnippet("local:snippets/other.yaml"),
			want: "region-1/pve1: the vendor snippet local:snippets/other.yaml does not exist; " +
				"on the host, copy the file other.yaml to the snippets of storage local, or set another snippet"},
		"unknown_inherited_snippet": {scenario: setTemplateOption("cicustom", "user=local:snippets/theirs.yaml"), class: proxmoxDrive(nil),
			want: "region-1/pve1: the user snippet local:snippets/theirs.yaml does not exist; " +
				"on the host, copy the file theirs.yaml to the snippets of storage local, or set another snippet"},
		"invisible_snippet": {scenario: nodeClassStatusWithout("Karpenter Datastore.Allocate"), class: vendorSnippet("local:snippets/other.yaml")},
		"unknown_storage": {class: vendorSnippet("nfs:snippets/worker.yaml"),
			want: `region-1/pve1: the vendor snippet nfs:snippets/worker.yaml is on storage "nfs", which is not on this host`},
		"storage_without_snippets": {scenario: localContent("iso", "images"), class: vendorSnippet("local:snippets/worker.yaml"),
			want: `region-1/pve1: the vendor snippet local:snippets/worker.yaml is on storage "local", which has the content types iso,images, but not snippets; ` +
				"run: pvesm set local --content snippets,iso,images"},
		"unknown_drive_storage": {scenario: withoutDrive, class: proxmoxDrive(&v1alpha1.CloudInit{Storage: "ceph"}),
			want: `region-1/pve1: storage "ceph" for the cloud-init drive, which the template lacks, is not on this host`},
		"storage_without_images": {scenario: both(withoutDrive, localContent("iso")), class: proxmoxDrive(&v1alpha1.CloudInit{Storage: "local"}),
			want: `region-1/pve1: storage "local" has the content types iso, but not images, which the missing cloud-init drive needs; ` +
				"set another one in spec.metadataOptions.cloudInit.storage, or run: pvesm set local --content images,iso"},
	})
}
