// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
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

// lacks is the failure of missing privileges on paths that get their privileges from "/".
func lacks(privileges, paths string) string {
	const token = "kubernetes@pve!karpenter"
	return fmt.Sprintf("PrivilegesSufficient: region home: API token %s lacks %s on %s; run: pveum role modify Karpenter --append 1 --privs %q"+
		" && pveum acl modify / --roles Karpenter --users kubernetes@pve --tokens '%s'", token, privileges, paths, strings.ReplaceAll(privileges, ",", ""), token)
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
	// want is the start of each failure that is reported.
	want []string
}

// privilegeFaults are missing privileges.
func privilegeFaults() map[string]fault {
	faults := map[string]fault{}
	for privilege, paths := range map[string]string{
		"Sys.Audit": "/nodes/pve1, /nodes/pve2", "Sys.AccessNetwork": "/nodes/pve1, /nodes/pve2", "SDN.Use": "/sdn/zones/localnetwork/vmbr0",
		"Datastore.Allocate": "/storage/local", "Datastore.AllocateTemplate": "/storage/local", "Datastore.AllocateSpace": "/storage/local-lvm",
		"Datastore.Audit": "/storage, /storage/local, /storage/local-lvm",
		"VM.Audit":        "/vms", "VM.Allocate": "/vms", "VM.Clone": "/vms", "VM.PowerMgmt": "/vms", "VM.Config.CPU": "/vms", "VM.Config.Memory": "/vms",
		"VM.Config.Disk": "/vms", "VM.Config.HWType": "/vms", "VM.Config.Network": "/vms", "VM.Config.Options": "/vms", "VM.Config.CDROM": "/vms",
	} {
		faults["managed_template_without_"+privilege] = fault{scenario: withoutPrivilege(privilege), want: []string{lacks(privilege, paths)}}
	}
	for privilege, paths := range map[string]string{
		"Sys.Audit": "/nodes/pve1, /nodes/pve2", "SDN.Use": "/sdn/zones/localnetwork/vmbr0",
		"VM.Clone": "/vms/9000, /vms/9001", "VM.Config.Cloudinit": "/vms", "VM.Config.CDROM": "/vms", "VM.Config.Network": "/vms",
		"Datastore.AllocateSpace": "/storage/local-lvm", "Datastore.AllocateTemplate": "/storage/local", "VM.PowerMgmt": "/vms",
	} {
		faults["unmanaged_template_without_"+privilege] = fault{scenario: withoutPrivilege(privilege), manifest: unmanagedNode, want: []string{lacks(privilege, paths)}}
	}
	faults["tags_without_VM.Config.Options"] = fault{
		scenario: withoutPrivilege("VM.Config.Options"), manifest: withClass(unmanagedNode, "tags: [a]"), want: []string{lacks("VM.Config.Options", "/vms")}}
	faults["PCI_device_without_Mapping.Use"] = fault{
		scenario: withMappings, manifest: withTemplate("pciDevices: [{mapping: gpu}]"), want: []string{lacks("Mapping.Use", "/mapping/pci/gpu")}}
	faults["share_without_Mapping.Use"] = fault{
		scenario: withMappings, manifest: withClass(managedNode, "shares: [{mapping: data, mountPath: /data}]"),
		want: []string{lacks("Mapping.Use", "/mapping/dir/data")}}
	faults["hardware_RNG_without_Mapping.Use"] = fault{
		scenario: func(s *pvesim.Scenario) { s.Guests[0].Config["rng0"] = "source=/dev/hwrng" },
		manifest: unmanagedNode, want: []string{lacks("Mapping.Use", "/mapping/hwrng")}}
	faults["privileges_missing_on_one_host"] = fault{
		scenario: func(s *pvesim.Scenario) {
			s.ACLs = append(s.ACLs, pvesim.ACL{Path: "/nodes/pve2", Role: "PVESDNUser", User: "kubernetes@pve"})
		},
		want: []string{"PrivilegesSufficient: region home: API token kubernetes@pve!karpenter lacks Sys.AccessNetwork, Sys.Audit on /nodes/pve2; " +
			`run: pveum role add KarpenterHost --privs "Sys.AccessNetwork Sys.Audit" && ` +
			"pveum acl modify /nodes/pve2 --roles KarpenterHost --users kubernetes@pve --tokens 'kubernetes@pve!karpenter'"}}
	// The account no_role of TestPreflightGrant runs the commands.
	faults["no_privileges"] = fault{
		scenario: func(s *pvesim.Scenario) { s.ACLs = nil }, manifest: unmanagedNode,
		want: []string{"PrivilegesSufficient: region home: API token kubernetes@pve!karpenter lacks Sys.Audit on /nodes/pve1, /nodes/pve2; VM.Allocate, "}}
	return faults
}

