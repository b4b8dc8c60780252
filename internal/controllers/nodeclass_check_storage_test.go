// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package controllers_test

import (
	"testing"
	"time"

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
		"invisible_snippet": {scenario: withoutPrivilege("Karpenter Datastore.Allocate"), class: vendorSnippet("local:snippets/other.yaml")},
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

// withMapping adds a mapping and the privilege to use it.
func withMapping(kind, id string, devices ...string) func(*pvesim.Scenario) {
	return func(s *pvesim.Scenario) {
		s.Mappings = []pvesim.Mapping{{Kind: kind, ID: id, Map: devices}}
		s.Roles[0].Privileges = append(s.Roles[0].Privileges, "Mapping.Use")
	}
}

func withShares(mappings ...string) func(*v1alpha1.ProxmoxNodeClass) {
	return func(c *v1alpha1.ProxmoxNodeClass) {
		for _, mapping := range mappings {
			c.Spec.Shares = append(c.Spec.Shares, v1alpha1.Share{Mapping: mapping})
		}
	}
}

func withPlan9Share(c *v1alpha1.ProxmoxNodeClass) {
	c.Spec.Shares = []v1alpha1.Share{{Mapping: "data", Type: v1alpha1.ShareTypePlan9}}
}

func TestCheckShares(t *testing.T) {
	const missing = `spec.shares[0].mapping: directory mapping "data" has no directory on this host; add one (Datacenter, Resource Mappings)`
	runChecks(t, v1alpha1.ConditionSharesReady, v1alpha1.ReasonDirectoriesNotFound, map[string]checkCase{
		"on_one_host": {hosts: 3, scenario: withMapping("dir", "data", "node=pve2,path=/tank/data"), class: withShares("data"), unread: true,
			unusable: map[string]string{"pve1": missing, "pve3": missing}},
		"unknown_mapping": {scenario: withMapping("dir", "data", "node=pve1,path=/tank"), class: withShares("data", "cache"),
			want: `region-1: spec.shares[1].mapping: directory mapping "cache" does not exist; ` +
				"run: pvesh create /cluster/mapping/dir --id cache --map node=HOST,path=DIRECTORY, with a --map for each host"},
		"directory_of_template_on_other_host": {
			scenario: both(withMapping("dir", "data", "node=pve7,path=/tank"), setTemplateOption("virtiofs0", "data,cache=never")),
			want:     `region-1/pve1: virtiofs of template 9000: directory mapping "data" has no directory on this host; add one (Datacenter, Resource Mappings)`,
		},
		"plan9": {hosts: 2, scenario: withMapping("dir", "data", "node=pve1,path=/tank/data", "node=pve2,path=/tank/my data"), class: withPlan9Share, roots: root,
			unusable: map[string]string{
				"pve2": `spec.shares[0].mapping: refused: args: the directory "/tank/my data" of mapping data cannot be named in QEMU's arguments...`,
			}},
	})
}

// Facts of failed checks are read again.
func TestCheckAfterFix(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		checkCase
		condition string
		fix       func(*testenv.Env)
	}{
		"directory": {
			checkCase{scenario: withMapping("dir", "other"), class: withShares("data")}, v1alpha1.ConditionSharesReady,
			func(w *testenv.Env) {
				w.Sim.AddMapping(pvesim.Mapping{Kind: "dir", ID: "data", Map: []string{"node=pve1,path=/tank/data"}})
			},
		},
		"resource_pool": {
			checkCase{
				scenario: func(s *pvesim.Scenario) { s.Pools = []pvesim.Pool{{ID: "later"}} },
				class:    func(c *v1alpha1.ProxmoxNodeClass) { c.Spec.ResourcePool = "later" },
				prepare: func(w *testenv.Env) {
					w.AddFault(pvesim.Fault{Path: "/pools", Status: 500, Message: "no such pool 'later'"})
				},
			},
			v1alpha1.ConditionResourcePoolReady, func(w *testenv.Env) { w.Sim.ClearFaults() },
		},
	} {
		testenv.RunSimulated(t, name, func(t *testing.T) {
			w, class := c.newClass(t)
			checkClass(w, class)
			w.Refresh()
			w.Expect(condition(checkClass(w, class), c.condition)).To(HavePrefix("False"))
			c.fix(w)
			w.Clock.Advance(time.Minute) // invalidated facts are read after a delay
			w.Refresh()
			w.Expect(isReady(checkClass(w, class))).To(BeTrue(), condition(class, c.condition))
		})
	}
}

