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
	// want are all failures that are reported.
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
		scenario: func(s *pvesim.Scenario) {
			s.Mappings = []pvesim.Mapping{{Kind: "pci", ID: "gpu", Map: []string{"id=10de:2204,node=pve1,path=0000:01:00.0", "id=10de:2204,node=pve2,path=0000:01:00.0"}}}
		},
		manifest: withTemplate("pciDevices: [{mapping: gpu}]"), want: []string{lacks("Mapping.Use", "/mapping/pci/gpu")}}
	faults["share_without_Mapping.Use"] = fault{
		scenario: func(s *pvesim.Scenario) {
			s.Mappings = []pvesim.Mapping{{Kind: "dir", ID: "data", Map: []string{"node=pve1,path=/tank", "node=pve2,path=/tank"}}}
		},
		manifest: withClass(managedNode, "shares: [{mapping: data, mountPath: /data}]"), want: []string{lacks("Mapping.Use", "/mapping/dir/data")}}
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
	faults["no_privileges"] = fault{
		scenario: func(s *pvesim.Scenario) { s.ACLs = nil }, manifest: unmanagedNode,
		want: []string{"PrivilegesSufficient: region home: API token kubernetes@pve!karpenter lacks Sys.Audit on /nodes/pve1, /nodes/pve2; " +
			"VM.Allocate, VM.Audit, VM.Clone, VM.Config.CDROM, VM.Config.CPU, VM.Config.Cloudinit, VM.Config.Disk, VM.Config.HWType, VM.Config.Memory, VM.Config.Network, VM.PowerMgmt on /vms; " +
			"Datastore.Allocate, Datastore.AllocateSpace, Datastore.AllocateTemplate, Datastore.Audit on /storage; SDN.Use on /sdn/zones; " +
			`run: pveum role add KarpenterHost --privs "Sys.Audit" && ` +
			`pveum role add KarpenterVM --privs "VM.Allocate VM.Audit VM.Clone VM.Config.CDROM VM.Config.CPU VM.Config.Cloudinit VM.Config.Disk VM.Config.HWType VM.Config.Memory VM.Config.Network VM.PowerMgmt" && ` +
			`pveum role add KarpenterISO --privs "Datastore.Allocate Datastore.AllocateSpace Datastore.AllocateTemplate Datastore.Audit" && ` +
			`pveum role add KarpenterNet --privs "SDN.Use" && ` +
			"pveum acl modify /nodes --roles KarpenterHost --users kubernetes@pve --tokens 'kubernetes@pve!karpenter' && " +
			"pveum acl modify /vms --roles KarpenterVM --users kubernetes@pve --tokens 'kubernetes@pve!karpenter' && " +
			"pveum acl modify /storage --roles KarpenterISO --users kubernetes@pve --tokens 'kubernetes@pve!karpenter' && " +
			"pveum acl modify /sdn/zones --roles KarpenterNet --users kubernetes@pve --tokens 'kubernetes@pve!karpenter'"}}
	return faults
}

