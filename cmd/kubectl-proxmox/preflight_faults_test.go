// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

// managedNode is a NodeClass with its template and boot data.
const managedNode = `
apiVersion: karpenter.proxmox.sinextra.dev/v1alpha1
kind: ProxmoxTemplate
metadata: {name: new}
spec: {sourceImage: {url: "https://example.com/new.img"}, storageIDs: [local, local-lvm], network: [{bridge: vmbr0}]}
---
apiVersion: karpenter.proxmox.sinextra.dev/v1alpha1
kind: ProxmoxNodeClass
metadata: {name: new}
spec:
  instanceTemplateRef: {kind: ProxmoxTemplate, name: new}
  metadataOptions: {type: cdrom, templatesRef: {name: boot, namespace: kube-system}}
---
apiVersion: v1
kind: Secret
metadata: {name: boot, namespace: kube-system}
stringData: {user-data: "#cloud-config"}
`

// unmanagedNode is the same with a template of the default scenario.
var unmanagedNode = strings.NewReplacer(
	"kind: ProxmoxTemplate\n", "kind: ProxmoxUnmanagedTemplate\n", "kind: ProxmoxTemplate,", "kind: ProxmoxUnmanagedTemplate,",
	`{sourceImage: {url: "https://example.com/new.img"}, storageIDs: [local, local-lvm], network: [{bridge: vmbr0}]}`, "{templateName: ubuntu}",
).Replace(managedNode)

// ignitionNode passes Ignition through QEMU's firmware configuration.
var ignitionNode = strings.NewReplacer("type: cdrom", "type: fwcfg", `"#cloud-config"`, `'{"ignition":{"version":"3.4.0"}}'`).Replace(managedNode)

// withClass adds a field to the spec of the class.
func withClass(manifest, field string) string {
	return strings.Replace(manifest, "  metadataOptions:", "  "+field+"\n  metadataOptions:", 1)
}

// withTemplate adds a field to the spec of the managed template.
func withTemplate(field string) string {
	return strings.Replace(managedNode, "spec: {sourceImage:", "spec: {"+field+", sourceImage:", 1)
}

// withMappings adds a mapping of PCI devices and one of directories.
func withMappings(s *pvesim.Scenario) {
	s.Mappings = []pvesim.Mapping{
		{Kind: "pci", ID: "gpu", Map: []string{"id=10de:2204,node=pve1,path=0000:01:00.0", "id=10de:2204,node=pve2,path=0000:01:00.0"}},
		{Kind: "dir", ID: "data", Map: []string{"node=pve1,path=/tank", "node=pve2,path=/tank"}},
	}
}

// separateStorages makes local a storage of files only, so images and disks are on
// different storages.
func separateStorages(s *pvesim.Scenario) {
	s.Storages[0].Content = []string{"iso", "import", "snippets"}
}

const tokenName = "kubernetes@pve!karpenter"

// lacks is the failure of missing privileges on paths that get their privileges from "/".
func lacks(privileges, paths string) string {
	return fmt.Sprintf("PrivilegesSufficient: region home: API token %s lacks %s on %s; run: pveum role modify Karpenter --append 1 --privs %q"+
		" && pveum acl modify / --roles Karpenter --users kubernetes@pve --tokens '%s'", tokenName, privileges, paths, privileges, tokenName)
}

// denied is the failure of privileges that an ACL cancels, which Proxmox does not list.
func denied(path, privileges string) string {
	return fmt.Sprintf("PrivilegesSufficient: region home: API token %s lacks %s on %s; an ACL on %s cancels what it inherits there (pveum acl list); "+
		"run: pveum acl delete %s --roles NoAccess --users kubernetes@pve --tokens '%s'", tokenName, privileges, path, path, path, tokenName)
}

// fault is a single fault of a setup in which everything else is right.
type fault struct {
	scenario func(*pvesim.Scenario)
	// manifest replaces managedNode.
	manifest string
	// config changes the configuration of the cluster.
	config func(string) string
	// settings are the settings of the hosts.
	settings string
	// want is the start of each failure that is reported; there is none without a fault.
	want []string
}