const nic = "virtio=BC:24:11:00:00:01,"

// withInterface configures one interface.
func withInterface(nic v1alpha1.VMInterface) func(*v1alpha1.ProxmoxNodeClass) {
	return func(c *v1alpha1.ProxmoxNodeClass) {
		c.Spec.Network = &v1alpha1.Network{Interfaces: []v1alpha1.VMInterface{nic}}
	}
}

func withNet0(source v1alpha1.AddressSource) func(*v1alpha1.ProxmoxNodeClass) {
	return withInterface(v1alpha1.VMInterface{Name: "net0", Address4: &source})
}

// withVNet adds the vnet blue, which is not VLAN-aware.
func withVNet(s *pvesim.Scenario) {
	s.Zones, s.VNets = []pvesim.Zone{{Zone: "lab", Type: "simple"}}, []pvesim.VNet{{VNet: "blue", Zone: "lab"}}
}

// withBridges sets the bridges of a host.
func withBridges(host int, bridges ...pvesim.Bridge) func(*pvesim.Scenario) {
	return func(s *pvesim.Scenario) { s.Hosts[host].Bridges = bridges }
}

func TestCheckNetwork(t *testing.T) {
	vlan := func(bridge string) func(*pvesim.Scenario) {
		return setTemplateOption("net0", nic+"bridge="+bridge+",tag=15")
	}
	runChecks(t, v1alpha1.ConditionNetworkReady, v1alpha1.ReasonBridgesNotFound, map[string]checkCase{
		"VLAN_on_VLAN-aware_bridge": {scenario: vlan("vmbr0")},
		"VLAN_on_bridge_with_port":  {scenario: both(withBridges(0, pvesim.Bridge{Name: "vmbr0", Ports: "eno1"}), vlan("vmbr0"))},
		"vnet":                      {scenario: both(withVNet, setTemplateOption("net0", nic+"bridge=blue"))},
		"invalid_CIDR": {class: withNet0(v1alpha1.AddressSource{CIDR: "10.0.0.0/33"}), reason: v1alpha1.ReasonNetworkInvalid,
			want: `region-1/pve1: spec.network.interfaces[0].address4.cidr "10.0.0.0/33" is not a subnet: want a subnet such as 192.168.0.0/24 or 2001:db8::/64`},
		"unknown_bridge": {scenario: setTemplateOption("net0", nic+"bridge=vmbr7,firewall=1"),
			want: `region-1/pve1: bridge "vmbr7" of the template's net0 is not on this host, which has vmbr0; create it (Host, System, Network), ` +
				"or run: qm set 9000 --net0 virtio=BC:24:11:00:00:01,bridge=BRIDGE,firewall=1"},
		"unknown_bridge_of_interface": {class: withInterface(v1alpha1.VMInterface{Name: "net1", InterfaceDevice: v1alpha1.InterfaceDevice{Bridge: "vmbr7"}}),
			want: `region-1/pve1: bridge "vmbr7" of spec.network.interfaces[0] is not on this host, which has vmbr0; ` +
				"create it (Host, System, Network), or set another one"},
		"unknown_bridge_on_one_host": {hosts: 3, scenario: withBridges(1, pvesim.Bridge{Name: "vmbr1", Ports: "eno1"}),
			unusable: map[string]string{"pve2": `bridge "vmbr0" of the template's net0 is not on this host, which has vmbr1...`}},
		"VLAN_on_bridge_without_port": {scenario: both(withBridges(0, pvesim.Bridge{Name: "vmbr0", Ports: "eno1"}, pvesim.Bridge{Name: "vmbr1"}), vlan("vmbr1")),
			want: `region-1/pve1: the template's net0 has VLAN 15, but bridge "vmbr1" has no port and is not VLAN-aware; ` +
				"run: pvesh set /nodes/pve1/network/vmbr1 --type bridge --bridge_vlan_aware 1 && pvesh set /nodes/pve1/network"},
		"VLAN_on_vnet": {scenario: both(withVNet, vlan("blue")),
			want: `region-1: the template's net0 has VLAN 15, but vnet "blue" is not VLAN-aware; ` +
				"run: pvesh set /cluster/sdn/vnets/blue --vlanaware 1 && pvesh set /cluster/sdn"},
	})
}