// objectFaults are missing or unsuitable objects.
func objectFaults() map[string]fault {
	bridge := func(host int, name string) func(*pvesim.Scenario) {
		return func(s *pvesim.Scenario) { s.Hosts[host].Bridges[0].Name = name }
	}
	return map[string]fault{
		"bridge_on_one_host": {scenario: bridge(1, "vmbr7"), want: []string{
			`home/pve2: bridge "vmbr0" of spec.network[0] is not on this host, which has vmbr7; create it (Host, System, Network), or set another one`}},
		"bridge_nowhere": {manifest: strings.Replace(managedNode, "vmbr0", "vmbr9", 1), want: []string{
			`home/pve1, home/pve2: bridge "vmbr9" of spec.network[0] is not on this host, which has vmbr0; create it (Host, System, Network), or set another one`}},
		"bridge_of_unmanaged_template": {scenario: bridge(1, "vmbr7"), manifest: unmanagedNode, want: []string{
			`NetworkReady: home/pve2: bridge "vmbr0" of the template's net0 is not on this host, which has vmbr7; create it (Host, System, Network), ` +
				`or run: qm set 9001 --net0 virtio=BC:24:11:00:23:29,bridge=BRIDGE`}},
		"VLAN_on_bridge_without_port": {
			scenario: func(s *pvesim.Scenario) {
				s.Hosts[1].Bridges[0] = pvesim.Bridge{Name: "vmbr0"}
			},
			manifest: strings.Replace(managedNode, "{bridge: vmbr0}", "{bridge: vmbr0, vlan: 15}", 1),
			want: []string{`home/pve2: spec.network[0] has VLAN 15, but bridge "vmbr0" has no port and is not VLAN-aware; ` +
				"run: pvesh set /nodes/pve2/network/vmbr0 --type bridge --bridge_vlan_aware 1 && pvesh set /nodes/pve2/network"}},
		"storages_unknown": {manifest: strings.Replace(managedNode, "[local, local-lvm]", "[ceph]", 1), want: []string{
			"home/pve1, home/pve2: none of spec.storageIDs (ceph) is on this host, which has local, local-lvm"}},
		"storage_misspelled": {manifest: strings.Replace(managedNode, "[local, local-lvm]", "[local, local-lvmm]", 1), want: []string{
			"home/pve1, home/pve2: local-lvmm of spec.storageIDs is not on this host, which has local, local-lvm; the others are not sufficient: " +
				"no storage of spec.storageIDs takes disk images, which the template needs; run: pvesm set local --content images,iso,import,snippets"}},
		"storage_missing_on_one_host": {scenario: func(s *pvesim.Scenario) {
			s.Storages[1].Hosts = []string{"pve1"}
			s.Guests = nil
		}, want: []string{
			"home/pve2: local-lvm of spec.storageIDs is not on this host, which has local; the others are not sufficient: " +
				"no storage of spec.storageIDs takes disk images, which the template needs; run: pvesm set local --content images,iso,import,snippets"}},
		"storage_without_import_content": {scenario: func(s *pvesim.Scenario) { s.Storages[0].Content = []string{"iso"} }, want: []string{
			"home/pve1, home/pve2: no storage of spec.storageIDs takes import content, which the image needs; run: pvesm set local --content import,iso"}},
		"storage_without_iso_content": {scenario: func(s *pvesim.Scenario) { s.Storages[0].Content = []string{"import"} }, want: []string{
			"StorageReady: home/pve1, home/pve2: no storage takes iso content, which the boot drive needs; run: pvesm set local --content iso,import"}},
		"boot_device_storage_unknown": {manifest: withClass(unmanagedNode, "bootDevice: {storage: ceph}"), want: []string{
			`StorageReady: home/pve1, home/pve2: spec.bootDevice.storage "ceph" is not on this host, which has local, local-lvm`}},
		"boot_device_storage_without_images": {manifest: withClass(unmanagedNode, "bootDevice: {storage: local}"), want: []string{
			`StorageReady: home/pve1, home/pve2: spec.bootDevice.storage "local" has the content types iso,import,snippets, but not images; run: pvesm set local --content images,iso,import,snippets`}},
		"template_does_not_exist": {manifest: strings.Replace(unmanagedNode, "templateName: ubuntu", "templateName: debian", 1), want: []string{
			`InstanceTemplateReady: ProxmoxUnmanagedTemplate "new" is on no host yet: no host of regions home has a template named "debian" that is visible to the API token, ` +
				"which needs VM.Audit on the template; on the host, list templates with: qm list, and create one with: qm template <vmid>"}},
		"template_on_one_host": {scenario: func(s *pvesim.Scenario) {
			s.Guests = slices.DeleteFunc(s.Guests, func(g pvesim.Guest) bool { return g.VMID == 9001 })
		}, manifest: unmanagedNode, want: []string{`InstanceTemplateReady: home/pve2: ProxmoxUnmanagedTemplate "new" is not on this host`}},
		"template_not_in_manifests": {manifest: strings.Replace(managedNode, "kind: ProxmoxTemplate, name: new", "kind: ProxmoxTemplate, name: other", 1), want: []string{
			`InstanceTemplateReady: spec.instanceTemplateRef names ProxmoxTemplate "other", which does not exist; create it, or set one that is listed by: kubectl get proxmoxtemplates`}},
		"compressed_image": {manifest: strings.Replace(managedNode, "new.img", "new.img.xz", 1), want: []string{
			"spec.sourceImage.url ends in .xz: Proxmox decompresses ISO images only; use an image that is not compressed, or decompress it and serve it from your own web server, or upload it to the hosts and set volume"}},
		"resource_pool_of_class": {manifest: withClass(unmanagedNode, "resourcePool: team"), want: []string{
			`ResourcePoolReady: home: spec.resourcePool "team" does not exist; run: pveum pool add team`}},
		"resource_pool_of_template": {manifest: withTemplate("resourcePool: team"), want: []string{
			`home/pve1, home/pve2: spec.resourcePool "team" does not exist; run: pveum pool add team`}},
		"security_group": {manifest: withClass(managedNode, "securityGroups: [{name: web}]"), want: []string{
			`SecurityGroupsReady: home: spec.securityGroups: security group "web" does not exist; run: pvesh create /cluster/firewall/groups --group web, and add rules`}},
		"security_group_of_unknown_interface": {manifest: withClass(managedNode, "securityGroups: [{name: kubernetes, interface: net3}]"), want: []string{
			"InstanceTemplateReady: home/pve1: template 1000 cannot be used: a security group names interface net3, but neither the template nor spec.network has one of that name",
			"InstanceTemplateReady: home/pve2: template 1001 cannot be used: a security group names interface net3, but neither the template nor spec.network has one of that name"}},
		"directory_mapping": {
			scenario: func(s *pvesim.Scenario) { s.Roles[0].Privileges = append(s.Roles[0].Privileges, "Mapping.Use") },
			manifest: withClass(managedNode, "shares: [{mapping: data, mountPath: /data}]"), want: []string{
				`SharesReady: home: spec.shares[0].mapping: directory mapping "data" does not exist; run: pvesh create /cluster/mapping/dir --id data --map node=HOST,path=DIRECTORY, with a --map for each host`}},
		"PCI_mapping": {
			scenario: func(s *pvesim.Scenario) { s.Roles[0].Privileges = append(s.Roles[0].Privileges, "Mapping.Use") },
			manifest: withTemplate("pciDevices: [{mapping: gpu}]"), want: []string{
				"CapacityAvailable: no host fits c1.1VCPU-2GB, the cheapest allowed instance type: pve1, pve2: no device of mapping gpu, or the token lacks Mapping.Use on /mapping/pci"}},
		"tag_of_class": {
			scenario: func(s *pvesim.Scenario) { s.Options = map[string]string{"user-tag-access": "user-allow=none"} },
			manifest: withClass(managedNode, "tags: [karpenter]"), want: []string{
				`TagsAllowed: home: spec.tags: tag "karpenter" is not allowed: user-tag-access of the cluster is "none"; run: pvesh set /cluster/options --user-tag-access 'user-allow=list,user-allow-list=karpenter'`}},
		"tag_of_template": {
			scenario: func(s *pvesim.Scenario) { s.Options = map[string]string{"registered-tags": "golden"} },
			manifest: withTemplate("tags: [golden]"), want: []string{
				`home/pve1, home/pve2: spec.tags: tag "golden" is not allowed: it is a registered tag, which requires Sys.Modify on /; remove it from registered-tags (Datacenter, Options)`}},
		"secret": {manifest: strings.Replace(managedNode, "templatesRef: {name: boot", "templatesRef: {name: other", 1), want: []string{
			`InstanceMetadataOptionsReady: reading secret kube-system/other of spec.metadataOptions.templatesRef: manifest of kind Secret "kube-system/other" not found`}},
		"root_login": {manifest: ignitionNode, want: []string{
			"PrivilegesSufficient: home: spec.metadataOptions.type fwcfg sets QEMU arguments, which only root@pam may do; " +
				"add a root login for this region to the cloud config (docs/boot-data.md), or use type cdrom with an image whose Ignition supports the platform proxmoxve"}},
		"region_of_class": {manifest: withClass(unmanagedNode, "region: mars"), want: []string{
			`ClustersReachable: spec.region "mars" is not in the cloud config, which has home`}},
		"region_of_template": {manifest: withTemplate("region: mars"), want: []string{
			`spec.region "mars" is not in the cloud config, which has home`}},
		"host_offline": {scenario: func(s *pvesim.Scenario) { s.Hosts[1].Offline = true }, want: []string{"host home/pve2 is not usable: offline"}},
		"hosts_full": {scenario: func(s *pvesim.Scenario) {
			for i := range s.Guests {
				s.Guests[i].Config["memory"] = "65536"
			}
		}, want: []string{"CapacityAvailable: no host fits c1.1VCPU-2GB, the cheapest allowed instance type: pve1, pve2: 0.0 GiB memory free, 2.0 GiB requested"}},
	}
}

