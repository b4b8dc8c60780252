// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package controllers_test

import (
	"testing"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

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
