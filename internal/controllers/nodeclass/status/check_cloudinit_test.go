// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package status_test

import (
	"testing"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
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

func TestCheckCloudInit(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		scenario  func(*pvesim.Scenario)
		class     func(*v1alpha1.ProxmoxNodeClass)
		condition string
		want      string
	}{
		"complete":                            {scenario: workerSnippet, class: vendorSnippet("local:snippets/worker.yaml")},
		"no_options_and_no_drive_in_template": {scenario: withoutDrive, class: proxmoxDrive(nil)},
		"drive_on_storage_of_disk":            {scenario: onCephOnly, class: diskOnCeph(v1alpha1.BootDevice{Storage: "ceph-vm"})},
		"drive_on_listed_storage_of_disk":     {scenario: onCephOnly, class: diskOnCeph(v1alpha1.BootDevice{Storages: []string{"ceph-vm"}})},
		"drive_on_selected_storage_of_disk":   {scenario: onCephOnly, class: diskOnCeph(v1alpha1.BootDevice{StorageSelector: "storage.type == 'rbd'"})},
		"unknown_snippet": {
			scenario: workerSnippet, class: vendorSnippet("local:snippets/other.yaml"), condition: v1alpha1.ConditionStorageReady,
			want: "region-1/pve1: the vendor snippet local:snippets/other.yaml does not exist; on the host, copy the file other.yaml to the snippets of storage local, or set another snippet",
		},
		"unknown_inherited_snippet": {
			scenario: setTemplateOption("cicustom", "user=local:snippets/theirs.yaml"), class: proxmoxDrive(nil), condition: v1alpha1.ConditionStorageReady,
			want: "region-1/pve1: the user snippet local:snippets/theirs.yaml does not exist; on the host, copy the file theirs.yaml to the snippets of storage local, or set another snippet",
		},
		"invisible_snippet": {
			scenario: without("Karpenter Datastore.Allocate"), class: vendorSnippet("local:snippets/other.yaml"),
		},
		"unknown_storage": {
			class: vendorSnippet("nfs:snippets/worker.yaml"), condition: v1alpha1.ConditionStorageReady,
			want: "region-1/pve1: the vendor snippet nfs:snippets/worker.yaml is on storage \"nfs\", which is not on this host",
		},
		"storage_without_snippets": {
			scenario: func(s *pvesim.Scenario) { s.Storages[0].Content = []string{"iso", "images"} },
			class:    vendorSnippet("local:snippets/worker.yaml"), condition: v1alpha1.ConditionStorageReady,
			want: "region-1/pve1: the vendor snippet local:snippets/worker.yaml is on storage \"local\", which has the content types iso,images, but not snippets; run: pvesm set local --content snippets,iso,images",
		},
		"unknown_drive_storage": {
			scenario: withoutDrive, class: proxmoxDrive(&v1alpha1.CloudInit{Storage: "ceph"}), condition: v1alpha1.ConditionStorageReady,
			want: "region-1/pve1: storage \"ceph\" for the cloud-init drive, which the template lacks, is not on this host",
		},
		"storage_without_images": {
			scenario: func(s *pvesim.Scenario) {
				withoutDrive(s)
				s.Storages[0].Content = []string{"iso"}
			},
			class: proxmoxDrive(&v1alpha1.CloudInit{Storage: "local"}), condition: v1alpha1.ConditionStorageReady,
			want: "region-1/pve1: storage \"local\" has the content types iso, but not images, which the missing cloud-init drive needs; " +
				"set another one in spec.metadataOptions.cloudInit.storage, or run: pvesm set local --content images,iso",
		},
		"truncated_key": {
			class:     proxmoxDrive(&v1alpha1.CloudInit{SSHKeys: []string{"ssh-ed25519 AAAAC3NzaC1l me"}}),
			condition: v1alpha1.ConditionInstanceMetadataOptionsReady,
			want:      "reading spec.metadataOptions.cloudInit.sshKeys[0]: the SSH key is truncated; want a line of authorized_keys, like ssh-ed25519 AAAAC3... me@example.com",
		},
		"conflicting_template_snippet": {
			scenario: func(s *pvesim.Scenario) {
				workerSnippet(s)
				setTemplateOption("cicustom", "user=local:snippets/worker.yaml")(s)
			},
			class: proxmoxDrive(&v1alpha1.CloudInit{User: "ops"}), condition: v1alpha1.ConditionInstanceTemplateReady,
			want: "region-1/pve1: template 9000 cannot be used: its cicustom sets user=local:snippets/worker.yaml, which replaces the user-data of spec.metadataOptions.cloudInit; " +
				"remove it from the template (qm set TEMPLATE --delete cicustom), or remove the setting from the class",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, class := newEnvWithClass(t, c.scenario, c.class)
			reconcileClass(w, class)
			w.Refresh() // snippets are read once a class refers to them
			class = reconcileClass(w, class)
			ready := class.StatusConditions().Root()
			if c.condition == "" {
				w.Expect(ready.IsTrue()).To(BeTrue(), ready.Message)
				return
			}
			w.Expect(conditionMessage(class, c.condition)).To(Equal(c.want))
			w.Expect(ready.Message).To(Equal(c.condition + ": " + c.want))
		})
	}
}

func TestCheckCloudInitSnippetOnOneHost(t *testing.T) {
	t.Parallel()
	w := testenv.New(t, testenv.NoPolling(), testenv.Hosts(2), testenv.Scenario(func(s *pvesim.Scenario) {
		workerSnippet(s)
		s.Files[0].Host = "pve2"
	}))
	setTemplateZones(w, "region-1/pve1/9000", "region-1/pve2/9001")
	class := reconcileClass(w, w.NewClass(vendorSnippet("local:snippets/worker.yaml")))
	w.Expect(class.Status.SelectedZones).To(BeEmpty(), "snippets are read once a class refers to them")
	w.Refresh()
	class = reconcileClass(w, class)
	w.Expect(class.StatusConditions().Root().IsTrue()).To(BeTrue())
	w.Expect(class.Status.SelectedZones).To(Equal([]string{"region-1/pve2/9001"}))
	w.Expect(class.Status.UnusableZones[0].Reason).To(HavePrefix("the vendor snippet local:snippets/worker.yaml does not exist"))
}

// TestCheckPrivilegesForCloudInitDrive checks the privileges for an added drive, and for
// one that the template has.
func TestCheckPrivilegesForCloudInitDrive(t *testing.T) {
	t.Parallel()
	added := wholeCluster()
	added.scenario, added.class = withoutDrive, proxmoxDrive(&v1alpha1.CloudInit{User: "ops"})
	inherited := wholeCluster()
	inherited.class = added.class
	inherited.unneeded = []string{"Karpenter VM.Config.Cloudinit", "Karpenter VM.Config.CDROM", "Karpenter Datastore.Allocate", "Karpenter Datastore.AllocateTemplate"}
	for _, privilege := range []string{"", "VM.Config.Cloudinit", "VM.Config.CDROM", "VM.Config.Network", "Datastore.AllocateSpace"} {
		if privilege != "" {
			privilege = "Karpenter " + privilege
		}
		t.Run("added/"+privilege, func(t *testing.T) { t.Parallel(); checkMissingPrivilege(t, added, "8.4", privilege) })
		t.Run("inherited/"+privilege, func(t *testing.T) { t.Parallel(); checkMissingPrivilege(t, inherited, "9.2", privilege) })
	}
}