// clusterFaults are faults of the connection to the cluster.
func clusterFaults() map[string]fault {
	return map[string]fault{
		"token_secret": {scenario: func(s *pvesim.Scenario) { s.Users[0].Tokens[0].Secret = "another" }, want: []string{
			`checking region "home": URL rejects the credentials (credentials refused: Authentication failed!): check token_id and token_secret (or username and password), and that the token exists and is not expired`}},
		"token_expired": {scenario: func(s *pvesim.Scenario) { s.Users[0].Tokens[0].Expire = 1 }, want: []string{
			`checking region "home": URL rejects the credentials (credentials refused: Authentication failed!): check token_id and token_secret (or username and password), and that the token exists and is not expired`}},
		"user_disabled": {scenario: func(s *pvesim.Scenario) { s.Users[0].Disabled = true }, want: []string{
			`checking region "home": URL rejects the credentials (credentials refused: Authentication failed!): check token_id and token_secret (or username and password), and that the token exists and is not expired`}},
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

// TestPreflightFaults checks that each single fault is found, with the whole message, and
// that nothing else is reported.
func TestPreflightFaults(t *testing.T) {
	t.Parallel()
	total := 0
	for _, group := range []map[string]fault{privilegeFaults(), accessFaults(), objectFaults(), clusterFaults()} {
		total += len(group)
		for name, test := range group {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
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
	withMapping := func(s *pvesim.Scenario) {
		s.Roles[0].Privileges = append(s.Roles[0].Privileges, "Mapping.Use")
		s.Mappings = []pvesim.Mapping{
			{Kind: "pci", ID: "gpu", Map: []string{"id=10de:2204,node=pve1,path=0000:01:00.0", "id=10de:2204,node=pve2,path=0000:01:00.0"}},
			{Kind: "dir", ID: "data", Map: []string{"node=pve1,path=/tank", "node=pve2,path=/tank"}},
		}
	}
	withoutPVE2 := func(s *pvesim.Scenario) { s.Hosts[1].Bridges[0].Name = "vmbr7" }
	for name, test := range map[string]fault{
		"managed_template":   {},
		"unmanaged_template": {manifest: unmanagedNode},
		"devices_and_shares": {scenario: withMapping, manifest: strings.Replace(withClass(managedNode, "shares: [{mapping: data, mountPath: /data}]"), "spec: {sourceImage:", "spec: {pciDevices: [{mapping: gpu}], sourceImage:", 1)},
		"groups_and_tags":    {manifest: withClass(managedNode, "securityGroups: [{name: kubernetes}]\n  tags: [a]")},
		"resource_pool": {
			scenario: func(s *pvesim.Scenario) { pvesim.PoolScoped(s); withAccessNetwork(s) },
			manifest: strings.Replace(withClass(managedNode, "resourcePool: karpenter"), "spec: {sourceImage:", "spec: {resourcePool: karpenter, sourceImage:", 1)},
		"cloud_init_drive": {manifest: strings.Replace(managedNode, "{type: cdrom, templatesRef: {name: boot, namespace: kube-system}}", "{type: cloudinit}", 1)},
		"shared_storage": {
			scenario: func(s *pvesim.Scenario) {
				s.Storages = append(s.Storages, pvesim.Storage{ID: "nfs", Type: "nfs", Content: []string{"images", "import"}, Shared: true, Size: pvesim.GiB << 10})
			},
			manifest: strings.Replace(managedNode, "[local, local-lvm]", "[nfs]", 1)},
		"excluded_host": {scenario: withoutPVE2},
		"root_login": {
			config: func(c string) string {
				return strings.Replace(c, "region: home", "region: home, root: {username: root@pam, password: pvesim}", 1)
			},
			manifest: ignitionNode},
		"list": {manifest: asList(managedNode)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
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
	sim, dir := startSimulator(t, func(s *pvesim.Scenario) {
		separateStorages(s)
		if f.scenario != nil {
			f.scenario(s)
		}
	})
	values := filepath.Join(dir, "values.yaml")
	if f.config != nil {
		content, err := os.ReadFile(values)
		if err != nil {
			t.Fatal(err)
		}
		write(t, dir, "values.yaml", f.config(string(content)))
	}
	args := preflightArgs(t, dir, cmp.Or(f.manifest, managedNode))
	if strings.HasSuffix(t.Name(), "/excluded_host") {
		args = append(args, "--node-setting-file", write(t, dir, "settings.json", `{"home": {"pve2": {"excluded": true}}}`))
	}
	out, err := run(t, args...)
	found := failures(out)
	if err != nil && len(found) == 0 {
		found = []string{"error: " + err.Error()}
	}
	replace := strings.NewReplacer(sim.URL(), "URL", strings.TrimPrefix(sim.URL(), "https://"), "HOST", values, "VALUES")
	for n := range found {
		found[n] = fingerprint.ReplaceAllString(replace.Replace(found[n]), "FINGERPRINT")
	}
	if !slices.Equal(found, f.want) {
		t.Errorf("found\n\t%s\nwant\n\t%s\nin\n%s", strings.Join(found, "\n\t"), strings.Join(f.want, "\n\t"), out)
	}
	if (err == nil) != (len(f.want) == 0) {
		t.Errorf("found error %v", err)
	}
	checkReadOnly(t, sim)
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