func TestCheckSecurityGroups(t *testing.T) {
	runChecks(t, v1alpha1.ConditionSecurityGroupsReady, v1alpha1.ReasonSecurityGroupsNotFound, map[string]checkCase{
		"unknown": {
			class: func(c *v1alpha1.ProxmoxNodeClass) {
				c.Spec.SecurityGroups = []v1alpha1.SecurityGroup{{Name: "kubernetes", Interface: "net0"}, {Name: "web", Interface: "net0"}}
			},
			want: `region-1: spec.securityGroups: security group "web" does not exist; run: pvesh create /cluster/firewall/groups --group web, and add rules`,
		},
	})
}

func TestCheckTags(t *testing.T) {
	options := func(name, value string) func(*pvesim.Scenario) {
		return func(s *pvesim.Scenario) { s.Options = map[string]string{name: value} }
	}
	tags := func(tags ...string) func(*v1alpha1.ProxmoxNodeClass) {
		return func(c *v1alpha1.ProxmoxNodeClass) { c.Spec.Tags = tags }
	}
	runChecks(t, v1alpha1.ConditionTagsAllowed, v1alpha1.ReasonTagsForbidden, map[string]checkCase{
		"in_list":    {scenario: options("user-tag-access", "user-allow=list,user-allow-list=Karpenter")},
		"none":       {scenario: options("user-tag-access", "user-allow=none"), class: tags()},
		"expression": {class: tags("pool-{{ .NodePool }}")},
		"invalid_expression": {
			class: func(c *v1alpha1.ProxmoxNodeClass) {
				c.Spec.Tags, c.Spec.MetadataOptions = []string{"{{ .Region }}/{{ .Zone }}"}, v1alpha1.MetadataOptions{Type: v1alpha1.MetadataTypeNone}
			},
			reason: v1alpha1.ReasonTextInvalid,
			want:   `spec.tags[0] "{{ .Region }}/{{ .Zone }}" renders to "region-1/pve1", which is not a tag...`,
		},
		"not_in_list": {scenario: options("user-tag-access", "user-allow=list,user-allow-list=a;b"),
			want: `region-1: spec.tags: tag "karpenter" is not allowed: user-tag-access of the cluster is "list"; ` +
				"run: pvesh set /cluster/options --user-tag-access 'user-allow=list,user-allow-list=a;b;karpenter'"},
		"none_allowed": {scenario: options("user-tag-access", "user-allow=none"),
			want: `region-1: spec.tags: tag "karpenter" is not allowed: user-tag-access of the cluster is "none"; ` +
				"run: pvesh set /cluster/options --user-tag-access 'user-allow=list,user-allow-list=karpenter'"},
		"unknown": {scenario: options("user-tag-access", "user-allow=existing"),
			want: `region-1: spec.tags: tag "karpenter" is not allowed: user-tag-access of the cluster allows existing tags only; ` +
				"set it once on any guest, or add it to user-allow-list (Datacenter, Options)"},
		"registered": {scenario: options("registered-tags", "karpenter"),
			want: `region-1: spec.tags: tag "karpenter" is not allowed: it is a registered tag, which requires Sys.Modify on /; ` +
				"remove it from registered-tags (Datacenter, Options)"},
		"registered_tag_of_template": {scenario: both(options("registered-tags", "golden"), setTemplateOption("tags", "golden")),
			want: `region-1/pve1: spec.tags would remove tag "golden" of template 9000, which is not allowed; add it to spec.tags, or: ` +
				"it is a registered tag, which requires Sys.Modify on /; remove it from registered-tags (Datacenter, Options)"},
	})
}

func TestCheckResourcePool(t *testing.T) {
	pool := func(name string) func(*v1alpha1.ProxmoxNodeClass) {
		return func(c *v1alpha1.ProxmoxNodeClass) { c.Spec.ResourcePool = name }
	}
	runChecks(t, v1alpha1.ConditionResourcePoolReady, v1alpha1.ReasonResourcePoolNotFound, map[string]checkCase{
		"invisible": {scenario: func(s *pvesim.Scenario) { s.Pools = []pvesim.Pool{{ID: "team"}} }, class: pool("team")},
		"unknown":   {class: pool("team/k8s"), want: `region-1: spec.resourcePool "team/k8s" does not exist; run: pveum pool add team/k8s`},
	})
}