// objectFaults are missing or unsuitable objects. The tests of the checks compare the rest of the messages.
func objectFaults() map[string]fault {
	replaced := func(old, with string) string { return strings.Replace(managedNode, old, with, 1) }
	otherBridge := func(s *pvesim.Scenario) { s.Hosts[1].Bridges[0].Name = "vmbr7" }
	without := func(vmid int) func(*pvesim.Scenario) {
		return func(s *pvesim.Scenario) {
			s.Guests = slices.DeleteFunc(s.Guests, func(g pvesim.Guest) bool { return g.VMID == vmid })
		}
	}
	content := func(types ...string) func(*pvesim.Scenario) {
		return func(s *pvesim.Scenario) { s.Storages[0].Content = types }
	}
	return map[string]fault{
		"bridge_on_one_host": {scenario: otherBridge, want: []string{`home/pve2: bridge "vmbr0" of spec.network[0] is not on this host`}},
		"bridge_nowhere": {manifest: replaced("vmbr0", "vmbr9"),
			want: []string{`home/pve1, home/pve2: bridge "vmbr9" of spec.network[0] is not on this host`}},
		"bridge_of_unmanaged_template": {scenario: otherBridge, manifest: unmanagedNode,
			want: []string{`NetworkReady: home/pve2: bridge "vmbr0" of the template's net0 is not`}},
		"VLAN_on_bridge_without_port": {
			scenario: func(s *pvesim.Scenario) { s.Hosts[1].Bridges[0] = pvesim.Bridge{Name: "vmbr0"} },
			manifest: replaced("{bridge: vmbr0}", "{bridge: vmbr0, vlan: 15}"),
			want:     []string{`home/pve2: spec.network[0] has VLAN 15, but bridge "vmbr0" has no port`}},
		"storages_unknown": {manifest: replaced("[local, local-lvm]", "[ceph]"),
			want: []string{"home/pve1, home/pve2: none of spec.storageIDs (ceph) is on this host"}},
		"storage_misspelled": {manifest: replaced("[local, local-lvm]", "[local, local-lvmm]"),
			want: []string{"home/pve1, home/pve2: local-lvmm of spec.storageIDs is not on this host"}},
		"storage_missing_on_one_host": {
			scenario: func(s *pvesim.Scenario) { s.Storages[1].Hosts, s.Guests = []string{"pve1"}, nil },
			want:     []string{"home/pve2: local-lvm of spec.storageIDs is not on this host"}},
		"storage_without_import_content": {scenario: content("iso"), want: []string{"home/pve1, home/pve2: no storage of spec.storageIDs takes import content"}},
		"storage_without_iso_content":    {scenario: content("import"), want: []string{"StorageReady: home/pve1, home/pve2: no storage takes iso content"}},
		"boot_device_storage_unknown": {
			manifest: withClass(unmanagedNode, "bootDevice: {storage: ceph}"),
			want:     []string{`StorageReady: home/pve1, home/pve2: spec.bootDevice.storage "ceph" is not on this host`}},
		"boot_device_storage_without_images": {
			manifest: withClass(unmanagedNode, "bootDevice: {storage: local}"),
			want:     []string{`StorageReady: home/pve1, home/pve2: spec.bootDevice.storage "local" has the content types iso,import,snippets, but not images`}},
		"template_does_not_exist": {manifest: strings.Replace(unmanagedNode, "templateName: ubuntu", "templateName: debian", 1), want: []string{
			`InstanceTemplateReady: ProxmoxUnmanagedTemplate "new" is on no host yet: no host of regions home has a template named "debian" that is visible to the API token, ` +
				"which needs VM.Audit on the template; on the host, list templates with: qm list, and create one with: qm template <vmid>"}},
		"template_on_one_host": {scenario: without(9001), manifest: unmanagedNode,
			want: []string{`InstanceTemplateReady: home/pve2: ProxmoxUnmanagedTemplate "new" is not on this host`}},
		"template_not_in_manifests": {
			manifest: replaced("kind: ProxmoxTemplate, name: new", "kind: ProxmoxTemplate, name: other"),
			want:     []string{`InstanceTemplateReady: spec.instanceTemplateRef names ProxmoxTemplate "other", which does not exist`}},
		"compressed_image": {manifest: replaced("new.img", "new.img.xz"), want: []string{
			"spec.sourceImage.url ends in .xz: Proxmox decompresses ISO images only; use an image that is not compressed, " +
				"or decompress it and serve it from your own web server, or upload it to the hosts and set volume"}},
		"resource_pool_of_class": {manifest: withClass(unmanagedNode, "resourcePool: team"),
			want: []string{`ResourcePoolReady: home: spec.resourcePool "team" does not exist; run: pveum pool add team`}},
		"resource_pool_of_template": {manifest: withTemplate("resourcePool: team"),
			want: []string{`home/pve1, home/pve2: spec.resourcePool "team" does not exist; run: pveum pool add team`}},
		"security_group": {manifest: withClass(managedNode, "securityGroups: [{name: web}]"),
			want: []string{`SecurityGroupsReady: home: spec.securityGroups: security group "web" does not exist`}},
		"security_group_of_unknown_interface": {manifest: withClass(managedNode, "securityGroups: [{name: kubernetes, interface: net3}]"), want: []string{
			"InstanceTemplateReady: home/pve1: template 1000 cannot be used: a security group names interface net3",
			"InstanceTemplateReady: home/pve2: template 1001 cannot be used: a security group names interface net3"}},
		"directory_mapping": {
			scenario: withPrivilege("Mapping.Use"), manifest: withClass(managedNode, "shares: [{mapping: data, mountPath: /data}]"),
			want: []string{`SharesReady: home: spec.shares[0].mapping: directory mapping "data" does not exist`}},
		"PCI_mapping": {
			scenario: withPrivilege("Mapping.Use"), manifest: withTemplate("pciDevices: [{mapping: gpu}]"),
			want: []string{"CapacityAvailable: no host fits c1.1VCPU-2GB, the cheapest allowed instance type: pve1, pve2: no device of mapping gpu"}},
		"tag_of_class": {
			scenario: func(s *pvesim.Scenario) { s.Options = map[string]string{"user-tag-access": "user-allow=none"} },
			manifest: withClass(managedNode, "tags: [karpenter]"),
			want:     []string{`TagsAllowed: home: spec.tags: tag "karpenter" is not allowed: user-tag-access of the cluster is "none"`}},
		"tag_of_template": {
			scenario: func(s *pvesim.Scenario) { s.Options = map[string]string{"registered-tags": "golden"} },
			manifest: withTemplate("tags: [golden]"), want: []string{`home/pve1, home/pve2: spec.tags: tag "golden" is not allowed: it is a registered tag`}},
		"secret": {manifest: replaced("templatesRef: {name: boot", "templatesRef: {name: other"), want: []string{
			`InstanceMetadataOptionsReady: reading secret kube-system/other of spec.metadataOptions.templatesRef: manifest of kind Secret "kube-system/other" not found`}},
		"root_login": {manifest: ignitionNode, want: []string{"PrivilegesSufficient: home: spec.metadataOptions.type fwcfg sets QEMU arguments"}},
		"region_of_class": {manifest: withClass(unmanagedNode, "region: mars"),
			want: []string{`ClustersReachable: spec.region "mars" is not in the cloud config, which has home`}},
		"region_of_template": {manifest: withTemplate("region: mars"), want: []string{`spec.region "mars" is not in the cloud config, which has home`}},
		"host_offline":       {scenario: func(s *pvesim.Scenario) { s.Hosts[1].Offline = true }, want: []string{"host home/pve2 is not usable: offline"}},
		"hosts_full": {scenario: func(s *pvesim.Scenario) {
			for i := range s.Guests {
				s.Guests[i].Config["memory"] = "65536"
			}
		}, want: []string{"CapacityAvailable: no host fits c1.1VCPU-2GB, the cheapest allowed instance type: pve1, pve2: 0.0 GiB memory free, 2.0 GiB requested"}},
	}
}

