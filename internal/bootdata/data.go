// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package bootdata

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Data is everything that templates can refer to. The root of the user-data template
// is Data, that of meta-data and vendor-data is Metadata, and that of network-config is
// Network. The reference page is generated from the comments of the fields.
type Data struct {
	// Metadata is the identity of the VM. It is the root of meta-data and vendor-data.
	Metadata Metadata `json:"metadata"`
	// Network is the VM's network configuration. It is the root of network-config.
	Network Network `json:"network"`
	// Resources is the VM's size.
	Resources Resources `json:"resources"`
	// Kubernetes is what the VM needs to join the Kubernetes cluster.
	Kubernetes Kubernetes `json:"kubernetes"`
	// Shares are directories of the host that the guest can mount.
	Shares []Share `json:"shares,omitempty"`
	// Disks are the disks besides the boot disk.
	Disks []Disk `json:"disks,omitempty"`
	// Values are the keys of the Secret that valuesRef names: .Values.apiServer is the key apiServer.
	Values map[string]string `json:"values"`
}

// Share is a directory of the host that the guest can mount (virtiofs).
type Share struct {
	// Tag is what the guest mounts: mount -t TYPE -o OPTIONS TAG PATH.
	Tag string `json:"tag"`
	// Type is the file system: virtiofs or 9p.
	Type string `json:"type"`
	// Options of the mount: trans=virtio for 9p, else defaults.
	Options string `json:"options"`
	// MountPath is the mount point in the guest; empty if the NodeClass does not set one.
	MountPath string `json:"mountPath"`
}

// Disk is a disk besides the boot disk. It is empty at the first boot.
type Disk struct {
	// Name is the name of the disk in the NodeClass, and its serial number.
	Name string `json:"name"`
	// Device is the path of the disk in /dev/disk/by-id.
	Device string `json:"device"`
	// Size is in bytes.
	Size int64 `json:"size"`
	// MountPath is the mount point in the guest; empty if the NodeClass does not set one.
	MountPath string `json:"mountPath,omitempty"`
	// FileSystem is the file system to create: ext4 or xfs.
	FileSystem string `json:"fileSystem"`
}

// Metadata is the identity of the VM.
type Metadata struct {
	// Hostname is the name of the VM, of its NodeClaim and of its Node.
	Hostname string `json:"hostname"`
	// InstanceID is the VMID.
	InstanceID string `json:"instanceID"`
	// InstanceUUID is the SMBIOS UUID, which is the NodeClaim's UID.
	InstanceUUID string `json:"instanceUUID"`
	// InstanceType is for example t1.2VCPU-6GB.
	InstanceType string `json:"instanceType"`
	// ProviderID is proxmox://<region>/<vmid>. The Node must have it: Karpenter finds the Node by it.
	ProviderID string `json:"providerID"`
	// Region is the Proxmox cluster.
	Region string `json:"region"`
	// Zone is the Proxmox host.
	Zone string `json:"zone"`
	// Tags are the tags of the NodeClass and of the VM.
	Tags []string `json:"tags,omitempty"`
	// NodeClass is the name of the ProxmoxNodeClass.
	NodeClass string `json:"nodeClass"`
	// NodePool is the name of the NodePool.
	NodePool string `json:"nodePool"`
}

// Resources is the VM's size.
type Resources struct {
	// CPU is the number of vCPUs.
	CPU int64 `json:"cpu"`
	// Memory is in bytes.
	Memory int64 `json:"memory"`
	// Hugepages1Gi is a number of pages.
	Hugepages1Gi int64 `json:"hugepages1Gi,omitempty"`
	// Hugepages2Mi is a number of pages.
	Hugepages2Mi int64 `json:"hugepages2Mi,omitempty"`
}

// Kubernetes is what the VM needs to join the Kubernetes cluster.
type Kubernetes struct {
	// Version is the API server's at the launch, for example v1.36.3.
	Version string `json:"version"`
	// RootCA is the PEM bundle that the API server's certificate chains to.
	RootCA string `json:"rootCA"`
	// BootstrapToken is the VM's own join token, id.secret. It expires after join-token-ttl, one hour by default, and is deleted when the Node is initialized.
	BootstrapToken string `json:"bootstrapToken,omitempty"`
	// KubeletConfiguration prints with toYaml as a complete config file of the kubelet, with providerID, taints and reserved resources. Its fields have their Go names: .MaxPods, .ClusterDNS.
	KubeletConfiguration KubeletConfiguration `json:"kubeletConfiguration"`
	// NodeLabels are the labels of the NodeClaim that a kubelet may set on its own Node. They print as key=value,key=value, the format of --node-labels; range iterates over key and value.
	NodeLabels Labels `json:"nodeLabels,omitempty"`
	// NodeTaints are the taints that the Node must register with, the same as in KubeletConfiguration. They print as key=value:effect,key=value:effect; range iterates over them, with .Key, .Value and .Effect.
	NodeTaints Taints `json:"nodeTaints,omitempty"`
}

// Network is the VM's network configuration.
type Network struct {
	// Interfaces are the network devices, net0 first.
	Interfaces []Interface `json:"interfaces"`
	// NameServers are addresses of DNS servers.
	NameServers []string `json:"nameServers,omitempty"`
	// SearchDomains are DNS suffixes.
	SearchDomains []string `json:"searchDomains,omitempty"`
}

