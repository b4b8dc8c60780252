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

// ownDrive is a class whose boot data Proxmox makes.
func ownDrive(options *v1alpha1.CloudInit) func(*v1alpha1.ProxmoxNodeClass) {
	return func(c *v1alpha1.ProxmoxNodeClass) {
		c.Spec.MetadataOptions = v1alpha1.MetadataOptions{Type: v1alpha1.MetadataTypeCloudInit, CloudInit: options}
	}
}

func vendor(volume string) func(*v1alpha1.ProxmoxNodeClass) {
	return ownDrive(&v1alpha1.CloudInit{Snippets: &v1alpha1.Snippets{Vendor: volume}})
}

// withoutDrive takes the cloud-init drive out of the templates.
func withoutDrive(s *pvesim.Scenario) {
	for _, guest := range s.Guests {
		delete(guest.Config, "ide2")
	}
}

// worker is a snippet that is on the host.
func worker(s *pvesim.Scenario) {
	s.Files = []pvesim.File{{Storage: "local", Name: "snippets/worker.yaml", Text: "#cloud-config"}}
}

func TestWhatACloudInitDriveLacksIsTold(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		scenario  func(*pvesim.Scenario)
		class     func(*v1alpha1.ProxmoxNodeClass)
		condition string
		want      string
	}{
		"all there":                            {scenario: worker, class: vendor("local:snippets/worker.yaml")},
		"no options, no drive in the template": {scenario: withoutDrive, class: ownDrive(nil)},
		"no such snippet": {
			scenario: worker, class: vendor("local:snippets/other.yaml"), condition: v1alpha1.ConditionStorageReady,
			want: "region-1/pve1: the vendor snippet local:snippets/other.yaml is not there; on the host, put the file other.yaml into the snippets of storage local, or name another",
		},
		"no such snippet, inherited": {
			scenario: templates("cicustom", "user=local:snippets/theirs.yaml"), class: ownDrive(nil), condition: v1alpha1.ConditionStorageReady,
			want: "region-1/pve1: the user snippet local:snippets/theirs.yaml is not there; on the host, put the file theirs.yaml into the snippets of storage local, or name another",
		},
		"a snippet that the token may not see": {
			scenario: without("Karpenter Datastore.Allocate"), class: vendor("local:snippets/other.yaml"),
		},
		"no such storage": {
			class: vendor("nfs:snippets/worker.yaml"), condition: v1alpha1.ConditionStorageReady,
			want: "region-1/pve1: the vendor snippet nfs:snippets/worker.yaml is on storage \"nfs\", which is not on this host",
		},
		"a storage without snippets": {
			scenario: func(s *pvesim.Scenario) { s.Storages[0].Content = []string{"iso", "images"} },
			class:    vendor("local:snippets/worker.yaml"), condition: v1alpha1.ConditionStorageReady,
			want: "region-1/pve1: the vendor snippet local:snippets/worker.yaml is on storage \"local\", which takes iso,images but no snippets; run: pvesm set local --content snippets,iso,images",
		},
		"no storage for the drive": {
			scenario: withoutDrive, class: ownDrive(&v1alpha1.CloudInit{Storage: "ceph"}), condition: v1alpha1.ConditionStorageReady,
			want: "region-1/pve1: storage \"ceph\", for the cloud-init drive that the template lacks, is not on this host",
		},
		"a storage without images": {
			scenario: func(s *pvesim.Scenario) {
				withoutDrive(s)
				s.Storages[0].Content = []string{"iso"}
			},
			class: ownDrive(&v1alpha1.CloudInit{Storage: "local"}), condition: v1alpha1.ConditionStorageReady,
			want: "region-1/pve1: storage \"local\" takes iso but no disk images, and the cloud-init drive that the template lacks is one; " +
				"name another in spec.metadataOptions.cloudInit.storage, or run: pvesm set local --content images,iso",
		},
		"a key that was cut": {
			class:     ownDrive(&v1alpha1.CloudInit{SSHKeys: []string{"ssh-ed25519 AAAAC3NzaC1l me"}}),
			condition: v1alpha1.ConditionInstanceMetadataOptionsReady,
			want:      "reading spec.metadataOptions.cloudInit.sshKeys[0]: the key is not whole, it may have been cut; want a line of authorized_keys, like ssh-ed25519 AAAAC3... me@example.com",
		},
		"a snippet of the template in the way": {
			scenario: func(s *pvesim.Scenario) {
				worker(s)
				templates("cicustom", "user=local:snippets/worker.yaml")(s)
			},
			class: ownDrive(&v1alpha1.CloudInit{User: "ops"}), condition: v1alpha1.ConditionInstanceTemplateReady,
			want: "region-1/pve1: template 9000 cannot be used: its cicustom has user=local:snippets/worker.yaml, in place of the user-data that spec.metadataOptions.cloudInit is for; " +
				"remove it from the template (qm set TEMPLATE --delete cicustom), or remove the setting from the class",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			options := []testenv.Option{testenv.NoPolling()}
			if c.scenario != nil {
				options = append(options, testenv.Scenario(c.scenario))
			}
			w := testenv.New(t, options...)
			found(w, "region-1/pve1/9000")
			class := checked(w, w.NewClass(c.class))
			w.Refresh() // snippets are looked up once somebody asks
			class = checked(w, class)
			ready := class.StatusConditions().Root()
			if c.condition == "" {
				w.Expect(ready.IsTrue()).To(BeTrue(), ready.Message)
				return
			}
			w.Expect(message(class, c.condition)).To(Equal(c.want))
			w.Expect(ready.Message).To(Equal(c.condition + ": " + c.want))
		})
	}
}