// clusterFaults are faults of the connection to the cluster.
func clusterFaults() map[string]fault {
	rejected := func(change func(*pvesim.User)) fault {
		return fault{scenario: func(s *pvesim.Scenario) { change(&s.Users[0]) }, want: []string{
			`checking region "home": URL rejects the credentials (credentials refused: Authentication failed!): ` +
				"check token_id and token_secret (or username and password), and that the token exists and is not expired"}}
	}
	return map[string]fault{
		"token_secret":  rejected(func(u *pvesim.User) { u.Tokens[0].Secret = "another" }),
		"token_expired": rejected(func(u *pvesim.User) { u.Tokens[0].Expire = 1 }),
		"user_disabled": rejected(func(u *pvesim.User) { u.Disabled = true }),
		"fingerprint": {
			config: func(c string) string {
				return replaceField(c, "ca_file", `fingerprint: "`+strings.TrimSuffix(strings.Repeat("00:", 32), ":")+`"`)
			},
			want: []string{`checking region "home": URL presented certificate fingerprint FINGERPRINT, which is not the configured one: if the host has a new certificate, set fingerprint to this value`}},
		"CA": {
			config: func(c string) string { return replaceField(c, "ca_file", "insecure: false") },
			want: []string{`checking region "home": the certificate of URL is not trusted (x509: certificate signed by unknown authority): ` +
				"set ca or ca_file to the CA (/etc/pve/pve-root-ca.pem of a host), or fingerprint to FINGERPRINT if that is what the host's own page shows"}},
		"http": {
			config: func(c string) string { return strings.Replace(c, "https://", "http://", 1) },
			want:   []string{`error: parsing the chart's values VALUES: line 2: config.clusters[0].url: found "http://HOST", want https://host:8006: Proxmox VE supports TLS only`}},
	}
}

