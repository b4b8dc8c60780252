// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package bootdata

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Data is everything that templates can refer to. The user-data template gets
// all of it; meta-data and vendor-data get Metadata as their root, and
// network-config gets Network as its root.
type Data struct {
	Metadata   Metadata          `json:"metadata"`
	Network    Network           `json:"network"`
	Resources  Resources         `json:"resources"`
	Kubernetes Kubernetes        `json:"kubernetes"`
	Values     map[string]string `json:"values"`
}

// Metadata says who the VM is.
type Metadata struct {
	// Hostname is the VM's name, the claim's name and the Node's name.
	Hostname string `json:"hostname"`
	// InstanceID is the VMID.
	InstanceID string `json:"instanceID"`
	// InstanceUUID is the SMBIOS UUID.
	InstanceUUID string   `json:"instanceUUID"`
	InstanceType string   `json:"instanceType"`
	ProviderID   string   `json:"providerID"`
	Region       string   `json:"region"`
	Zone         string   `json:"zone"`
	Tags         []string `json:"tags,omitempty"`
	NodeClass    string   `json:"nodeClass"`
}

// Resources is the VM's size.
type Resources struct {
	// CPU is the number of vCPUs.
	CPU int64 `json:"cpu"`
	// Memory is in bytes.
	Memory int64 `json:"memory"`
	// Hugepages1Gi and Hugepages2Mi are numbers of pages.
	Hugepages1Gi int64 `json:"hugepages1Gi,omitempty"`
	Hugepages2Mi int64 `json:"hugepages2Mi,omitempty"`
}

// Kubernetes is what the VM needs to join the Kubernetes cluster.
type Kubernetes struct {
	// Version is the API server's version, for example v1.36.3.
	Version string `json:"version"`
	// RootCA is the PEM bundle that the API server's certificate chains to.
	RootCA string `json:"rootCA"`
	// BootstrapToken is a join token in the form id.secret.
	BootstrapToken string `json:"bootstrapToken,omitempty"`
	// KubeletConfiguration prints with toYaml as a complete kubelet config file.
	KubeletConfiguration KubeletConfiguration `json:"kubeletConfiguration"`
	// NodeLabels are the claim's labels that a kubelet may give to its own Node.
	// Printed as they are, they read key=value,key=value: the form of --node-labels.
	NodeLabels Labels `json:"nodeLabels,omitempty"`
	// NodeTaints are the taints that the Node must register with, the same as
	// in KubeletConfiguration. Each prints as key=value:effect.
	NodeTaints Taints `json:"nodeTaints,omitempty"`
}

// Network is the VM's network configuration.
type Network struct {
	Interfaces    []Interface `json:"interfaces"`
	NameServers   []string    `json:"nameServers,omitempty"`
	SearchDomains []string    `json:"searchDomains,omitempty"`
}

// Interface is one network device of the VM. One that has neither addresses nor
// any of DHCPv4, DHCPv6 and SLAAC gets DHCPv4.
type Interface struct {
	// Name is the device's name in the guest: eth0 for net0.
	Name    string `json:"name"`
	MacAddr string `json:"macAddr"`
	DHCPv4  bool   `json:"dhcpv4,omitempty"`
	DHCPv6  bool   `json:"dhcpv6,omitempty"`
	SLAAC   bool   `json:"slaac,omitempty"`
	// Address4 and Address6 are in CIDR form.
	Address4 []string `json:"address4,omitempty"`
	Address6 []string `json:"address6,omitempty"`
	Gateway4 string   `json:"gateway4,omitempty"`
	Gateway6 string   `json:"gateway6,omitempty"`
	MTU      int      `json:"mtu,omitempty"`

	// NodeAddress and NodeGateway are those of the Host's bridge that the
	// interface is plugged into.
	NodeAddress4 string `json:"nodeAddress4,omitempty"`
	NodeAddress6 string `json:"nodeAddress6,omitempty"`
	NodeGateway4 string `json:"nodeGateway4,omitempty"`
	NodeGateway6 string `json:"nodeGateway6,omitempty"`
}

// completed returns a copy of d in the form that templates rely on, whoever
// filled it: a Values map that can be asked, a way to an address for every
// interface, and only those labels that the API server lets a kubelet set.
func (d Data) completed() Data {
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

// valueKeys lists the names in Values, for messages: names are no secrets.
func (d Data) valueKeys() string {
	if len(d.Values) == 0 {
		return "valuesRef has no keys"
	}
	return "valuesRef has the keys " + strings.Join(slices.Sorted(maps.Keys(d.Values)), ", ")
}