// Interface is one network device of the VM. DHCPv4 is set if it has no address and
// none of DHCPv4, DHCPv6 and SLAAC.
type Interface struct {
	// Name is the device's name in the guest: eth0 for net0.
	Name string `json:"name"`
	// MacAddr is the device's hardware address.
	MacAddr string `json:"macAddr"`
	// DHCPv4 is whether to request an IPv4 address by DHCP.
	DHCPv4 bool `json:"dhcpv4,omitempty"`
	// DHCPv6 is whether to request an IPv6 address by DHCP.
	DHCPv6 bool `json:"dhcpv6,omitempty"`
	// SLAAC is whether to configure an IPv6 address from router advertisements.
	SLAAC bool `json:"slaac,omitempty"`
	// Address4 are IPv4 addresses in CIDR form.
	Address4 []string `json:"address4,omitempty"`
	// Address6 are IPv6 addresses in CIDR form.
	Address6 []string `json:"address6,omitempty"`
	// Gateway4 is the gateway of the IPv4 default route.
	Gateway4 string `json:"gateway4,omitempty"`
	// Gateway6 is the gateway of the IPv6 default route.
	Gateway6 string `json:"gateway6,omitempty"`
	// OnLink4 is whether Gateway4 is outside the subnet of Address4 and reachable directly, as with a /32.
	OnLink4 bool `json:"onLink4,omitempty"`
	// OnLink6 is the same for Gateway6.
	OnLink6 bool `json:"onLink6,omitempty"`
	// MTU is the MTU, 0 for the default.
	MTU int `json:"mtu,omitempty"`
	// Metric4 is the metric of the IPv4 default route, 0 for the guest's default.
	Metric4 int `json:"metric4,omitempty"`
	// Metric6 is the metric of the IPv6 default route, 0 for the guest's default.
	Metric6 int `json:"metric6,omitempty"`
	// NoDefaultRoute4 is whether the guest must ignore an IPv4 default route of DHCP on this device. Gateway4 is then empty.
	NoDefaultRoute4 bool `json:"noDefaultRoute4,omitempty"`
	// NoDefaultRoute6 is whether the guest must ignore an IPv6 default route of router advertisements. Gateway6 is then empty.
	NoDefaultRoute6 bool `json:"noDefaultRoute6,omitempty"`
	// Routes are more routes through this device.
	Routes []Route `json:"routes,omitempty"`
	// PolicyRoutes are routing rules.
	PolicyRoutes []PolicyRoute `json:"policyRoutes,omitempty"`
	// NameServers are addresses of DNS servers for this device, instead of those of Network.
	NameServers []string `json:"nameServers,omitempty"`
	// SearchDomains are DNS suffixes for this device, instead of those of Network.
	SearchDomains []string `json:"searchDomains,omitempty"`

	// NodeAddress4 is the address of the host on the bridge of the device, in CIDR form.
	NodeAddress4 string `json:"nodeAddress4,omitempty"`
	// NodeAddress6 is the same for IPv6.
	NodeAddress6 string `json:"nodeAddress6,omitempty"`
	// NodeGateway4 is the gateway of the host on that bridge.
	NodeGateway4 string `json:"nodeGateway4,omitempty"`
	// NodeGateway6 is the same for IPv6.
	NodeGateway6 string `json:"nodeGateway6,omitempty"`
}

// Route is a route of the guest.
type Route struct {
	// To is the destination in CIDR form.
	To string `json:"to"`
	// Via is the gateway; empty if the destination is on the link.
	Via string `json:"via,omitempty"`
	// OnLink is whether Via is outside the subnets of the device and reachable directly.
	OnLink bool `json:"onLink,omitempty"`
	// Metric is the metric, 0 for the guest's default.
	Metric int `json:"metric,omitempty"`
	// Table is the number of the routing table, 0 for the main table.
	Table int `json:"table,omitempty"`
}

// PolicyRoute is a routing rule of the guest.
type PolicyRoute struct {
	// From is the subnet of source addresses; empty for all.
	From string `json:"from,omitempty"`
	// To is the subnet of destination addresses; empty for all.
	To string `json:"to,omitempty"`
	// Table is the number of the routing table.
	Table int `json:"table"`
	// Priority is the position of the rule.
	Priority int `json:"priority"`
}

// withDefaults returns a copy of d with a Values map that is not nil, with a name and
// an address or DHCP for every interface, and only with labels that a kubelet may set.
func (d Data) withDefaults() Data {
	if d.Values == nil {
		d.Values = map[string]string{}
	}
	d.Kubernetes.NodeLabels = d.Kubernetes.NodeLabels.allowed()
	d.Network.Interfaces = slices.Clone(d.Network.Interfaces)
	for i := range d.Network.Interfaces {
		nic := &d.Network.Interfaces[i]
		if nic.Name == "" {
			nic.Name = fmt.Sprintf("eth%d", i)
		}
		automatic := nic.DHCPv4 || nic.DHCPv6 || nic.SLAAC
		if !automatic && len(nic.Address4) == 0 && len(nic.Address6) == 0 {
			nic.DHCPv4 = true
		}
	}
	return d
}

// valueKeys lists the keys of Values for messages: keys are not secret.
func (d Data) valueKeys() string {
	if len(d.Values) == 0 {
		return "valuesRef has no keys"
	}
	return "valuesRef has the keys " + strings.Join(slices.Sorted(maps.Keys(d.Values)), ", ")
}