func TestASnippetOnOneHostServesThatHostAlone(t *testing.T) {
	t.Parallel()
	w := testenv.New(t, testenv.NoPolling(), testenv.Hosts(2), testenv.Scenario(func(s *pvesim.Scenario) {
		worker(s)
		s.Files[0].Host = "pve2"
	}))
	found(w, "region-1/pve1/9000", "region-1/pve2/9001")
	class := checked(w, w.NewClass(vendor("local:snippets/worker.yaml")))
	w.Expect(class.Status.SelectedZones).To(BeEmpty(), "not known before somebody asked")
	w.Refresh()
	class = checked(w, class)
	w.Expect(class.StatusConditions().Root().IsTrue()).To(BeTrue())
	w.Expect(class.Status.SelectedZones).To(Equal([]string{"region-1/pve2/9001"}))
	w.Expect(class.Status.UnusableZones[0].Reason).To(HavePrefix("the vendor snippet local:snippets/worker.yaml is not there"))
}

// What a drive that we add takes, and what one that the template has does not.
func TestPrivilegesForACloudInitDriveOfProxmox(t *testing.T) {
	t.Parallel()
	added := wholeCluster()
	added.scenario, added.class = withoutDrive, ownDrive(&v1alpha1.CloudInit{User: "ops"})
	inherited := wholeCluster()
	inherited.class = added.class
	inherited.needless = []string{"Karpenter VM.Config.Cloudinit", "Karpenter VM.Config.CDROM", "Karpenter Datastore.Allocate", "Karpenter Datastore.AllocateTemplate"}
	for _, privilege := range []string{"", "VM.Config.Cloudinit", "VM.Config.CDROM", "VM.Config.Network", "Datastore.AllocateSpace"} {
		if privilege != "" {
			privilege = "Karpenter " + privilege
		}
		t.Run("added, "+privilege, func(t *testing.T) { t.Parallel(); missing(t, added, "8.4", privilege) })
		t.Run("inherited, "+privilege, func(t *testing.T) { t.Parallel(); missing(t, inherited, "9.2", privilege) })
	}
}
