// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import "slices"

// Machine is the fixed identity of a Node. Each VM of a class with machines has one of them, and no two VMs have the same.
// +kubebuilder:validation:XValidation:rule="!has(self.region) || has(self.zone)",message="region is only used with zone: set zone, or remove region"
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.zone) || (has(self.zone) && self.zone == oldSelf.zone)",message="zone of a machine cannot be changed, because its retained disks are on that host: remove the machine, and add it again after its Node is deleted"
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.region) || (has(self.region) && self.region == oldSelf.region)",message="region of a machine cannot be changed, because its retained disks are in that Proxmox cluster: remove the machine, and add it again after its Node is deleted"
type Machine struct {
	// name is the name of the Node and of its VM. It must be unique in the Kubernetes cluster.
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`
	// +required
	Name string `json:"name,omitempty"`

	// zone is the host of the VM. If empty, it can be on any host of the class. It cannot be changed.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +optional
	Zone string `json:"zone,omitempty"`

	// region is the Proxmox cluster of the host, by its name in the cloud config. Set it if hosts of two regions have the same
	// name. It cannot be changed.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +optional
	Region string `json:"region,omitempty"`

	// addresses are the addresses of the VM, by interface. An interface that is not listed gets its addresses like those of other
	// VMs.
	// +kubebuilder:validation:MaxItems=6
	// +listType=map
	// +listMapKey=interface
	// +optional
	Addresses []MachineAddresses `json:"addresses,omitempty"`
}

// MachineAddresses are the addresses of one interface of a machine.
// +kubebuilder:validation:XValidation:rule="has(self.address4) || has(self.address6)",message="set address4, address6, or both"
type MachineAddresses struct {
	// interface is the name of the interface in Proxmox, for example net0.
	// +kubebuilder:validation:MaxLength=5
	// +kubebuilder:validation:Pattern=`^net[0-9]+$`
	// +required
	Interface string `json:"interface,omitempty"`

	// address4 is the IPv4 address. It must be in the cidr of the interface's address4, and can be outside its ranges.
	// +kubebuilder:validation:MaxLength=15
	// +kubebuilder:validation:XValidation:rule="self.matches('^[0-9]{1,3}(\\\\.[0-9]{1,3}){3}$')",message="address4 must be an IPv4 address without a prefix, like 192.168.0.10"
	// +optional
	Address4 string `json:"address4,omitempty"`

	// address6 is the IPv6 address. It must be in the cidr of the interface's address6, and can be outside its ranges.
	// +kubebuilder:validation:MaxLength=45
	// +kubebuilder:validation:XValidation:rule="self.matches('^[0-9a-fA-F.]*:[0-9a-fA-F:.]*$')",message="address6 must be an IPv6 address without a prefix, like 2001:db8::10"
	// +optional
	Address6 string `json:"address6,omitempty"`
}

// FindMachine returns the machine with a name; false if the class has none.
func (s ProxmoxNodeClassSpec) FindMachine(name string) (Machine, bool) {
	i := slices.IndexFunc(s.Machines, func(m Machine) bool { return m.Name == name })
	if i < 0 {
		return Machine{}, false
	}

	return s.Machines[i], true
}

// AllowsHost reports whether a VM of the machine may be on a host.
func (m Machine) AllowsHost(region, host string) bool {
	return (m.Zone == "" || m.Zone == host) && (m.Region == "" || m.Region == region)
}