// privilegeFaults are missing privileges. The tests of the checks remove all others of NodeClasses and templates.
func privilegeFaults() map[string]fault {
	return map[string]fault{
		"no_access_to_one_host": {scenario: deny("/nodes/pve2"), want: []string{denied("/nodes/pve2", "Sys.AccessNetwork, Sys.Audit")}},
		"no_access_to_image_storage": {scenario: deny("/storage/local"),
			want: []string{denied("/storage/local", "Datastore.Allocate, Datastore.AllocateSpace, Datastore.AllocateTemplate, Datastore.Audit")}},
		"unmanaged_template_without_VM.Clone": {
			scenario: withoutPrivilege("VM.Clone"), manifest: unmanagedNode, want: []string{lacks("VM.Clone", "/vms/9000, /vms/9001")}},
		"PCI_device_without_Mapping.Use": {
			scenario: withMappings, manifest: withTemplate("pciDevices: [{mapping: gpu}]"), want: []string{lacks("Mapping.Use", "/mapping/pci/gpu")}},
	}
}

// objectFaults are missing or unsuitable objects: one for each check. The tests of the checks compare the rest of the messages.
func objectFaults() map[string]fault {
	replaced := func(old, with string) string { return strings.Replace(managedNode, old, with, 1) }
	otherBridge := func(s *pvesim.Scenario) { s.Hosts[1].Bridges[0].Name = "vmbr7" }
	return map[string]fault{
		"excluded_host":      {scenario: otherBridge, settings: `{"home": {"pve2": {"excluded": true}}}`},
		"bridge_on_one_host": {scenario: otherBridge, want: []string{`home/pve2: bridge "vmbr0" of spec.network[0] is not on this host`}},
		"bridge_of_unmanaged_template": {scenario: otherBridge, manifest: unmanagedNode,
			want: []string{`NetworkReady: home/pve2: bridge "vmbr0" of the template's net0 is not`}},
		"storages_unknown": {manifest: replaced("[local, local-lvm]", "[ceph]"),
			want: []string{"home/pve1, home/pve2: none of spec.storageIDs (ceph) is on this host"}},
		"shared_storage": {
			scenario: func(s *pvesim.Scenario) {
				s.Storages = append(s.Storages, pvesim.Storage{ID: "nfs", Type: "nfs", Content: []string{"images", "import"}, Shared: true, Size: pvesim.GiB << 10})
			},
			manifest: replaced("[local, local-lvm]", "[nfs]")},
		"boot_device_storage_unknown": {
			manifest: withClass(unmanagedNode, "bootDevice: {storage: ceph}"),
			want:     []string{`StorageReady: home/pve1, home/pve2: spec.bootDevice.storage "ceph" is not on this host`}},
		"template_does_not_exist": {manifest: strings.Replace(unmanagedNode, "templateName: ubuntu", "templateName: debian", 1),
			want: []string{`InstanceTemplateReady: ProxmoxUnmanagedTemplate "new" is on no host yet: no host of regions home has a template named "debian"`}},
		"template_on_one_host": {
			scenario: func(s *pvesim.Scenario) {
				s.Guests = slices.DeleteFunc(s.Guests, func(g pvesim.Guest) bool { return g.VMID == 9001 })
			},
			manifest: unmanagedNode, want: []string{`InstanceTemplateReady: home/pve2: ProxmoxUnmanagedTemplate "new" is not on this host`}},
		"template_not_in_manifests": {
			manifest: replaced("kind: ProxmoxTemplate, name: new", "kind: ProxmoxTemplate, name: other"),
			want:     []string{`InstanceTemplateReady: spec.instanceTemplateRef names ProxmoxTemplate "other", which does not exist`}},
		"compressed_image": {manifest: replaced("new.img", "new.img.xz"), want: []string{"spec.sourceImage.url ends in .xz: "}},
		"resource_pool_of_template": {manifest: withTemplate("resourcePool: team"),
			want: []string{`home/pve1, home/pve2: spec.resourcePool "team" does not exist; run: pveum pool add team`}},
		"security_group_of_unknown_interface": {manifest: withClass(managedNode, "securityGroups: [{name: kubernetes, interface: net3}]"), want: []string{
			"InstanceTemplateReady: home/pve1: template 1000 cannot be used: a security group names interface net3",
			"InstanceTemplateReady: home/pve2: template 1001 cannot be used: a security group names interface net3"}},
		"PCI_mapping": {
			scenario: withPrivilege("Mapping.Use"), manifest: withTemplate("pciDevices: [{mapping: gpu}]"),
			want: []string{"CapacityAvailable: no host fits c1.1VCPU-2GB, the cheapest allowed instance type: pve1, pve2: no device of mapping gpu"}},
		"secret": {manifest: replaced("templatesRef: {name: boot", "templatesRef: {name: other"), want: []string{
			`InstanceMetadataOptionsReady: reading secret kube-system/other of spec.metadataOptions.templatesRef: manifest of kind Secret "kube-system/other" not found`}},
		"no_root_login": {manifest: ignitionNode, want: []string{"PrivilegesSufficient: home: spec.metadataOptions.type fwcfg sets QEMU arguments"}},
		"root_login": {manifest: ignitionNode, config: func(c string) string {
			return strings.Replace(c, "region: home", "region: home, root: {username: root@pam, password: pvesim}", 1)
		}},
		"region_of_class": {manifest: withClass(unmanagedNode, "region: mars"),
			want: []string{`ClustersReachable: spec.region "mars" is not in the cloud config, which has home`}},
		"region_of_template": {manifest: withTemplate("region: mars"), want: []string{`spec.region "mars" is not in the cloud config, which has home`}},
		"host_offline":       {scenario: func(s *pvesim.Scenario) { s.Hosts[1].Offline = true }, want: []string{"host home/pve2 is not usable: offline"}},
		"token_secret": {scenario: func(s *pvesim.Scenario) { s.Users[0].Tokens[0].Secret = "another" }, want: []string{
			`checking region "home": URL rejects the credentials (credentials refused: Authentication failed!): ` +
				"check token_id and token_secret (or username and password), and that the token exists and is not expired"}},
		"fingerprint": {
			config: func(c string) string {
				return regexp.MustCompile(`ca_file: "[^"]*"`).ReplaceAllString(c, `fingerprint: "00`+strings.Repeat(":00", 31)+`"`)
			},
			want: []string{`checking region "home": URL presented certificate fingerprint FINGERPRINT, which is not the configured one: if the host has a new certificate, set fingerprint to this value`}},
	}
}