// replaceField replaces a field of the configuration in flow style.
func replaceField(config, name, field string) string {
	_, rest, _ := strings.Cut(config, name+": ")
	value, _, _ := strings.Cut(rest, ",")
	return strings.Replace(config, name+": "+value, field, 1)
}

// TestPreflightFaults checks that each single fault is found, and that nothing else is reported.
func TestPreflightFaults(t *testing.T) {
	t.Parallel()
	total := 0
	for _, group := range []map[string]fault{privilegeFaults(), accessFaults(), objectFaults(), clusterFaults()} {
		total += len(group)
		for name, test := range group {
			testenv.RunSimulated(t, name, func(t *testing.T) {
				test.check(t)
			})
		}
	}
	if total < 30 {
		t.Errorf("found %d faults, want at least 30", total)
	}
}

// TestPreflightWithoutFault checks that nothing is reported without a fault.
func TestPreflightWithoutFault(t *testing.T) {
	t.Parallel()
	mayUseMappings := func(s *pvesim.Scenario) {
		withMappings(s)
		withPrivilege("Mapping.Use")(s)
	}
	withoutPVE2 := func(s *pvesim.Scenario) { s.Hosts[1].Bridges[0].Name = "vmbr7" }
	for name, test := range map[string]fault{
		"managed_template":   {},
		"unmanaged_template": {manifest: unmanagedNode},
		"devices_and_shares": {scenario: mayUseMappings, manifest: strings.Replace(
			withClass(managedNode, "shares: [{mapping: data, mountPath: /data}]"), "spec: {sourceImage:", "spec: {pciDevices: [{mapping: gpu}], sourceImage:", 1)},
		"groups_and_tags": {manifest: withClass(managedNode, "securityGroups: [{name: kubernetes}]\n  tags: [a]")},
		"resource_pool": {
			scenario: func(s *pvesim.Scenario) { pvesim.PoolScoped(s); withAccessNetwork(s) },
			manifest: strings.Replace(withClass(managedNode, "resourcePool: karpenter"), "spec: {sourceImage:", "spec: {resourcePool: karpenter, sourceImage:", 1)},
		"cloud_init_drive": {manifest: strings.Replace(managedNode, "{type: cdrom, templatesRef: {name: boot, namespace: kube-system}}", "{type: cloudinit}", 1)},
		"shared_storage": {
			scenario: func(s *pvesim.Scenario) {
				s.Storages = append(s.Storages, pvesim.Storage{ID: "nfs", Type: "nfs", Content: []string{"images", "import"}, Shared: true, Size: pvesim.GiB << 10})
			},
			manifest: strings.Replace(managedNode, "[local, local-lvm]", "[nfs]", 1)},
		"excluded_host": {scenario: withoutPVE2, settings: `{"home": {"pve2": {"excluded": true}}}`},
		"root_login": {
			config: func(c string) string {
				return strings.Replace(c, "region: home", "region: home, root: {username: root@pam, password: pvesim}", 1)
			},
			manifest: ignitionNode},
		"list": {manifest: asList(managedNode)},
	} {
		testenv.RunSimulated(t, name, func(t *testing.T) {
			test.check(t)
		})
	}
}

func withAccessNetwork(s *pvesim.Scenario) {
	for i := range s.Roles {
		if s.Roles[i].ID == "KarpenterHost" {
			s.Roles[i].Privileges = append(s.Roles[i].Privileges, "Sys.AccessNetwork")
		}
	}
}

// asList returns the objects of a manifest as items of a list.
func asList(manifest string) string {
	list := "apiVersion: v1\nkind: List\nitems:\n"
	for _, document := range strings.Split(manifest, "\n---\n") {
		list += "  - " + strings.ReplaceAll(strings.TrimSpace(document), "\n", "\n    ") + "\n"
	}
	return list
}

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
	found := failures(out)
	if err != nil && len(found) == 0 {
		found = []string{"error: " + err.Error()}
	}
	replace := strings.NewReplacer(s.sim.URL(), "URL", strings.TrimPrefix(s.sim.URL(), "https://"), "HOST", values, "VALUES")
	for n := range found {
		found[n] = fingerprint.ReplaceAllString(replace.Replace(found[n]), "FINGERPRINT")
	}
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
