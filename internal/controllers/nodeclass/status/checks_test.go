// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package status_test

import (
	"testing"
	"time"

	operatorstatus "github.com/awslabs/operatorpkg/status"
	. "github.com/onsi/gomega"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/nodeclass/status"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

// setTemplateOption sets an option of every template of a scenario.
func setTemplateOption(option, value string) func(*pvesim.Scenario) {
	return func(s *pvesim.Scenario) {
		for _, guest := range s.Guests {
			if guest.Config["template"] == "1" {
				guest.Config[option] = value
			}
		}
	}
}

const (
	nic       = "virtio=BC:24:11:00:00:01,"
	karpenter = "kubernetes@pve!karpenter"
)

// grant returns the command that grants a role to the token.
func grant(path, role string) string {
	return "pveum acl modify " + path + " --roles " + role + " --users kubernetes@pve --tokens '" + karpenter + "'"
}

func TestChecksFail(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		scenario          func(*pvesim.Scenario)
		class             func(*v1alpha1.ProxmoxNodeClass)
		condition, reason string
		want              string
	}{
		"no_privilege_on_a_path": {
			scenario: func(s *pvesim.Scenario) {
				s.ACLs = append(s.ACLs, pvesim.ACL{Path: "/storage/local-lvm", Role: "PVEDatastoreAdmin", User: "kubernetes@pve", NoPropagate: true})
				s.ACLs[0].Path = "/vms"
				s.ACLs = append(s.ACLs, pvesim.ACL{Path: "/nodes", Role: "Karpenter", User: "kubernetes@pve"}, pvesim.ACL{Path: "/sdn", Role: "Karpenter", User: "kubernetes@pve"})
			},
			condition: v1alpha1.ConditionPrivilegesSufficient, reason: v1alpha1.ReasonPrivilegesMissing,
			want: "region-1/pve1: API token " + karpenter + " lacks Datastore.Allocate, Datastore.AllocateTemplate, Datastore.Audit on /storage/local; " +
				"run: pveum role add KarpenterISO --privs \"Datastore.Allocate Datastore.AllocateTemplate Datastore.Audit\" && " + grant("/storage/local", "KarpenterISO"),
			class: func(c *v1alpha1.ProxmoxNodeClass) { c.Spec.MetadataOptions.Storage = "local" },
		},
		"privileges_missing_in_a_role": {
			scenario: func(s *pvesim.Scenario) {
				without("Karpenter VM.Clone")(s)
				without("Karpenter SDN.Use")(s)
			},
			condition: v1alpha1.ConditionPrivilegesSufficient, reason: v1alpha1.ReasonPrivilegesMissing,
			want: "region-1/pve1: API token " + karpenter + " lacks VM.Clone on /vms/9000; SDN.Use on /sdn/zones/localnetwork/vmbr0; " +
				"run: pveum role modify Karpenter --append 1 --privs \"SDN.Use VM.Clone\" && " + grant("/", "Karpenter"),
		},
		"privileges_missing_on_hosts": {
			scenario: func(s *pvesim.Scenario) {
				without("Karpenter VM.Clone")(s)
				without("Karpenter Sys.Audit")(s)
			},
			condition: v1alpha1.ConditionPrivilegesSufficient, reason: v1alpha1.ReasonPrivilegesMissing,
			want: "region-1/pve1: API token " + karpenter + " lacks Sys.Audit on /nodes/pve1; VM.Clone on /vms/9000; " +
				"run: pveum role modify Karpenter --append 1 --privs \"Sys.Audit VM.Clone\" && " + grant("/", "Karpenter"),
		},
		"VLAN_not_permitted": {
			scenario: func(s *pvesim.Scenario) {
				setTemplateOption("net0", nic+"bridge=vmbr0,tag=15")(s)
				s.ACLs = append(s.ACLs, pvesim.ACL{Path: "/sdn/zones/localnetwork/vmbr0/15", Role: "PVEAuditor", User: "kubernetes@pve"})
			},
			condition: v1alpha1.ConditionPrivilegesSufficient, reason: v1alpha1.ReasonPrivilegesMissing,
			want: "region-1/pve1: API token " + karpenter + " lacks SDN.Use on /sdn/zones/localnetwork/vmbr0/15; " +
				"run: pveum role add KarpenterNet --privs \"SDN.Use\" && " + grant("/sdn/zones/localnetwork/vmbr0/15", "KarpenterNet"),
		},
		"mapped_device_not_permitted": {
			scenario: func(s *pvesim.Scenario) {
				s.Mappings = []pvesim.Mapping{{Kind: "pci", ID: "gpu", Map: []string{"id=10de:2204,node=pve1,path=0000:01:00.0"}}}
				setTemplateOption("hostpci0", "mapping=gpu,pcie=1")(s)
			},
			condition: v1alpha1.ConditionPrivilegesSufficient, reason: v1alpha1.ReasonPrivilegesMissing,
			want: "region-1/pve1: API token " + karpenter + " lacks Mapping.Use on /mapping/pci/gpu; run: pveum role modify Karpenter --append 1 --privs \"Mapping.Use\" && " + grant("/", "Karpenter"),
		},
		"no_boot_disk": {
			scenario: func(s *pvesim.Scenario) {
				for _, guest := range s.Guests {
					delete(guest.Config, "scsi0")
					delete(guest.Config, "boot")
				}
			},
			condition: v1alpha1.ConditionInstanceTemplateReady, reason: v1alpha1.ReasonTemplatesNotFound,
			want: "region-1/pve1: template 9000 cannot be used: the template has no boot disk: its boot order \"\" names none, and it has none of virtio0, scsi0, sata0, ide0",
		},
		"unknown_interface": {
			class: func(c *v1alpha1.ProxmoxNodeClass) {
				c.Spec.SecurityGroups = []v1alpha1.SecurityGroup{{Name: "kubernetes", Interface: "net3"}}
			},
			condition: v1alpha1.ConditionInstanceTemplateReady, reason: v1alpha1.ReasonTemplatesNotFound,
			want: "region-1/pve1: template 9000 cannot be used: a security group names interface net3, but neither the template nor spec.network has one of that name",
		},
		"unknown_bridge": {
			scenario:  setTemplateOption("net0", nic+"bridge=vmbr7,firewall=1"),
			condition: v1alpha1.ConditionNetworkReady, reason: v1alpha1.ReasonBridgesNotFound,
			want: "region-1/pve1: bridge \"vmbr7\" of the template's net0 is not on this host, which has vmbr0; create it (Host, System, Network), " +
				"or run: qm set 9000 --net0 virtio=BC:24:11:00:00:01,bridge=BRIDGE,firewall=1",
		},
		"VLAN_on_bridge_without_port": {
			scenario: func(s *pvesim.Scenario) {
				s.Hosts[0].Bridges = append(s.Hosts[0].Bridges, pvesim.Bridge{Name: "vmbr1"})
				setTemplateOption("net0", nic+"bridge=vmbr1,tag=15")(s)
			},
			condition: v1alpha1.ConditionNetworkReady, reason: v1alpha1.ReasonBridgesNotFound,
			want: "region-1/pve1: the template's net0 has VLAN 15, but bridge \"vmbr1\" has no port and is not VLAN-aware; " +
				"run: pvesh set /nodes/pve1/network/vmbr1 --type bridge --bridge_vlan_aware 1 && pvesh set /nodes/pve1/network",
		},
		"VLAN_on_vnet": {
			scenario: func(s *pvesim.Scenario) {
				s.Zones, s.VNets = []pvesim.Zone{{Zone: "lab", Type: "simple"}}, []pvesim.VNet{{VNet: "blue", Zone: "lab"}}
				setTemplateOption("net0", nic+"bridge=blue,tag=15")(s)
			},
			condition: v1alpha1.ConditionNetworkReady, reason: v1alpha1.ReasonBridgesNotFound,
			want: "region-1: the template's net0 has VLAN 15, but vnet \"blue\" is not VLAN-aware; " +
				"run: pvesh set /cluster/sdn/vnets/blue --vlanaware 1 && pvesh set /cluster/sdn",
		},
		"directory_not_permitted": {
			scenario: func(s *pvesim.Scenario) {
				s.Mappings = []pvesim.Mapping{{Kind: "dir", ID: "data", Map: []string{"node=pve1,path=/tank"}}}
			},
			class:     withShares("data"),
			condition: v1alpha1.ConditionPrivilegesSufficient, reason: v1alpha1.ReasonPrivilegesMissing,
			want: "region-1/pve1: API token " + karpenter + " lacks Mapping.Use on /mapping/dir/data; run: pveum role modify Karpenter --append 1 --privs \"Mapping.Use\" && " + grant("/", "Karpenter"),
		},
		"template_directory_on_other_host": {
			scenario: func(s *pvesim.Scenario) {
				withDirectories(pvesim.Mapping{Kind: "dir", ID: "data", Map: []string{"node=pve7,path=/tank"}})(s)
				setTemplateOption("virtiofs0", "data,cache=never")(s)
			},
			condition: v1alpha1.ConditionSharesReady, reason: v1alpha1.ReasonDirectoriesNotFound,
			want: "region-1/pve1: virtiofs of template 9000: directory mapping \"data\" has no directory on this host; add one (Datacenter, Resource Mappings)",
		},
		"tag_not_in_list": {
			scenario: func(s *pvesim.Scenario) {
				s.Options = map[string]string{"user-tag-access": "user-allow=list,user-allow-list=a;b"}
			},
			condition: v1alpha1.ConditionTagsAllowed, reason: v1alpha1.ReasonTagsForbidden,
			want: "region-1: spec.tags: tag \"karpenter\" is not allowed: user-tag-access of the cluster is \"list\"; " +
				"run: pvesh set /cluster/options --user-tag-access 'user-allow=list,user-allow-list=a;b;karpenter'",
		},
		"no_tags_allowed": {
			scenario:  func(s *pvesim.Scenario) { s.Options = map[string]string{"user-tag-access": "user-allow=none"} },
			condition: v1alpha1.ConditionTagsAllowed, reason: v1alpha1.ReasonTagsForbidden,
			want: "region-1: spec.tags: tag \"karpenter\" is not allowed: user-tag-access of the cluster is \"none\"; " +
				"run: pvesh set /cluster/options --user-tag-access 'user-allow=list,user-allow-list=karpenter'",
		},
		"tag_does_not_exist": {
			scenario:  func(s *pvesim.Scenario) { s.Options = map[string]string{"user-tag-access": "user-allow=existing"} },
			condition: v1alpha1.ConditionTagsAllowed, reason: v1alpha1.ReasonTagsForbidden,
			want: "region-1: spec.tags: tag \"karpenter\" is not allowed: user-tag-access of the cluster allows existing tags only; " +
				"set it once on any guest, or add it to user-allow-list (Datacenter, Options)",
		},
		"registered_tag": {
			scenario:  func(s *pvesim.Scenario) { s.Options = map[string]string{"registered-tags": "karpenter"} },
			condition: v1alpha1.ConditionTagsAllowed, reason: v1alpha1.ReasonTagsForbidden,
			want: "region-1: spec.tags: tag \"karpenter\" is not allowed: it is a registered tag, which requires Sys.Modify on /; " +
				"remove it from registered-tags (Datacenter, Options)",
		},
		"registered_tag_of_template": {
			scenario: func(s *pvesim.Scenario) {
				s.Options = map[string]string{"registered-tags": "golden"}
				setTemplateOption("tags", "golden")(s)
			},
			condition: v1alpha1.ConditionTagsAllowed, reason: v1alpha1.ReasonTagsForbidden,
			want: "region-1/pve1: spec.tags would remove tag \"golden\" of template 9000, which is not allowed; add it to spec.tags, or: " +
				"it is a registered tag, which requires Sys.Modify on /; remove it from registered-tags (Datacenter, Options)",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, class := newEnvWithClass(t, c.scenario, c.class)
			reconcileClass(w, class)
			w.Refresh() // a resource pool is read once a class refers to it
			class = reconcileClass(w, class)
			for _, condition := range class.Status.Conditions {
				w.Expect(condition.IsFalse()).To(Equal(condition.Type == c.condition || condition.Type == operatorstatus.ConditionReady), "%s: %s", condition.Type, condition.Message)
			}
			got := class.StatusConditions().Get(c.condition)
			w.Expect(got.Message).To(Equal(c.want))
			w.Expect(got.Reason).To(Equal(c.reason))
			w.Expect(conditionMessage(class, operatorstatus.ConditionReady)).To(Equal(c.condition + ": " + c.want))
			w.Expect(class.Status.SelectedZones).To(BeEmpty())
			w.Expect(class.Status.UnusableZones).To(HaveLen(1))
		})
	}
}