// TestPreflightFaults checks that each single fault is found, and that nothing else is reported.
func TestPreflightFaults(t *testing.T) {
	t.Parallel()
	for _, group := range []map[string]fault{privilegeFaults(), objectFaults()} {
		for name, test := range group {
			testenv.RunSimulated(t, name, test.check)
		}
	}
}

var fingerprint = regexp.MustCompile(`([0-9A-F]{2}:){31}[0-9A-F]{2}`)

func (f fault) check(t *testing.T) {
	t.Helper()
	s := newSite(t, func(s *pvesim.Scenario) {
		separateStorages(s)
		if f.scenario != nil {
			f.scenario(s)
		}
	})
	values := filepath.Join(s.dir, "values.yaml")
	if f.config != nil {
		content, err := os.ReadFile(values)
		s.Expect(err).NotTo(HaveOccurred())
		s.write("values.yaml", f.config(string(content)))
	}
	var args []string
	if f.settings != "" {
		args = []string{"--node-setting-file", s.write("settings.json", f.settings)}
	}
	out, err := s.preflight(cmp.Or(f.manifest, managedNode), args...)
	found := failures(fingerprint.ReplaceAllString(strings.ReplaceAll(out, s.sim.URL(), "URL"), "FINGERPRINT"))
	var want []any
	for _, text := range f.want {
		want = append(want, HavePrefix("%s", text))
	}
	s.Expect(found).To(HaveExactElements(want...), out)
	s.Expect(err == nil).To(Equal(len(f.want) == 0), "found error %v", err)
	s.checkReadOnly()
}

// failures returns the failed checks in the output.
func failures(out string) []string {
	var found []string
	for line := range strings.Lines(out) {
		if text, ok := strings.CutPrefix(line, "FAIL   "); ok {
			found = append(found, strings.TrimSuffix(text, "\n"))
		}
	}
	return found
}
