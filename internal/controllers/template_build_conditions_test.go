// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package controllers_test

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

// buildWithout removes privileges from the token's role.
func buildWithout(privileges ...string) func(*pvesim.Scenario) {
	return func(s *pvesim.Scenario) {
		s.Roles[0].Privileges = slices.DeleteFunc(slices.Clone(s.Roles[0].Privileges), func(p string) bool { return slices.Contains(privileges, p) })
	}
}

// content sets the content types of the storage local.
func content(types ...string) func(*pvesim.Scenario) {
	return func(s *pvesim.Scenario) { s.Storages[0].Content = types }
}

// storages sets spec.storageIDs.
func storages(ids ...string) func(*v1alpha1.ProxmoxTemplate) {
	return func(o *v1alpha1.ProxmoxTemplate) { o.Spec.StorageIDs = ids }
}

// fill fills a storage.
func fill(storage string) func(*testenv.Env) {
	return func(w *testenv.Env) { w.Expect(w.Sim.SetStorageFull(storage, true)).To(Succeed()) }
}

// buildLacks is the reason of both hosts if privileges are missing.
func buildLacks(missing, privileges string) string {
	return "pve1, pve2: API token kubernetes@pve!karpenter lacks " + missing + "; run: pveum role modify Karpenter --append 1 --privs \"" + privileges +
		"\" && pveum acl modify / --roles Karpenter --users kubernetes@pve --tokens 'kubernetes@pve!karpenter'"
}

// The condition names the host and the object that failed, and how to fix it.
func TestBuildFailureCondition(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		scenario func(*pvesim.Scenario)
		before   func(*testenv.Env)
		change   func(*v1alpha1.ProxmoxTemplate)
		want     string
	}{
		"missing_privilege": {scenario: buildWithout("VM.Allocate"), want: buildLacks("VM.Allocate on /vms", "VM.Allocate")},
		"hidden_storages": {scenario: buildWithout("Datastore.Audit"),
			want: buildLacks("Datastore.Audit on /storage/local, /storage/local-lvm", "Datastore.Audit")},
		"missing_privileges": {scenario: buildWithout("Sys.AccessNetwork", "VM.Config.Network", "SDN.Use"),
			want: buildLacks("Sys.AccessNetwork on /nodes/pve1, /nodes/pve2; VM.Config.Network on /vms; SDN.Use on /sdn/zones/localnetwork/vmbr0",
				"SDN.Use Sys.AccessNetwork VM.Config.Network")},
		"forbidden_tag": {scenario: func(s *pvesim.Scenario) { s.Options = map[string]string{"registered-tags": "golden"} },
			change: func(o *v1alpha1.ProxmoxTemplate) { o.Spec.Tags = []string{"golden"} },
			want: `pve1, pve2: spec.tags: tag "golden" is not allowed: it is a registered tag, which requires Sys.Modify on /; ` +
				"remove it from registered-tags (Datacenter, Options)"},
		"image_not_found": {change: func(o *v1alpha1.ProxmoxTemplate) {
			o.Spec.SourceImage.URL = strings.Replace(o.Spec.SourceImage.URL, "noble", "missing", 1)
		},
			want: `pve1: downloading the image: the server returned "404: Not Found" for spec.sourceImage.url; fix it, check with: curl -I URL/missing.qcow2`},
		"image_storage_full": {before: fill("local"),
			want: `pve1: downloading the image: storage local is full; free space on it, check with: pvesm status --storage local`},
		"template_storage_full": {scenario: content("import", "iso"), before: fill("local-lvm"),
			want: `pve1: creating VM 1000: storage local-lvm is full \(.*reached threshold.*\); free space on it, check with: pvesm status --storage local-lvm`},
		"no_storage_with_import_content": {scenario: content("iso", "vztmpl", "images"),
			want: `pve1, pve2: no storage of spec.storageIDs takes import content, which the image needs; run: pvesm set local --content import,iso,vztmpl,images`},
		"no_storage_with_images_content": {scenario: content("import"), change: storages("local"),
			want: `pve1, pve2: no storage of spec.storageIDs takes disk images, which the template needs; run: pvesm set local --content images,import`},
		"unknown_storage": {change: storages("system"), want: `pve1, pve2: none of spec.storageIDs (system) is on this host, which has local, local-lvm`},
		"misspelled_storage": {scenario: content("import", "iso"), change: storages("local", "local-lvmm"),
			want: `pve1, pve2: local-lvmm of spec.storageIDs is not on this host, which has local, local-lvm; the others are not sufficient: ` +
				`no storage of spec.storageIDs takes disk images, which the template needs; run: pvesm set local --content images,import,iso`},
		"no_quorum": {before: func(w *testenv.Env) { w.Sim.SetQuorum(false) },
			want: `region region-1: the Proxmox cluster has no quorum \(.*\): bring its hosts back online, check with: pvecm status`},
		"unknown_resource_pool": {change: func(o *v1alpha1.ProxmoxTemplate) { o.Spec.ResourcePool = "nowhere" },
			want: `pve1: creating VM 1000: spec.resourcePool "nowhere" does not exist; run: pveum pool add nowhere`},
		"unknown_region": {change: func(o *v1alpha1.ProxmoxTemplate) { o.Spec.Region = "mars" },
			want: `spec.region "mars" is not in the cloud config, which has region-1`},
	} {
		testenv.RunSimulated(t, name, func(t *testing.T) {
			w := testenv.New(t, testenv.Hosts(2), testenv.Scenario(func(s *pvesim.Scenario) {
				if test.scenario != nil {
					test.scenario(s)
				}
			}))
			if test.before != nil {
				test.before(w)
			}
			manage(w)
			url := testenv.ServeImages(t, 64<<10).URL
			object := w.ManagedTemplate(url+"/noble.qcow2", func(o *v1alpha1.ProxmoxTemplate) {
				if test.change != nil {
					test.change(o)
				}
			})
			want := test.want
			if strings.HasPrefix(want, "pve1, pve2: ") {
				want = regexp.QuoteMeta(want)
			}
			want = strings.NewReplacer("URL", url, "VM 1000: ", `VM 100\d: `).Replace(want)
			waitForCondition(w, object, v1alpha1.ConditionTemplateUpToDate, MatchRegexp(`^False NodeTemplateClassResolutionError: (.*; )?`+want+`(;|$)`))
			// Of the same read: the next attempt changes the conditions.
			if ready := object.StatusConditions().Root(); ready.IsFalse() {
				w.Expect(ready.Message).To(MatchRegexp(v1alpha1.ConditionTemplateReady+": (.*; )?"+want+`(;|$)`), "Ready reports the cause")
			}
		})
	}
}