func TestChecksPass(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		scenario func(*pvesim.Scenario)
		class    func(*v1alpha1.ProxmoxNodeClass)
	}{
		"VLAN_on_VLAN-aware_bridge": {scenario: setTemplateOption("net0", nic+"bridge=vmbr0,tag=15")},
		"VLAN_on_bridge_with_port": {scenario: func(s *pvesim.Scenario) {
			s.Hosts[0].Bridges = []pvesim.Bridge{{Name: "vmbr0", Ports: "eno1"}}
			setTemplateOption("net0", nic+"bridge=vmbr0,tag=15")(s)
		}},
		"vnet": {scenario: func(s *pvesim.Scenario) {
			s.Zones, s.VNets = []pvesim.Zone{{Zone: "lab", Type: "simple"}}, []pvesim.VNet{{VNet: "blue", Zone: "lab"}}
			setTemplateOption("net0", nic+"bridge=blue")(s)
		}},
		"tag_in_list": {scenario: func(s *pvesim.Scenario) {
			s.Options = map[string]string{"user-tag-access": "user-allow=list,user-allow-list=Karpenter"}
		}},
		"no_tags": {
			scenario: func(s *pvesim.Scenario) { s.Options = map[string]string{"user-tag-access": "user-allow=none"} },
			class:    func(c *v1alpha1.ProxmoxNodeClass) { c.Spec.Tags = nil },
		},
		"invisible_resource_pool": {
			scenario: func(s *pvesim.Scenario) { s.Pools = []pvesim.Pool{{ID: "team"}} },
			class:    func(c *v1alpha1.ProxmoxNodeClass) { c.Spec.ResourcePool = "team" },
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, class := newEnvWithClass(t, c.scenario, c.class)
			reconcileClass(w, class)
			w.Refresh()
			ready := reconcileClass(w, class).StatusConditions().Root()
			w.Expect(ready.IsTrue()).To(BeTrue(), ready.Message)
		})
	}
}

