// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package build_test

import (
	"regexp"
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

// without removes privileges from the token's role.
func without(privileges ...string) func(*pvesim.Scenario) {
	return func(s *pvesim.Scenario) {
		s.Roles[0].Privileges = slices.DeleteFunc(slices.Clone(s.Roles[0].Privileges), func(p string) bool { return slices.Contains(privileges, p) })
	}
}

// content sets the content types of the storage local.
func content(types ...string) func(*pvesim.Scenario) {
	return func(s *pvesim.Scenario) {
		for i := range s.Storages {
			if s.Storages[i].ID == "local" {
				s.Storages[i].Content = types
			}
		}
	}
}

const grant = "pveum acl modify / --roles Karpenter --users kubernetes@pve --tokens 'kubernetes@pve!karpenter'"

// lacks is the reason of both hosts if privileges on a path are missing.
func lacks(privilege, paths string) string {
	return "pve1, pve2: API token kubernetes@pve!karpenter lacks " + privilege + " on " + paths +
		"; run: pveum role modify Karpenter --append 1 --privs \"" + privilege + "\" && " + grant
}

// The condition names the host and the object that failed, and how to fix it.
func TestBuildFailureCondition(t *testing.T) {
	t.Parallel()
	const zeros = "00000000000000000000000000000000"
	for name, test := range map[string]struct {
		scenario func(*pvesim.Scenario)
		before   func(*testenv.Env)
		change   func(*v1alpha1.ProxmoxTemplate)
		want     string
	}{
		"missing_download_privilege": {
			scenario: without("Datastore.AllocateTemplate"),
			want:     lacks("Datastore.AllocateTemplate", "/storage/local"),
		},
		"missing_network_privilege": {
			scenario: without("Sys.AccessNetwork"),
			want:     lacks("Sys.AccessNetwork", "/nodes/pve1, /nodes/pve2"),
		},
		"missing_create_privilege": {
			scenario: without("VM.Allocate"),
			want:     lacks("VM.Allocate", "/vms"),
		},
		"missing_bridge_privilege": {
			scenario: without("SDN.Use"),
			want:     lacks("SDN.Use", "/sdn/zones/localnetwork/vmbr0"),
		},
		"hidden_storages": {
			scenario: without("Datastore.Audit"),
			want:     lacks("Datastore.Audit", "/storage/local, /storage/local-lvm"),
		},
		"all_missing_privileges": {
			scenario: without("Sys.AccessNetwork", "VM.Config.Network", "SDN.Use"),
			want: "pve1, pve2: API token kubernetes@pve!karpenter lacks Sys.AccessNetwork on /nodes/pve1, /nodes/pve2; VM.Config.Network on /vms; " +
				"SDN.Use on /sdn/zones/localnetwork/vmbr0; run: pveum role modify Karpenter --append 1 --privs \"SDN.Use Sys.AccessNetwork VM.Config.Network\" && " + grant,
		},
		"unknown_bridge": {
			change: func(o *v1alpha1.ProxmoxTemplate) { o.Spec.Network[0].Bridge = "vmbr7" },
			want:   `pve1, pve2: bridge "vmbr7" of spec.network[0] is not on this host, which has vmbr0; create it (Host, System, Network), or set another one`,
		},
		"forbidden_tag": {
			scenario: func(s *pvesim.Scenario) { s.Options = map[string]string{"registered-tags": "golden"} },
			change:   func(o *v1alpha1.ProxmoxTemplate) { o.Spec.Tags = []string{"golden"} },
			want:     `pve1, pve2: spec.tags: tag "golden" is not allowed: it is a registered tag, which requires Sys.Modify on /; remove it from registered-tags (Datacenter, Options)`,
		},
		"wrong_checksum": {
			change: func(o *v1alpha1.ProxmoxTemplate) {
				o.Spec.SourceImage.Checksum, o.Spec.SourceImage.ChecksumType = zeros, "md5"
			},
			want: `pve1: downloading the image: URL/noble.qcow2 does not match spec.sourceImage.checksum, its md5 is [0-9a-f]{32}; fix checksum or url`,
		},
		"checksum_placeholder": {
			change: func(o *v1alpha1.ProxmoxTemplate) {
				o.Spec.SourceImage.Checksum, o.Spec.SourceImage.ChecksumType = "<checksum>", "md5"
			},
			want: `spec.sourceImage.checksum is the placeholder "<checksum>": put in the md5 sum of the image, or remove checksum and checksumType`,
		},
		"image_server_unreachable": {
			change: func(o *v1alpha1.ProxmoxTemplate) { o.Spec.SourceImage.URL = "http://127.0.0.1:1/noble.qcow2" },
			want:   `pve1: downloading the image: host pve1 cannot reach the server of spec.sourceImage.url \(Connection refused\); fix it, check on the host with: curl -I http://127.0.0.1:1/noble.qcow2`,
		},
		"no_mirror_works": {
			change: func(o *v1alpha1.ProxmoxTemplate) {
				o.Spec.SourceImage = v1alpha1.SourceImage{URLs: []string{
					strings.Replace(o.Spec.SourceImage.URL, "noble", "missing", 1), "http://127.0.0.1:1/noble.qcow2",
				}}
			},
			want: `pve1: no mirror of spec.sourceImage.urls works: downloading the image: the server returned "404: Not Found" for spec.sourceImage.urls\[0\]; fix it, check with: curl -I URL/missing.qcow2; ` +
				`downloading the image: host pve1 cannot reach the server of spec.sourceImage.urls\[1\] \(Connection refused\); fix it, check on the host with: curl -I http://127.0.0.1:1/noble.qcow2`,
		},
		"missing_volume": {
			change: func(o *v1alpha1.ProxmoxTemplate) {
				o.Spec.SourceImage = v1alpha1.SourceImage{Volume: "local:import/debian-13.qcow2"}
			},
			want: `pve1: spec.sourceImage.volume "local:import/debian-13.qcow2" does not exist on host pve1: storage local has no images; upload it there, or set a volume that exists`,
		},
		"image_not_found": {
			change: func(o *v1alpha1.ProxmoxTemplate) {
				o.Spec.SourceImage.URL = strings.Replace(o.Spec.SourceImage.URL, "noble", "missing", 1)
			},
			want: `pve1: downloading the image: the server returned "404: Not Found" for spec.sourceImage.url; fix it, check with: curl -I URL/missing.qcow2`,
		},
		"compressed_image": {
			change: func(o *v1alpha1.ProxmoxTemplate) { o.Spec.SourceImage.URL += ".xz" },
			want:   `spec.sourceImage.url ends in .xz: Proxmox decompresses ISO images only; use an image that is not compressed, or decompress it and serve it from your own web server, or upload it to the hosts and set volume`,
		},
		"unknown_image_format": {
			change: func(o *v1alpha1.ProxmoxTemplate) { o.Spec.SourceImage.URL += "/latest" },
			want:   `spec.sourceImage.imageName is empty, and the last part of url is "latest": its extension must be the format: qcow2, raw or vmdk \(img means qcow2\); set imageName, for example ubuntu-amd64.qcow2`,
		},
		"image_storage_full": {
			before: func(w *testenv.Env) { w.Expect(w.Sim.SetStorageFull("local", true)).To(Succeed()) },
			want:   `pve1: downloading the image: storage local is full; free space on it, check with: pvesm status --storage local`,
		},
		"template_storage_full": {
			scenario: content("import", "iso"),
			before:   func(w *testenv.Env) { w.Expect(w.Sim.SetStorageFull("local-lvm", true)).To(Succeed()) },
			want:     `pve1: creating VM 1000: storage local-lvm is full \(.*reached threshold.*\); free space on it, check with: pvesm status --storage local-lvm`,
		},
		"no_storage_with_import_content": {
			scenario: content("iso", "vztmpl", "images"),
			want:     `pve1, pve2: no storage of spec.storageIDs takes import content, which the image needs; run: pvesm set local --content import,iso,vztmpl,images`,
		},
		"no_storage_with_images_content": {
			scenario: content("import"),
			change:   func(o *v1alpha1.ProxmoxTemplate) { o.Spec.StorageIDs = []string{"local"} },
			want:     `pve1, pve2: no storage of spec.storageIDs takes disk images, which the template needs; run: pvesm set local --content images,import`,
		},
		"unknown_storage": {
			change: func(o *v1alpha1.ProxmoxTemplate) { o.Spec.StorageIDs = []string{"system"} },
			want:   `pve1, pve2: none of spec.storageIDs (system) is on this host, which has local, local-lvm`,
		},
		"misspelled_storage": {
			scenario: content("import", "iso"),
			change:   func(o *v1alpha1.ProxmoxTemplate) { o.Spec.StorageIDs = []string{"local", "local-lvmm"} },
			want: `pve1, pve2: local-lvmm of spec.storageIDs is not on this host, which has local, local-lvm; the others are not sufficient: ` +
				`no storage of spec.storageIDs takes disk images, which the template needs; run: pvesm set local --content images,import,iso`,
		},
		"host_offline": {
			scenario: func(s *pvesim.Scenario) { s.Hosts[0].Offline = true },
			want:     `pve1: the host is offline; its template is built when the host is online again`,
		},
		"no_quorum": {
			before: func(w *testenv.Env) { w.Sim.SetQuorum(false) },
			want:   `region region-1: the Proxmox cluster has no quorum \(.*\): bring its hosts back online, check with: pvecm status`,
		},
		"unknown_resource_pool": {
			change: func(o *v1alpha1.ProxmoxTemplate) { o.Spec.ResourcePool = "nowhere" },
			want:   `pve1: creating VM 1000: spec.resourcePool "nowhere" does not exist; run: pveum pool add nowhere`,
		},
		"unknown_region": {
			change: func(o *v1alpha1.ProxmoxTemplate) { o.Spec.Region = "mars" },
			want:   `spec.region "mars" is not in the cloud config, which has region-1`,
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
			want := test.want
			if strings.Contains(want, "pve1, pve2: ") {
				want = regexp.QuoteMeta(want)
			}
			want = strings.NewReplacer("URL", images.URL, "VM 1000: ", `VM 100\d: `, "?", `\?`).Replace(want)
			w.Eventually(func() string { return condition(w, object, v1alpha1.ConditionTemplateUpToDate) }).
				WithTimeout(timeout).WithPolling(50 * time.Millisecond).
				Should(MatchRegexp(`^False NodeTemplateClassResolutionError: (.*; )?` + want + `(;|$)`))
			// Of the same read: the next attempt changes the conditions.
			if ready := object.StatusConditions().Root(); ready.IsFalse() {
				w.Expect(ready.Message).To(MatchRegexp(v1alpha1.ConditionTemplateReady+": (.*; )?"+want+`(;|$)`), "Ready reports the cause")
			}
		})
	}
}
