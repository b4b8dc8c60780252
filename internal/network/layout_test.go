// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package network_test

import (
	"net/netip"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/declared"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/observed"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/network"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

func class(interfaces ...v1alpha1.VMInterface) *v1alpha1.ProxmoxNodeClass {
	return &v1alpha1.ProxmoxNodeClass{Spec: v1alpha1.ProxmoxNodeClassSpec{Network: &v1alpha1.Network{Interfaces: interfaces}}}
}

func pool4(name, cidr string) v1alpha1.VMInterface {
	return v1alpha1.VMInterface{Name: name, Address4: &v1alpha1.AddressSource{CIDR: cidr}}
}

// template returns a template with the interfaces net0 and net1 and the assigned options.
func template(options ...string) proxmox.VMConfig {
	c := proxmox.VMConfig{Options: map[string]string{
		"net0": "virtio=BC:24:11:00:00:01,bridge=vmbr0,mtu=1400", "net1": "virtio=BC:24:11:00:00:02,bridge=vmbr1,mtu=1",
	}}
	for n := 0; n < len(options); n += 2 {
		c.Options[options[n]] = options[n+1]
	}
	return c
}

func viewOf(bridges map[string]proxmox.Bridge) inventory.View {
	result := observed.Result{
		Region: "r", Resources: proxmox.Resources{Hosts: []proxmox.HostRow{{Name: "pve1", Online: true, CPUs: 16, MemoryBytes: 1 << 36}}},
		Facts: &observed.Facts{Bridges: map[string]map[string]proxmox.Bridge{"pve1": bridges}},
	}
	return inventory.NewView(map[string]*observed.Snapshot{"r": observed.NewSnapshot(result, nil, observed.VMIDRange{})}, nil, nil, declared.Settings{}, declared.Records{})
}

func newLayout(t *testing.T, c *v1alpha1.ProxmoxNodeClass, template proxmox.VMConfig) network.Layout {
	t.Helper()
	layout, err := network.NewLayout(c, template)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	return layout
}

func assign(t *testing.T, c *v1alpha1.ProxmoxNodeClass, template proxmox.VMConfig, view inventory.View) network.Assignment {
	t.Helper()
	assigned, err := newLayout(t, c, template).Assign(network.Request{View: view, Region: "r", Host: "pve1", Key: "uid"})
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	return assigned
}

func TestAssignDHCPByDefault(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	assigned := assign(t, &v1alpha1.ProxmoxNodeClass{}, template(), inventory.View{})
	g.Expect(assigned).To(Equal(network.Assignment{Interfaces: map[string]network.InterfaceAddresses{
		"net0": {DHCP4: true, Bridge: "vmbr0", MTU: 1400}, "net1": {DHCP4: true, Bridge: "vmbr1"},
	}}))
	g.Expect(assigned.Addresses()).To(BeEmpty())
}

func TestAssignFromTemplate(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	assigned := assign(t, &v1alpha1.ProxmoxNodeClass{}, template(
		"ipconfig0", "ip=10.0.0.0/24,gw=10.0.0.1,ip6=auto", "ipconfig1", "ip=10.1.0.7/24,ip6=dhcp", "nameserver", "10.0.0.53 10.0.0.54", "searchdomain", "example.com",
	), inventory.View{})
	net0, net1 := assigned.Interfaces["net0"], assigned.Interfaces["net1"]
	g.Expect(netip.MustParsePrefix("10.0.0.0/24").Contains(net0.Address4.Addr())).To(BeTrue())
	g.Expect(net0.IPConfig().Encode()).To(Equal("ip=" + net0.Address4.String() + ",gw=10.0.0.1,ip6=auto"))
	g.Expect(net1.IPConfig().Encode()).To(Equal("ip=10.1.0.7/24,ip6=dhcp"), "the address of one host is used as is")
	g.Expect(assigned.DNS).To(Equal([]string{"10.0.0.53", "10.0.0.54"}))
	g.Expect(assigned.Search).To(Equal([]string{"example.com"}))
	g.Expect(assigned.Addresses()).To(HaveLen(2))
}

func TestAssignClassOverridesTemplate(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	c := class(v1alpha1.VMInterface{
		Name: "net0", Address4: &v1alpha1.AddressSource{Method: v1alpha1.AddressMethodDHCP},
	}, v1alpha1.VMInterface{
		Name: "net1", Address4: &v1alpha1.AddressSource{Method: v1alpha1.AddressMethodNone}, Address6: &v1alpha1.AddressSource{CIDR: "fd00::/64", Gateway: "fe80::1"},
	})
	c.Spec.Network.DNSServers = []string{"192.168.0.53"}
	assigned := assign(t, c, template("ipconfig0", "ip=10.0.0.0/24,ip6=fd01::/64", "nameserver", "10.0.0.53"), inventory.View{})
	net0, net1 := assigned.Interfaces["net0"], assigned.Interfaces["net1"]
	g.Expect(net0.DHCP4).To(BeTrue())
	g.Expect(net0.Address4.IsValid()).To(BeFalse())
	g.Expect(netip.MustParsePrefix("fd01::/64").Contains(net0.Address6.Addr())).To(BeTrue(), "IPv6 is from the template")
	g.Expect(net1.DHCP4).To(BeFalse())
	g.Expect(net1.IPConfig().Encode()).To(Equal("ip6=" + net1.Address6.String() + ",gw6=fe80::1"))
	g.Expect(assigned.DNS).To(Equal([]string{"192.168.0.53"}))
}

func TestAssignGateway(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	view := viewOf(map[string]proxmox.Bridge{
		"vmbr0": {CIDR4: netip.MustParsePrefix("10.0.0.2/24"), Gateway4: netip.MustParseAddr("10.0.0.1")},
		"vmbr1": {CIDR4: netip.MustParsePrefix("10.1.0.1/24"), Gateway4: netip.MustParseAddr("192.168.0.1")},
	})
	assigned := assign(t, class(pool4("net0", "10.0.0.0/24"), pool4("net1", "10.1.0.0/24")), template(), view)
	g.Expect(assigned.Interfaces["net0"].Gateway4).To(Equal(netip.MustParseAddr("10.0.0.1")))
	g.Expect(assigned.Interfaces["net1"].Gateway4.IsValid()).To(BeFalse(), "there is another default route")
	single := proxmox.VMConfig{Options: map[string]string{"net0": "virtio=BC:24:11:00:00:01,bridge=vmbr1"}}
	assigned = assign(t, class(pool4("net0", "10.1.0.0/24")), single, view)
	g.Expect(assigned.Interfaces["net0"].Gateway4).To(Equal(netip.MustParseAddr("10.1.0.1")), "the host routes for its bridge")

	view = viewOf(map[string]proxmox.Bridge{"vmbr0": {CIDR6: netip.MustParsePrefix("2001:db8::a/64"), Gateway6: netip.MustParseAddr("fe80::1")}})
	pool6 := v1alpha1.VMInterface{Name: "net0", Address6: &v1alpha1.AddressSource{CIDR: "2001:db8::/64"}}
	g.Expect(assign(t, class(pool6), template(), view).Interfaces["net0"].Gateway6).To(Equal(netip.MustParseAddr("fe80::1")))
	view = viewOf(map[string]proxmox.Bridge{
		"vmbr0": {CIDR4: netip.MustParsePrefix("10.0.0.2/24"), Gateway4: netip.MustParseAddr("10.0.0.1")},
	})

	// Neither gateway is assigned to a VM.
	small := class(pool4("net0", "10.0.0.0/30"))
	layout := newLayout(t, small, template())
	_, err := layout.Assign(network.Request{View: view, Region: "r", Host: "pve1", Key: "uid"})
	g.Expect(err).To(MatchError("spec.network.interfaces[0].address4: all 2 addresses of 10.0.0.0/30 are taken"))
	g.Expect(layout.Exhausted(view)).To(MatchError(ContainSubstring("10.0.0.0/30")))
	g.Expect(layout.Exhausted(inventory.View{})).To(BeNil())
}

func TestNewLayoutInvalid(t *testing.T) {
	t.Parallel()
	groups := class()
	groups.Spec.SecurityGroups = []v1alpha1.SecurityGroup{{Name: "web", Interface: "net0"}, {Name: "db", Interface: "net2"}}
	servers := class()
	servers.Spec.Network.DNSServers = []string{"10.0.0.53", "300.0.0.53"}
	range4 := pool4("net0", "10.0.0.0/24")
	range4.Address4.Ranges = []string{"10.0.9.0/24"}
	for name, row := range map[string]struct {
		class    *v1alpha1.ProxmoxNodeClass
		template proxmox.VMConfig
		want     string
	}{
		"bad_cidr":                            {class(pool4("net0", "10.0.0.0")), template(), `spec.network.interfaces[0].address4.cidr "10.0.0.0" is not a subnet: want a subnet such as 192.168.0.0/24 or 2001:db8::/64`},
		"bad_range":                           {class(range4), template(), `spec.network.interfaces[0].address4.ranges[0] "10.0.9.0/24" is not inside 10.0.0.0/24`},
		"overlapping_pools":                   {class(pool4("net0", "10.0.0.0/16"), pool4("net1", "10.0.7.0/24")), template(), `spec.network.interfaces[0].address4 (10.0.0.0/16) and spec.network.interfaces[1].address4 (10.0.7.0/24) overlap: each interface needs its own subnet`},
		"overlap_with_template":               {class(pool4("net1", "10.0.7.0/24")), template("ipconfig0", "ip=10.0.0.0/16"), `ipconfig0 of the template (10.0.0.0/16) and spec.network.interfaces[0].address4 (10.0.7.0/24) overlap`},
		"unknown_interface":                   {class(pool4("net0", "10.0.0.0/24"), pool4("net3", "10.1.0.0/24")), template(), `spec.network.interfaces[1].name net3 is not an interface of the template, which has net0, net1`},
		"unknown_interface_of_security_group": {groups, template(), `spec.securityGroups[1].interface net2 is not an interface of the template, which has net0, net1`},
		"no_interfaces":                       {class(pool4("net0", "10.0.0.0/24")), proxmox.VMConfig{}, `spec.network.interfaces[0].name net0 is not an interface of the template, which has none`},
		"gateway_outside_in_template":         {class(), template("ipconfig1", "ip=10.0.0.0/24,gw=10.0.1.1"), `ipconfig1 of the template: gateway 10.0.1.1 is not inside 10.0.0.0/24: VMs could not reach it`},
		"gateway_of_other_family_in_template": {class(pool4("net1", "10.1.0.0/24")), template("ipconfig1", "ip6=fd00::/64,gw6=fd01::1"), `ipconfig1 of the template: gateway fd01::1 is not inside fd00::/64: VMs could not reach it`},
		"bad_name_server":                     {servers, template(), `spec.network.dnsServers[1] "300.0.0.53" is not an address: want an address such as 192.168.0.1 or 2001:db8::1`},
		"broadcast_in_template":               {class(), template("ipconfig0", "ip=10.0.0.255/24"), `ipconfig0 of the template: cidr 10.0.0.0/24 has no address left for a VM`},
	} {
		NewWithT(t).Expect(network.NewLayout(row.class, row.template)).Error().To(MatchError(ContainSubstring(row.want)), name)
	}
}

// An invalid address of the template does not matter if the class replaces it.
func TestNewLayoutReplacesAddress(t *testing.T) {
	t.Parallel()
	layout := newLayout(t, class(pool4("net0", "10.0.0.0/24")), template("ipconfig0", "ip=10.9.0.0/24,gw=10.8.0.1"))
	NewWithT(t).Expect(layout.Interfaces[0].V4.Pool.Subnet().String()).To(Equal("10.0.0.0/24"))
}

func TestConflicts(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		own, other, otherNIC string
		network              string // empty for no conflict
	}{
		"same_subnet":                {"10.0.0.0/16", "10.0.0.0/16", "bridge=vmbr0", ""},
		"same_subnet_other_notation": {"10.0.0.0/16", "10.0.0.5/16", "bridge=vmbr0", ""},
		"separate_subnets":           {"10.0.0.0/24", "10.0.1.0/24", "bridge=vmbr0", ""},
		"other_inside_own":           {"10.0.0.0/16", "10.0.1.0/24", "bridge=vmbr0", "bridge vmbr0"},
		"own_inside_other":           {"10.0.1.0/24", "10.0.0.0/16", "bridge=vmbr0", "bridge vmbr0"},
		"other_bridge":               {"10.0.0.0/16", "10.0.1.0/24", "bridge=vmbr1", ""},
		"other_VLAN":                 {"10.0.0.0/16", "10.0.1.0/24", "bridge=vmbr0,tag=7", ""},
	} {
		own := newLayout(t, class(pool4("net0", c.own)), template())
		other := newLayout(t, class(pool4("net0", c.other)), template("net0", "virtio=BC:24:11:00:00:03,"+c.otherNIC))
		found, conflict := own.Conflicts(other)
		NewWithT(t).Expect(conflict).To(Equal(c.network != ""), name)
		NewWithT(t).Expect(found.Network).To(Equal(c.network), name)
	}
}