func TestChecksFailOnOneHost(t *testing.T) {
	t.Parallel()
	w := testenv.New(t, testenv.NoPolling(), testenv.Hosts(3), testenv.Scenario(func(s *pvesim.Scenario) {
		s.Hosts[1].Bridges = []pvesim.Bridge{{Name: "vmbr1", Ports: "eno1"}}
	}))
	setTemplateZones(w, "region-1/pve1/9000", "region-1/pve2/9001", "region-1/pve3/9002")
	class := reconcileClass(w, w.NewClass())
	w.Expect(class.StatusConditions().Root().IsTrue()).To(BeTrue())
	w.Expect(class.Status.SelectedZones).To(Equal([]string{"region-1/pve1/9000", "region-1/pve3/9002"}))
	w.Expect(class.Status.UnusableZones).To(HaveLen(1))
	w.Expect(class.Status.UnusableZones[0].Zone).To(Equal("region-1/pve2"))
	w.Expect(class.Status.UnusableZones[0].Reason).To(ContainSubstring(`bridge "vmbr0" of the template's net0 is not on this host, which has vmbr1`))
}

// The condition lists the same privilege and its command once for all hosts.
func TestChecksFailOnAllHosts(t *testing.T) {
	t.Parallel()
	w := testenv.New(t, testenv.NoPolling(), testenv.Hosts(3), testenv.Scenario(without("Karpenter VM.Clone")))
	setTemplateZones(w, "region-1/pve1/9000", "region-1/pve2/9001", "region-1/pve3/9002")
	class := reconcileClass(w, w.NewClass())
	w.Refresh() // the roles are read once a privilege is missing
	class = reconcileClass(w, class)
	w.Expect(conditionMessage(class, v1alpha1.ConditionPrivilegesSufficient)).To(Equal("region-1/pve1, region-1/pve2, region-1/pve3: API token " + karpenter +
		" lacks VM.Clone on /vms/9000, /vms/9001, /vms/9002; run: pveum role modify Karpenter --append 1 --privs \"VM.Clone\" && " + grant("/", "Karpenter")))
}

func TestChecksPassAfterFix(t *testing.T) {
	t.Parallel()
	w := testenv.New(t, testenv.Scenario(func(s *pvesim.Scenario) { s.Pools = []pvesim.Pool{{ID: "later"}} }))
	fault, err := w.Sim.AddFault(pvesim.Fault{Path: "/pools", Status: 500, Message: "no such pool 'later'"})
	w.Expect(err).NotTo(HaveOccurred())
	setTemplateZones(w, "region-1/pve1/9000")
	w.StartManager(func(kube client.Client) testenv.Registrar {
		return status.NewController(kube, statusDeps(w))
	})
	class := w.NewClass(func(c *v1alpha1.ProxmoxNodeClass) { c.Spec.ResourcePool = "later" })
	ready := func() string { return conditionMessage(testenv.Reload(w, class), operatorstatus.ConditionReady) }
	w.Eventually(ready).Should(ContainSubstring(`spec.resourcePool "later" does not exist`))
	w.Sim.RemoveFault(fault)
	w.Clock.Advance(time.Minute) // invalidated facts are read after a delay
	w.Eventually(func() bool { return testenv.Reload(w, class).StatusConditions().Root().IsTrue() }).Should(BeTrue())
}
