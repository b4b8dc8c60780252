// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

// InterfaceDevice is the device of a network interface in Proxmox. A change replaces the nodes of the class.
type InterfaceDevice struct {
	// bridge is the network that the interface is attached to: a bridge of the host, like vmbr0, or a VNet of the SDN. If the
	// template has no interface of that name, it is created. If empty, the template's bridge is used. A change replaces the
	// nodes. The upstream provider does not have this field.
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:Pattern=`^[a-zA-Z][a-zA-Z0-9_.-]*$`
	// +optional
	Bridge string `json:"bridge,omitempty"`

	// model is the model of the network card. If empty, the template's is used; that of a created interface is virtio. A
	// change replaces the nodes. The upstream provider does not have this field.
	// +kubebuilder:validation:Enum=e1000;e1000e;rtl8139;virtio;vmxnet3
	// +optional
	Model string `json:"model,omitempty"`

	// vlan is the VLAN tag of the interface, from 1 to 4094; 0 removes the template's. A change replaces the nodes. The
	// upstream provider does not have this field.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=4094
	// +optional
	VLAN *int32 `json:"vlan,omitempty"`

	// trunks are the VLANs that the guest may use with its own tags: single ones, like 7, or ranges, like 10-19. If empty, the
	// template's are used. A change replaces the nodes. The upstream provider does not have this field.
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MaxLength=9
	// +kubebuilder:validation:items:Pattern=`^[1-9][0-9]{0,3}(-[1-9][0-9]{0,3})?$`
	// +optional
	Trunks []string `json:"trunks,omitempty"`

	// rateLimit is the bandwidth limit in megabytes per second, like "100" or "12.5". "0" removes the template's. A change replaces the nodes. The upstream provider does not have this field.
	// +kubebuilder:validation:MaxLength=10
	// +kubebuilder:validation:XValidation:rule="self.matches('^[0-9]{1,6}([.][0-9]{1,3})?$')",message="rateLimit must be megabytes per second from 0 to 999999, like \"100\" or \"12.5\""
	// +optional
	RateLimit string `json:"rateLimit,omitempty"`

	// mtu is the MTU of the interface, from 576 to 65520. 1 means the MTU of the bridge. If empty, the template's is used. It
	// needs the model virtio. A change replaces the nodes. The upstream provider does not have this field.
	// +kubebuilder:validation:XValidation:rule="self == 1 || (self >= 576 && self <= 65520)",message="mtu must be 1 (the MTU of the bridge) or from 576 to 65520"
	// +optional
	MTU *int32 `json:"mtu,omitempty"`

	// queues is the number of packet queues, from 1 to 64. If empty, it is the number of vCPUs. It needs the model virtio. A
	// change replaces the nodes. The upstream provider does not have this field.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=64
	// +optional
	Queues *int32 `json:"queues,omitempty"`

	// firewall puts the interface behind the Proxmox firewall or takes it out. If empty, the template's setting is used, and
	// security groups enable it. A change replaces the nodes. The upstream provider does not have this field.
	// +optional
	Firewall *bool `json:"firewall,omitempty"`
}

// InterfaceRouting is the configuration of routes and name resolution on a network interface in the guest. It is passed with
// boot data that the provider renders. A change applies to new VMs only.
type InterfaceRouting struct {
	// defaultRoute is whether the guest uses the gateway of this interface, or one from DHCP or router advertisements, for its
	// default route. The default is true. A change applies to new VMs only. The upstream provider does not have this field.
	// +optional
	DefaultRoute *bool `json:"defaultRoute,omitempty"`

	// metric is the metric of the interface's default routes: the guest prefers the lowest. If empty, the guest's default is
	// used. A change applies to new VMs only. The upstream provider does not have this field.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=2147483647
	// +optional
	Metric int32 `json:"metric,omitempty"`

	// routes are more routes through this interface. A change applies to new VMs only. The upstream provider does not have
	// this field.
	// +kubebuilder:validation:MaxItems=16
	// +listType=atomic
	// +optional
	Routes []InterfaceRoute `json:"routes,omitempty"`

	// policyRoutes are routing rules: packets that match use another routing table. A change applies to new VMs only. The
	// upstream provider does not have this field.
	// +kubebuilder:validation:MaxItems=16
	// +listType=atomic
	// +optional
	PolicyRoutes []PolicyRoute `json:"policyRoutes,omitempty"`

	// dnsServers are the addresses of the name servers on this interface, instead of network.dnsServers. A change applies to
	// new VMs only. The upstream provider does not have this field.
	// +kubebuilder:validation:MaxItems=6
	// +kubebuilder:validation:items:MaxLength=45
	// +kubebuilder:validation:XValidation:rule="self.all(x, x.matches('^([0-9]{1,3}(\\\\.[0-9]{1,3}){3}|[0-9a-fA-F.]*:[0-9a-fA-F:.]*)$'))",message="dnsServers must be addresses, like 192.168.0.53 or 2001:db8::53"
	// +optional
	DNSServers []string `json:"dnsServers,omitempty"`

	// searchDomains are the DNS search domains on this interface, instead of network.searchDomains. A change applies to new
	// VMs only. The upstream provider does not have this field.
	// +kubebuilder:validation:MaxItems=6
	// +kubebuilder:validation:items:MaxLength=253
	// +kubebuilder:validation:items:Pattern=`^[a-zA-Z0-9]([a-zA-Z0-9.-]*[a-zA-Z0-9])?$`
	// +optional
	SearchDomains []string `json:"searchDomains,omitempty"`
}

