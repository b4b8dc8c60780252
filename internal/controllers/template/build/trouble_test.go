// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package build_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

func configName(name string) proxmox.ConfigChange {
	return proxmox.ConfigChange{Set: map[string]string{"name": name}}
}

// without takes privileges out of the token's role.
func without(privileges ...string) func(*pvesim.Scenario) {
	return func(s *pvesim.Scenario) {
		s.Roles[0].Privileges = slices.DeleteFunc(slices.Clone(s.Roles[0].Privileges), func(p string) bool { return slices.Contains(privileges, p) })
	}
}

// content lets a storage take only that.
func content(storage string, kinds ...string) func(*pvesim.Scenario) {
	return func(s *pvesim.Scenario) {
		for i := range s.Storages {
			if s.Storages[i].ID == storage {
				s.Storages[i].Content = kinds
			}
		}
	}
}

// Whatever goes wrong, the condition names the host and the object, and says what to
// do about it.
func TestTheConditionTellsWhatToMend(t *testing.T) {
	t.Parallel()
	const zeros = "00000000000000000000000000000000"
	for name, test := range map[string]struct {
		scenario func(*pvesim.Scenario)
		before   func(*testenv.Env)
		change   func(*v1alpha1.ProxmoxTemplate)
		says     string
	}{
		"privilege to download missing": {
			scenario: without("Datastore.AllocateTemplate"),
			says:     `pve1: downloading the image: privilege Datastore.AllocateTemplate is missing on /storage/local; run: pveum acl modify /storage/local --users <user of the token> --roles <a role with it>`,
		},
		"privilege to reach the network missing": {
			scenario: without("Sys.AccessNetwork"),
			says:     `pve1: downloading the image: a privilege is missing, Datastore.AllocateTemplate on /storage/local or Sys.AccessNetwork on /nodes/pve1; run: pveum acl modify /nodes/pve1 --users <user of the token> --roles <a role with it>`,
		},
		"privilege to create missing": {
			scenario: without("VM.Allocate"),
			says:     `pve1: creating VM 1000: a privilege is missing (Permission check failed); docs/permissions.md lists what the token needs`,
		},
		"privilege on the bridge missing": {
			scenario: without("SDN.Use"),
			says:     `pve1: creating VM 1000: privilege SDN.Use is missing on /sdn/zones/localnetwork/vmbr0; run: pveum acl modify /sdn/zones/localnetwork/vmbr0 --users <user of the token> --roles <a role with it>`,
		},
		"wrong checksum": {
			change: func(o *v1alpha1.ProxmoxTemplate) {
				o.Spec.SourceImage.Checksum, o.Spec.SourceImage.ChecksumType = zeros, "md5"
			},
			says: `pve1: downloading the image: URL/noble.qcow2 does not have spec.sourceImage.checksum, its md5 is [0-9a-f]{32}; correct the checksum or the url`,
		},
		"image not there": {
			change: func(o *v1alpha1.ProxmoxTemplate) {
				o.Spec.SourceImage.URL = strings.Replace(o.Spec.SourceImage.URL, "noble", "missing", 1)
			},
			says: `pve1: downloading the image: the server answers "404: Not Found" for spec.sourceImage.url; correct it, and look with: curl -I URL/missing.qcow2`,
		},
		"image packed": {
			change: func(o *v1alpha1.ProxmoxTemplate) { o.Spec.SourceImage.URL += ".xz" },
			says:   `spec.sourceImage.url ends in .xz: Proxmox unpacks ISO images only; name an image that is not packed, or unpack it onto a web server of yours`,
		},
		"image without a format": {
			change: func(o *v1alpha1.ProxmoxTemplate) { o.Spec.SourceImage.URL += "/latest" },
			says:   `spec.sourceImage.imageName is empty, and the last part of url is "latest": its extension must tell the format, qcow2, raw or vmdk \(img counts as qcow2\); set imageName, for example ubuntu-amd64.qcow2`,
		},
		"storage of the image full": {
			before: func(w *testenv.Env) { w.Expect(w.Sim.SetStorageFull("local", true)).To(Succeed()) },
			says:   `pve1: downloading the image: storage local is full; free space there, and look with: pvesm status --storage local`,
		},
		"storage of the template full": {
			scenario: content("local", "import", "iso"),
			before:   func(w *testenv.Env) { w.Expect(w.Sim.SetStorageFull("local-lvm", true)).To(Succeed()) },
			says:     `pve1: creating VM 1000: storage local-lvm is full \(.*reached threshold.*\); free space there, and look with: pvesm status --storage local-lvm`,
		},
		"no storage for images to import": {
			scenario: content("local", "iso", "vztmpl", "images"),
			says:     `pve1: no storage of spec.storageIDs takes import content, which the image needs; run: pvesm set local --content import,iso,vztmpl,images`,
		},
		"no storage for disks": {
			scenario: content("local", "import"),
			change:   func(o *v1alpha1.ProxmoxTemplate) { o.Spec.StorageIDs = []string{"local"} },
			says:     `pve1: no storage of spec.storageIDs takes disk images, which the template needs; run: pvesm set local --content images,import`,
		},
		"storage unknown": {
			change: func(o *v1alpha1.ProxmoxTemplate) { o.Spec.StorageIDs = []string{"system"} },
			says:   `pve1: none of spec.storageIDs \(system\) is on this host; name one that is, see: pvesm status`,
		},
		"host offline": {
			scenario: func(s *pvesim.Scenario) { s.Hosts[0].Offline = true },
			says:     `pve1: the host is offline; its template is made when it is back`,
		},
		"quorum lost": {
			before: func(w *testenv.Env) { w.Sim.SetQuorum(false) },
			says:   `pve1: creating VM 1000: the Proxmox cluster has no quorum and takes no changes; bring its hosts back, and look with: pvecm status`,
		},
		"pool unknown": {
			change: func(o *v1alpha1.ProxmoxTemplate) { o.Spec.ResourcePool = "nowhere" },
			says:   `pve1: creating VM 1000: spec.resourcePool "nowhere" does not exist; run: pveum pool add nowhere`,
		},
		"region unknown": {
			change: func(o *v1alpha1.ProxmoxTemplate) { o.Spec.Region = "mars" },
			says:   `spec.region "mars" is not in the cloud config, which has region-1`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			scenario := func(s *pvesim.Scenario) {
				if test.scenario != nil {
					test.scenario(s)
				}
			}
			w := testenv.New(t, testenv.Hosts(2), testenv.Scenario(scenario))
			images := testenv.ServeImages(t, 64<<10)
			if test.before != nil {
				test.before(w)
			}
			manage(w)
			object := w.ManagedTemplate(images.URL+"/noble.qcow2", func(o *v1alpha1.ProxmoxTemplate) {
				if test.change != nil {
					test.change(o)
				}
			})
			want := strings.ReplaceAll(test.says, "URL", images.URL)
			want = strings.NewReplacer("VM 1000: ", `VM 100\d: `, "?", `\?`, "(Permission check failed)", `\(Permission check failed\)`).Replace(want)
			w.Eventually(func() string { return condition(w, object, v1alpha1.ConditionTemplateUpToDate) }).
				WithTimeout(patience).WithPolling(50 * time.Millisecond).
				Should(MatchRegexp(`^False NodeTemplateClassResolutionError: (.*; )?` + want + `(;|$)`))
			if ready := testenv.Reload(w, object).StatusConditions().Root(); ready.IsFalse() {
				w.Expect(ready.Message).To(MatchRegexp(v1alpha1.ConditionTemplateReady+": (.*; )?"+want+`(;|$)`), "Ready tells the cause")
			}
		})
	}
}
