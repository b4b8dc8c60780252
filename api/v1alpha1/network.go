// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

// Network says how the interfaces of a VM get their addresses. What it leaves out stays as the template has it (its options
// ipconfigN, nameserver and searchdomain); an interface that neither names uses DHCP.
type Network struct {
	// interfaces of the VM, by the name that the template gives them.
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=6
	// +optional
	Interfaces []InterfaceAddresses `json:"interfaces,omitempty"`

	// dnsServers are the addresses of the name servers. Empty means those of the template.
	// +kubebuilder:validation:MaxItems=6
	// +kubebuilder:validation:items:MaxLength=45
	// +kubebuilder:validation:XValidation:rule="self.all(x, x.matches('^([0-9]{1,3}(\\\\.[0-9]{1,3}){3}|[0-9a-fA-F.]*:[0-9a-fA-F:.]*)$'))",message="dnsServers must be addresses, like 192.168.0.53 or 2001:db8::53"
	// +optional
	DNSServers []string `json:"dnsServers,omitempty"`

	// searchDomains are appended to names without a dot. Empty means those of the template.
	// +kubebuilder:validation:MaxItems=6
	// +kubebuilder:validation:items:MaxLength=253
	// +kubebuilder:validation:items:Pattern=`^[a-zA-Z0-9]([a-zA-Z0-9.-]*[a-zA-Z0-9])?$`
	// +optional
	SearchDomains []string `json:"searchDomains,omitempty"`
}

// InterfaceAddresses says how one interface of a VM gets its addresses.
type InterfaceAddresses struct {
	// name of the interface in Proxmox, for example net0. The template must have it.
	// +kubebuilder:validation:MaxLength=5
	// +kubebuilder:validation:Pattern=`^net[0-9]+$`
	// +required
	Name string `json:"name,omitempty"`

	// address4 is where the IPv4 address comes from. Empty means what the template says.
	// +kubebuilder:validation:XValidation:rule="!has(self.method) || self.method != 'SLAAC'",message="method SLAAC exists for IPv6 only: use DHCP or a cidr"
	// +kubebuilder:validation:XValidation:rule="!has(self.cidr) || !self.cidr.contains(':')",message="address4.cidr must be an IPv4 subnet, like 192.168.0.0/24"
	// +optional
	Address4 *AddressSource `json:"address4,omitempty"`

	// address6 is where the IPv6 address comes from. Empty means what the template says.
	// +kubebuilder:validation:XValidation:rule="!has(self.cidr) || self.cidr.contains(':') || !self.cidr.contains('.')",message="address6.cidr must be an IPv6 subnet, like 2001:db8::/64"
	// +optional
	Address6 *AddressSource `json:"address6,omitempty"`
}

// AddressMethod is a way for an interface to get an address without us.
// +kubebuilder:validation:Enum=DHCP;SLAAC;None
type AddressMethod string

const (
	// AddressMethodDHCP asks a DHCP server.
	AddressMethodDHCP AddressMethod = "DHCP"
	// AddressMethodSLAAC derives the address from what an IPv6 router announces.
	AddressMethodSLAAC AddressMethod = "SLAAC"
	// AddressMethodNone gives no address of that family.
	AddressMethodNone AddressMethod = "None"
)

// Rules here do without CEL's own functions for addresses, which a Kubernetes 1.30 does not let new CRDs use. What a pattern
// cannot tell, such as a gateway outside the cidr, the condition NetworkReady tells.

// AddressSource is a pool of addresses (cidr), or a way for the guest to get one by itself (method).
// +kubebuilder:validation:XValidation:rule="has(self.cidr) != has(self.method)",message="set either cidr (every VM gets an own address of it) or method (DHCP, SLAAC or None)"
// +kubebuilder:validation:XValidation:rule="has(self.cidr) || (!has(self.ranges) && !has(self.exclude) && !has(self.gateway))",message="ranges, exclude and gateway belong to a cidr"
type AddressSource struct {
	// method is DHCP, SLAAC (IPv6 only) or None, for addresses that do not come from a cidr.
	// +optional
	Method AddressMethod `json:"method,omitempty"`

	// cidr is the subnet that every VM gets an own address of, for example 192.168.0.0/24 or 2001:db8::/64. The network,
	// broadcast and gateway addresses are never given, nor is any that another guest, a host or a Node is known to have.
	// +kubebuilder:validation:MaxLength=43
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]{1,3}(\\\\.[0-9]{1,3}){3}/[0-9]{1,2}|[0-9a-fA-F.]*:[0-9a-fA-F:.]*/[0-9]{1,3})$')",message="cidr must be a subnet with its prefix, like 192.168.0.0/24"
	// +optional
	CIDR string `json:"cidr,omitempty"`

	// ranges limit the addresses to parts of the cidr, each an address, a range or a subnet: 192.168.0.10,
	// 192.168.0.50-192.168.0.99, 192.168.0.128/26. Empty means all of the cidr.
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MaxLength=91
	// +kubebuilder:validation:items:Pattern=`^[0-9a-fA-F:.]+(/[0-9]+|\s*-\s*[0-9a-fA-F:.]+)?$`
	// +optional
	Ranges []string `json:"ranges,omitempty"`

	// exclude takes addresses out again, written like ranges.
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=91
	// +kubebuilder:validation:items:Pattern=`^[0-9a-fA-F:.]+(/[0-9]+|\s*-\s*[0-9a-fA-F:.]+)?$`
	// +optional
	Exclude []string `json:"exclude,omitempty"`

	// gateway of the cidr. Empty means that of the host's bridge if it lies in the cidr, else the bridge's own address if
	// that does, else none.
	// +kubebuilder:validation:MaxLength=45
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]{1,3}(\\\\.[0-9]{1,3}){3}|[0-9a-fA-F.]*:[0-9a-fA-F:.]*)$')",message="gateway must be an address without a prefix, like 192.168.0.1"
	// +optional
	Gateway string `json:"gateway,omitempty"`
}
