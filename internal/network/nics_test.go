// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package network_test

import (
	"net/netip"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/observed"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/network"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

func device(name string, d v1alpha1.InterfaceDevice) v1alpha1.VMInterface {
	return v1alpha1.VMInterface{Name: name, InterfaceDevice: d}
}

func TestNICs(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		nic  v1alpha1.VMInterface
		want string // value of the option
	}{
		"addresses_only":  {pool4("net0", "10.0.0.0/24"), "virtio=BC:24:11:00:00:01,bridge=vmbr0,mtu=1400"},
		"other_bridge":    {device("net0", v1alpha1.InterfaceDevice{Bridge: "vnet1"}), "virtio=BC:24:11:00:00:01,bridge=vnet1,mtu=1400"},
		"VLAN":            {device("net0", v1alpha1.InterfaceDevice{VLAN: new(int32(7))}), "virtio=BC:24:11:00:00:01,bridge=vmbr0,mtu=1400,tag=7"},
		"template's_VLAN": {device("net2", v1alpha1.InterfaceDevice{VLAN: new(int32(0)), RateLimit: "0"}), "e1000=BC:24:11:00:00:03,bridge=vmbr2,link_down=1"},
		"other_model":     {device("net0", v1alpha1.InterfaceDevice{Model: "e1000"}), "e1000=BC:24:11:00:00:01,bridge=vmbr0"},
		"created": {device("net10", v1alpha1.InterfaceDevice{
			Bridge: "vmbr9", VLAN: new(int32(9)), Trunks: []string{"10", "20-29"}, RateLimit: "12.5", MTU: new(int32(1)),
			Queues: new(int32(2)), Firewall: new(true),
		}), "virtio,bridge=vmbr9,firewall=1,tag=9,mtu=1,queues=2,rate=12.5,trunks=10;20-29"},
	} {
		found := map[string]string{}
		for _, nic := range network.NICs(class(c.nic), template("net2", "e1000=BC:24:11:00:00:03,bridge=vmbr2,tag=7,rate=5,link_down=1")) {
			found[nic.Slot] = nic.Encode()
		}
		NewWithT(t).Expect(found).To(HaveKeyWithValue(c.nic.Name, c.want), name)
		NewWithT(t).Expect(found).To(HaveKeyWithValue("net1", "virtio=BC:24:11:00:00:02,bridge=vmbr1,mtu=1"), "the class does not name it")
	}
}

// TestAssignCreatedInterface checks that an interface that only the class defines is like one of the template.
func TestAssignCreatedInterface(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	view := viewOf(map[string]proxmox.Bridge{"vmbr9": {CIDR4: netip.MustParsePrefix("10.9.0.2/24"), Gateway4: netip.MustParseAddr("10.9.0.1")}})
	nic := pool4("net2", "10.9.0.0/24")
	nic.InterfaceDevice = v1alpha1.InterfaceDevice{Bridge: "vmbr9", VLAN: new(int32(7)), MTU: new(int32(9000))}
	assigned := assign(t, class(nic, device("net3", v1alpha1.InterfaceDevice{Bridge: "vmbr9"})), template(), view)
	net2 := assigned.Interfaces["net2"]
	g.Expect(net2.IPConfig().Encode()).To(Equal("ip=" + net2.Address4.String() + ",gw=10.9.0.1"))
	g.Expect(net2.MTU).To(Equal(9000))
	g.Expect(net2.Device).To(Equal(nic.InterfaceDevice))
	g.Expect(assigned.Interfaces["net3"].DHCP4).To(BeTrue())

	nic.DefaultRoute = new(false)
	assigned = assign(t, class(nic), template(), view)
	g.Expect(assigned.Interfaces["net2"].IPConfig().Encode()).To(Equal("ip=" + assigned.Interfaces["net2"].Address4.String()))

	// Its network is that of the class's bridge and VLAN.
	other := newLayout(t, class(pool4("net0", "10.9.0.0/16")), template("net0", "virtio=BC:24:11:00:00:03,bridge=vmbr9,tag=7"))
	conflict, found := newLayout(t, class(nic), template()).Conflicts(other)
	g.Expect(found).To(BeTrue())
	g.Expect(conflict.Network).To(Equal("bridge vmbr9, VLAN 7"))
}