// InterfaceRoute is a route of the guest.
// +kubebuilder:validation:XValidation:rule="!has(self.via) || self.via.contains(':') == self.to.contains(':')",message="to and via must both be IPv4 or both be IPv6"
type InterfaceRoute struct {
	// to is the destination as a subnet, for example 10.0.0.0/8, or 0.0.0.0/0 for a default route in another table.
	// +kubebuilder:validation:MaxLength=43
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]{1,3}(\\\\.[0-9]{1,3}){3}/[0-9]{1,2}|[0-9a-fA-F.]*:[0-9a-fA-F:.]*/[0-9]{1,3})$')",message="to must be a subnet with its prefix, like 10.0.0.0/8"
	// +required
	To string `json:"to,omitempty"`

	// via is the address of the gateway. If empty, the destination is on the link.
	// +kubebuilder:validation:MaxLength=45
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]{1,3}(\\\\.[0-9]{1,3}){3}|[0-9a-fA-F.]*:[0-9a-fA-F:.]*)$')",message="via must be an address without a prefix, like 192.168.0.1"
	// +optional
	Via string `json:"via,omitempty"`

	// metric is the metric of the route. If empty, the guest's default is used.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=2147483647
	// +optional
	Metric int32 `json:"metric,omitempty"`

	// table is the number of the routing table. The default is the main table.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=2147483647
	// +optional
	Table int32 `json:"table,omitempty"`
}

// PolicyRoute is a routing rule of the guest.
// +kubebuilder:validation:XValidation:rule="has(self.from) || has(self.to)",message="set from, to, or both"
// +kubebuilder:validation:XValidation:rule="!has(self.from) || !has(self.to) || self.from.contains(':') == self.to.contains(':')",message="from and to must both be IPv4 or both be IPv6"
type PolicyRoute struct {
	// from is the subnet of the source addresses, for example 10.0.0.0/8.
	// +kubebuilder:validation:MaxLength=43
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]{1,3}(\\\\.[0-9]{1,3}){3}/[0-9]{1,2}|[0-9a-fA-F.]*:[0-9a-fA-F:.]*/[0-9]{1,3})$')",message="from must be a subnet with its prefix, like 10.0.0.0/8"
	// +optional
	From string `json:"from,omitempty"`

	// to is the subnet of the destination addresses, for example 10.0.0.0/8.
	// +kubebuilder:validation:MaxLength=43
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]{1,3}(\\\\.[0-9]{1,3}){3}/[0-9]{1,2}|[0-9a-fA-F.]*:[0-9a-fA-F:.]*/[0-9]{1,3})$')",message="to must be a subnet with its prefix, like 10.0.0.0/8"
	// +optional
	To string `json:"to,omitempty"`

	// table is the number of the routing table that packets use.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=2147483647
	// +required
	Table int32 `json:"table,omitempty"`

	// priority is the position of the rule, from 1 to 32764. The guest uses the matching rule with the lowest.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=32764
	// +required
	Priority int32 `json:"priority,omitempty"`
}

// IsSet reports whether a class configures the device of the interface.
func (d InterfaceDevice) IsSet() bool {
	return d.Bridge != "" || d.Model != "" || d.VLAN != nil || len(d.Trunks) > 0 || d.RateLimit != "" || d.MTU != nil || d.Queues != nil || d.Firewall != nil
}

// IsSet reports whether a class configures routes or name servers of the interface.
func (r InterfaceRouting) IsSet() bool {
	return r.DefaultRoute != nil || r.Metric != 0 || len(r.Routes) > 0 || len(r.PolicyRoutes) > 0 || len(r.DNSServers) > 0 || len(r.SearchDomains) > 0
}

// hashedInterfaces returns the interfaces whose device the class configures. They are in the hash.
func (n *Network) hashedInterfaces() []VMInterface {
	if n == nil {
		return nil
	}

	var out []VMInterface

	for _, i := range n.Interfaces {
		if i.InterfaceDevice.IsSet() {
			out = append(out, i)
		}
	}

	return out
}
