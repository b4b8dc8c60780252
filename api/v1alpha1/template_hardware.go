// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

// TPM is a virtual TPM device.
type TPM struct {
	// version is the TPM version: v1.2 or v2.0. The default is v2.0.
	// +kubebuilder:default="v2.0"
	// +kubebuilder:validation:Enum=v1.2;v2.0
	// +optional
	Version string `json:"version,omitempty"`
}

// Agent configures the QEMU guest agent.
type Agent struct {
	// enabled makes Proxmox expect the agent in the guest. The default is false.
	// +kubebuilder:default=false
	// +optional
	Enabled bool `json:"enabled"`

	// type is the device that the agent listens on: virtio or isa. The default is virtio.
	// +kubebuilder:default=virtio
	// +kubebuilder:validation:Enum=virtio;isa
	// +optional
	Type string `json:"type,omitempty"`

	// fsFreezeOnBackup freezes the guest's file systems during a backup.
	// +optional
	FSFreezeOnBackup *bool `json:"fsFreezeOnBackup,omitempty"`

	// fsTrimClonedDisks runs fstrim in the guest after its disk is moved or cloned.
	// +optional
	FSTrimClonedDisks *bool `json:"fsTrimClonedDisks,omitempty"`
}

// CPU configures the virtual CPU.
type CPU struct {
	// type is the CPU model that the guest sees. The default is x86-64-v2-AES.
	// +kubebuilder:default="x86-64-v2-AES"
	// +kubebuilder:validation:Enum=host;kvm64;x86-64-v2;x86-64-v2-AES;x86-64-v3;x86-64-v4
	// +optional
	Type string `json:"type,omitempty"`

	// flags enable (+) or disable (-) CPU features, as a list or as one string: [+aes, -pcid] or "+aes;-pcid".
	// +optional
	Flags CPUFlags `json:"flags,omitempty"`
}

// VGA configures the display.
type VGA struct {
	// type is the display device: none, serial0, std or vmware. serial0 replaces the display with a serial console. The
	// default is std.
	// +kubebuilder:default=std
	// +kubebuilder:validation:Enum=none;serial0;std;vmware
	// +optional
	Type string `json:"type,omitempty"`

	// memory is the memory of the display in MiB, from 4 to 512.
	// +kubebuilder:validation:Minimum=4
	// +kubebuilder:validation:Maximum=512
	// +optional
	Memory *int32 `json:"memory,omitempty"`
}

// NetworkInterface is one interface of the VM.
type NetworkInterface struct {
	// name is the name of the interface in Proxmox, for example net0. The default is net with the position in the list,
	// counted from 0, or the lowest free one if another interface has that name.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=5
	// +kubebuilder:validation:Pattern=`^net[0-9]+$`
	// +optional
	Name string `json:"name,omitempty"`

	// bridge is the network that the interface is attached to: a bridge of the host, like vmbr0, or a VNet of the SDN.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	// +required
	Bridge string `json:"bridge,omitempty"`

	// model is the model of the network card: e1000, e1000e, rtl8139, virtio or vmxnet3. The default is virtio.
	// +kubebuilder:default=virtio
	// +kubebuilder:validation:Enum=e1000;e1000e;rtl8139;virtio;vmxnet3
	// +optional
	Model string `json:"model,omitempty"`

	// mtu is the MTU of the interface, from 576 to 65520. 1 means the MTU of the bridge. The default is 1500.
	// +kubebuilder:default=1500
	// +kubebuilder:validation:XValidation:rule="self == 1 || (self >= 576 && self <= 65520)",message="mtu must be 1 (the MTU of the bridge) or from 576 to 65520"
	// +optional
	MTU uint16 `json:"mtu,omitempty"`

	// vlan is the VLAN tag of this interface, from 1 to 4094.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=4094
	// +optional
	VLAN uint16 `json:"vlan,omitempty"`

	// firewall enables the Proxmox firewall on this interface.
	// +optional
	Firewall *bool `json:"firewall,omitempty"`

	// address4 is a subnet like 192.168.0.0/24, from which every VM gets its own address, one IPv4 address with its prefix,
	// or dhcp.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:XValidation:rule="self.matches('^(dhcp|manual|[0-9]{1,3}([.][0-9]{1,3}){3}/[0-9]{1,2})$')",message="address4 must be an IPv4 address or subnet with its prefix, like 192.168.0.0/24, or dhcp"
	// +optional
	Address4 string `json:"address4,omitempty"`

	// address6 is a subnet like fd00::/64, from which every VM gets its own address, one IPv6 address with its prefix, dhcp,
	// or auto (from router advertisements).
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:XValidation:rule="self.matches('^(dhcp|auto|manual|[0-9a-fA-F.]*:[0-9a-fA-F:.]*/[0-9]{1,3})$')",message="address6 must be an IPv6 address or subnet with its prefix, like fd00::/64, or dhcp, or auto"
	// +optional
	Address6 string `json:"address6,omitempty"`

	// gateway4 is the IPv4 gateway.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:XValidation:rule="self.matches('^[0-9]{1,3}([.][0-9]{1,3}){3}$')",message="gateway4 must be an IPv4 address without prefix, like 192.168.0.1"
	// +optional
	Gateway4 string `json:"gateway4,omitempty"`

	// gateway6 is the IPv6 gateway.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:XValidation:rule="self.matches('^[0-9a-fA-F.]*:[0-9a-fA-F:.]*$')",message="gateway6 must be an IPv6 address without prefix, like fd00::1"
	// +optional
	Gateway6 string `json:"gateway6,omitempty"`

	// dnsServers are the addresses of the name servers.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=8
	// +kubebuilder:validation:items:MaxLength=64
	// +kubebuilder:validation:items:Pattern=`^([0-9]{1,3}([.][0-9]{1,3}){3}|[0-9a-fA-F.]*:[0-9a-fA-F:.]*)$`
	// +optional
	DNSServers []string `json:"dnsServers,omitempty"`
}

// PCIDevice is a PCI device of the host that is passed through to the VM.
type PCIDevice struct {
	// mapping is the name of the Proxmox resource mapping.
	// +kubebuilder:validation:MinLength=1
	// +required
	Mapping string `json:"mapping,omitempty"`

	// mdev is the type of the mediated device, for devices that several VMs share.
	// +optional
	MDev string `json:"mdev,omitempty"`

	// pcie attaches the device to PCI Express instead of PCI (machine type q35 only).
	// +optional
	PCIe *bool `json:"pcie,omitempty"`

	// xvga makes the device the primary display.
	// +optional
	XVGA *bool `json:"xvga,omitempty"`
}
