// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

// Network defines the interfaces of a VM and how they get their addresses. Fields that are not set keep the template's value (its
// options ipconfigN, nameserver and searchdomain). An interface that is configured in neither place uses DHCP.
type Network struct {
	// interfaces are the settings of the VM's interfaces, by their name in Proxmox. Interfaces of the template that are not
	// listed stay as they are.
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=6
	// +optional
	Interfaces []VMInterface `json:"interfaces,omitempty"`

	// dnsServers are the addresses of the name servers. If empty, those of the template are used.
	// +kubebuilder:validation:MaxItems=6
	// +kubebuilder:validation:items:MaxLength=45
	// +kubebuilder:validation:XValidation:rule="self.all(x, x.matches('^([0-9]{1,3}(\\\\.[0-9]{1,3}){3}|[0-9a-fA-F.]*:[0-9a-fA-F:.]*)$'))",message="dnsServers must be addresses, like 192.168.0.53 or 2001:db8::53"
	// +optional
	DNSServers []string `json:"dnsServers,omitempty"`

	// searchDomains are the DNS search domains. If empty, those of the template are used.
	// +kubebuilder:validation:MaxItems=6
	// +kubebuilder:validation:items:MaxLength=253
	// +kubebuilder:validation:items:Pattern=`^[a-zA-Z0-9]([a-zA-Z0-9.-]*[a-zA-Z0-9])?$`
	// +optional
	SearchDomains []string `json:"searchDomains,omitempty"`
}

// VMInterface is one network interface of a VM: its device, its addresses and its routes.
// +kubebuilder:validation:XValidation:rule="!has(self.model) || self.model == 'virtio' || (!has(self.mtu) && !has(self.queues))",message="mtu and queues need the model virtio: remove them, or the model"
type VMInterface struct {
	// name is the name of the interface in Proxmox, for example net0. The template must have this interface, unless bridge is
	// set.
	// +kubebuilder:validation:MaxLength=5
	// +kubebuilder:validation:Pattern=`^net[0-9]+$`
	// +required
	Name string `json:"name,omitempty"`

	InterfaceDevice `json:",inline"`

	// address4 is the source of the IPv4 address. If empty, the template's setting is used.
	// +kubebuilder:validation:XValidation:rule="!has(self.method) || self.method != 'SLAAC'",message="method SLAAC exists for IPv6 only: use DHCP or a cidr"
	// +kubebuilder:validation:XValidation:rule="!has(self.cidr) || !self.cidr.contains(':')",message="address4.cidr must be an IPv4 subnet, like 192.168.0.0/24"
	// +optional
	Address4 *AddressSource `json:"address4,omitempty" hash:"ignore"`

	// address6 is the source of the IPv6 address. If empty, the template's setting is used.
	// +kubebuilder:validation:XValidation:rule="!has(self.cidr) || self.cidr.contains(':') || !self.cidr.contains('.')",message="address6.cidr must be an IPv6 subnet, like 2001:db8::/64"
	// +optional
	Address6 *AddressSource `json:"address6,omitempty" hash:"ignore"`

	InterfaceRouting `json:",inline" hash:"ignore"`
}

// AddressMethod is a method to get an address that the provider does not assign.
// +kubebuilder:validation:Enum=DHCP;SLAAC;None
type AddressMethod string

const (
	// AddressMethodDHCP requests the address from a DHCP server.
	AddressMethodDHCP AddressMethod = "DHCP"
	// AddressMethodSLAAC derives the address from IPv6 router advertisements.
	AddressMethodSLAAC AddressMethod = "SLAAC"
	// AddressMethodNone configures no address of that family.
	AddressMethodNone AddressMethod = "None"
)

// The rules below do not use CEL's address functions because Kubernetes 1.30 rejects them in new CRDs. The condition
// NetworkReady reports what a pattern cannot check, such as a gateway outside the cidr.

// AddressSource is an address pool (cidr) or a method for the guest to get an address itself (method).
// +kubebuilder:validation:XValidation:rule="has(self.cidr) != has(self.method)",message="set either cidr (every VM gets its own address from it) or method (DHCP, SLAAC or None)"
// +kubebuilder:validation:XValidation:rule="has(self.cidr) || (!has(self.ranges) && !has(self.exclude) && !has(self.gateway))",message="ranges, exclude and gateway are only used with a cidr"
type AddressSource struct {
	// method is DHCP, SLAAC (IPv6 only) or None. Set either method or cidr.
	// +optional
	Method AddressMethod `json:"method,omitempty"`

	// cidr is the subnet from which every VM gets its own address, for example 192.168.0.0/24 or 2001:db8::/64. The provider
	// never assigns the network, broadcast and gateway addresses, nor a known address of another guest, host or node.
	// +kubebuilder:validation:MaxLength=43
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]{1,3}(\\\\.[0-9]{1,3}){3}/[0-9]{1,2}|[0-9a-fA-F.]*:[0-9a-fA-F:.]*/[0-9]{1,3})$')",message="cidr must be a subnet with its prefix, like 192.168.0.0/24"
	// +optional
	CIDR string `json:"cidr,omitempty"`

	// ranges limit the addresses to parts of the cidr. Each is an address, a range or a subnet: 192.168.0.10,
	// 192.168.0.50-192.168.0.99, 192.168.0.128/26. If empty, all addresses of the cidr are used.
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MaxLength=91
	// +kubebuilder:validation:items:Pattern=`^[0-9a-fA-F:.]+(/[0-9]+|\s*-\s*[0-9a-fA-F:.]+)?$`
	// +optional
	Ranges []string `json:"ranges,omitempty"`

	// exclude lists addresses that are not assigned, in the format of ranges.
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=91
	// +kubebuilder:validation:items:Pattern=`^[0-9a-fA-F:.]+(/[0-9]+|\s*-\s*[0-9a-fA-F:.]+)?$`
	// +optional
	Exclude []string `json:"exclude,omitempty"`

	// gateway is the gateway of the cidr. If empty, the gateway of the host's bridge is used if it is in the cidr, or if it
	// is a link-local IPv6 address and the host has an address in the cidr. If no interface has a default route then, the
	// address of the host on its bridge is used if it is in the cidr. Otherwise there is no gateway.
	// +kubebuilder:validation:MaxLength=45
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]{1,3}(\\\\.[0-9]{1,3}){3}|[0-9a-fA-F.]*:[0-9a-fA-F:.]*)$')",message="gateway must be an address without a prefix, like 192.168.0.1"
	// +optional
	Gateway string `json:"gateway,omitempty"`
}