func TestNewLayoutInvalidDevice(t *testing.T) {
	t.Parallel()
	routing := func(r v1alpha1.InterfaceRouting) v1alpha1.VMInterface {
		return v1alpha1.VMInterface{Name: "net0", InterfaceRouting: r}
	}
	grouped := class(device("net0", v1alpha1.InterfaceDevice{Firewall: new(false)}))
	grouped.Spec.SecurityGroups = []v1alpha1.SecurityGroup{{Name: "web", Interface: "net0"}}
	unconfigured := routing(v1alpha1.InterfaceRouting{Metric: 5})
	unconfigured.Address4 = &v1alpha1.AddressSource{Method: v1alpha1.AddressMethodNone}
	for name, c := range map[string]struct {
		class *v1alpha1.ProxmoxNodeClass
		want  string
	}{
		"too_high_name":     {class(device("net32", v1alpha1.InterfaceDevice{Bridge: "vmbr0"})), "spec.network.interfaces[0].name net32 is not an interface of Proxmox: want net0 to net31"},
		"leading_zero":      {class(device("net07", v1alpha1.InterfaceDevice{Bridge: "vmbr0"})), "spec.network.interfaces[0].name net07 is not an interface of Proxmox: want net0 to net31"},
		"without_bridge":    {class(device("net2", v1alpha1.InterfaceDevice{VLAN: new(int32(7))})), "spec.network.interfaces[0].name net2 is not an interface of the template, which has net0, net1: set bridge to create it"},
		"queues_with_e1000": {class(device("net0", v1alpha1.InterfaceDevice{Queues: new(int32(2))})), "spec.network.interfaces[0]: mtu and queues need the model virtio, but net0 of the template has the model e1000"},
		"invalid_trunk":     {class(device("net1", v1alpha1.InterfaceDevice{Trunks: []string{"7", "9-8"}})), `spec.network.interfaces[0].trunks[1] "9-8" is not a VLAN: want 1 to 4094, or a range such as 10-19`},
		"security_group":    {grouped, "spec.network.interfaces[0].firewall is false, but spec.securityGroups[0] is on net0: remove one of them"},
		"route_to_address":  {class(routing(v1alpha1.InterfaceRouting{Routes: []v1alpha1.InterfaceRoute{{To: "10.0.0.1/8"}}})), "spec.network.interfaces[0].routes[0].to 10.0.0.1/8 is an address in a subnet: want the subnet 10.0.0.0/8"},
		"route_via":         {class(routing(v1alpha1.InterfaceRouting{Routes: []v1alpha1.InterfaceRoute{{To: "10.0.0.0/8", Via: "10.0.0.256"}}})), `spec.network.interfaces[0].routes[0].via "10.0.0.256" is not an address`},
		"rule_from":         {class(routing(v1alpha1.InterfaceRouting{PolicyRoutes: []v1alpha1.PolicyRoute{{From: "10.0.0.0/33"}}})), `spec.network.interfaces[0].policyRoutes[0].from "10.0.0.0/33" is not a subnet`},
		"name_server":       {class(routing(v1alpha1.InterfaceRouting{DNSServers: []string{"1.1.1.999"}})), `spec.network.interfaces[0].dnsServers[0] "1.1.1.999" is not an address`},
		"no_addresses":      {class(unconfigured), "net0 has no addresses, so it is not in the boot data: remove its routes and name servers"},
	} {
		_, err := network.NewLayout(c.class, template("net0", "e1000=BC:24:11:00:00:01,bridge=vmbr0"))
		NewWithT(t).Expect(err).To(MatchError(ContainSubstring(c.want)), name)
	}
}

func TestCheckBridgeTrunks(t *testing.T) {
	t.Parallel()
	facts := &observed.Facts{Bridges: map[string]map[string]proxmox.Bridge{"pve1": {
		"vmbr0": {Name: "vmbr0", Type: "bridge", Ports: "eno1"}, "vmbr1": {Name: "vmbr1", Type: "bridge", VLANAware: true}, "ovs": {Name: "ovs", Type: "OVSBridge"},
	}}}
	for bridge, want := range map[string]string{
		"vmbr0": `spec.network.interfaces[0] has the trunks 7;9-11, but bridge "vmbr0" is not VLAN-aware; run: pvesh set /nodes/pve1/network/vmbr0 --type bridge --bridge_vlan_aware 1 && pvesh set /nodes/pve1/network`,
		"vmbr1": "", "ovs": "",
	} {
		problem := network.CheckBridge(facts, "pve1", "spec.network.interfaces[0]", "", proxmox.NIC{Bridge: bridge, Trunks: "7;9-11"})
		if want == "" {
			NewWithT(t).Expect(problem).To(BeNil(), bridge)
		} else {
			NewWithT(t).Expect(problem).To(HaveField("Message", want))
		}
	}
	NewWithT(t).Expect(network.TrunkVLANs("7;9-11;x")).To(Equal([]int{7, 9, 10, 11}))
}
