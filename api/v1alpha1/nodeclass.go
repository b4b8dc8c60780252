// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ProxmoxNodeClass says how the VMs of a NodePool are made: from which Template, on which storage, with which boot data.
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=proxmoxnodeclasses,scope=Cluster,categories=karpenter,shortName=pnc
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="Zones",type="string",JSONPath=".status.resources.zones",description="Number of hosts where VMs of this class can be created"
// +kubebuilder:printcolumn:name="Balance",type="string",JSONPath=".spec.placementStrategy.zoneBalance",description="How VMs are spread over hosts"
// +kubebuilder:printcolumn:name="Template",type="string",JSONPath=".spec.instanceTemplateRef.name",description="Template that VMs are cloned from"
// +kubebuilder:printcolumn:name="Metadata",type="string",JSONPath=".spec.metadataOptions.type",description="How boot data reaches the VM"
// +kubebuilder:printcolumn:name="Disk",type="string",JSONPath=".spec.bootDevice.size",description="Smallest size of the boot disk"
// +kubebuilder:printcolumn:name="Ready",type="string",JSONPath=".status.conditions[?(@.type==\"Ready\")].status",description="Whether VMs of this class can be created"
// +kubebuilder:printcolumn:name="Why",type="string",JSONPath=".status.conditions[?(@.type==\"Ready\")].message",priority=1,description="What keeps it from being ready"
// +kubebuilder:printcolumn:name="Age",type="date",JSONPath=".metadata.creationTimestamp",description="Time since creation"
type ProxmoxNodeClass struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitzero"`

	// spec says how VMs are made.
	// +required
	Spec ProxmoxNodeClassSpec `json:"spec,omitzero"`
	// status says where VMs can be made, and why not elsewhere.
	// +optional
	Status ProxmoxNodeClassStatus `json:"status,omitzero"`
}

// ProxmoxNodeClassList is a list of ProxmoxNodeClasses.
// +kubebuilder:object:root=true
type ProxmoxNodeClassList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitzero"`

	Items []ProxmoxNodeClass `json:"items"`
}

// ProxmoxNodeClassSpec says how VMs are made. A change of a field replaces the Nodes of the class (drift), unless the field's
// comment says otherwise.
// +kubebuilder:validation:XValidation:rule="!has(self.placementStrategy) || !has(self.placementStrategy.poolAffinity) || self.placementStrategy.poolAffinity != 'SameCell' || (has(self.cpu) && (has(self.cpu.hugepages) || (has(self.cpu.numa) && self.cpu.numa == 'Bind') || (has(self.cpu.pinning) && self.cpu.pinning == 'Exclusive')))",message="poolAffinity SameCell needs VMs that are bound to cells: set cpu.numa to Bind"
// +kubebuilder:validation:XValidation:rule="!has(self.network) || !has(self.metadataOptions) || !has(self.metadataOptions.cloudInit) || !has(self.metadataOptions.cloudInit.snippets) || !has(self.metadataOptions.cloudInit.snippets.network)",message="metadataOptions.cloudInit.snippets.network takes the place of what network says: remove one of them"
type ProxmoxNodeClassSpec struct {
	// region is the Proxmox cluster that VMs are created in, as named in the controller's configuration.
	// Empty means every configured cluster.
	// +kubebuilder:validation:MinLength=1
	// +optional
	Region string `json:"region,omitempty"`

	// placementStrategy says how VMs are spread over the hosts that can take them.
	// A change applies to new VMs only.
	// +kubebuilder:default={zoneBalance: Balanced}
	// +optional
	PlacementStrategy PlacementStrategy `json:"placementStrategy,omitzero" hash:"ignore"`

	// instanceTemplateRef names the template that VMs are cloned from.
	// +required
	InstanceTemplateRef InstanceTemplateReference `json:"instanceTemplateRef,omitzero"`

	// kubeletConfiguration tunes the kubelet. It reaches the guest through the boot data templates.
	// +optional
	KubeletConfiguration *KubeletConfiguration `json:"kubeletConfiguration,omitempty"`

	// cpu says how vCPUs and memory lie on the cores and NUMA cells of the host. Left out, the controller's setting
	// node-policy decides. This field is an addition of this provider.
	// +optional
	CPU *CPULayout `json:"cpu,omitempty"`

	// bootDevice is the disk that the VM boots from.
	// +kubebuilder:default={size: "30G"}
	// +optional
	BootDevice BootDevice `json:"bootDevice,omitzero"`

	// tags are the Proxmox tags of the VM. A change is written to running VMs and replaces nothing.
	// +kubebuilder:validation:MaxItems=10
	// +kubebuilder:validation:items:MaxLength=124
	// +kubebuilder:validation:items:Pattern=`^[a-zA-Z0-9_][a-zA-Z0-9_+.-]*$`
	// +optional
	Tags []string `json:"tags,omitempty" hash:"ignore"`

	// metadataOptions say how boot data (cloud-init or Ignition) reaches the VM. A change applies to new VMs only.
	// +kubebuilder:default={type: none}
	// +optional
	MetadataOptions MetadataOptions `json:"metadataOptions,omitzero" hash:"ignore"`

	// network says how the interfaces of the VM get their addresses. A change applies to new VMs only.
	// This field is an addition of this provider.
	// +optional
	Network *Network `json:"network,omitempty" hash:"ignore"`

	// securityGroups are the Proxmox firewall security groups of the VM. A change is written to running VMs and replaces nothing.
	// +kubebuilder:validation:MaxItems=10
	// +optional
	SecurityGroups []SecurityGroup `json:"securityGroups,omitempty" hash:"ignore"`

	// resourcePool is the Proxmox resource pool of the VM. A change is written to running VMs and replaces nothing.
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:Pattern=`^[a-zA-Z0-9][a-zA-Z0-9._-]*(/[a-zA-Z0-9][a-zA-Z0-9._-]*){0,2}$`
	// +optional
	ResourcePool string `json:"resourcePool,omitempty" hash:"ignore"`

	// shares are directories of the host that the guest can mount, by Proxmox's directory mappings (virtiofs, Proxmox VE
	// 8.4 and newer). The boot data templates see them as .Shares. This field is an addition of this provider.
	// +kubebuilder:validation:MaxItems=10
	// +listType=map
	// +listMapKey=mapping
	// +optional
	Shares []Share `json:"shares,omitempty"`

	// hookScripts are scripts that run on the host when the VM starts or stops, in this order, by their names in the
	// host's /etc/pve-hook.d. The template must have pve-hook as its hookscript. A change applies to new VMs only.
	// This field is an addition of this provider.
	// +kubebuilder:validation:MaxItems=10
	// +kubebuilder:validation:items:Pattern=`^[a-zA-Z0-9][a-zA-Z0-9._-]{0,62}$`
	// +optional
	HookScripts []string `json:"hookScripts,omitempty" hash:"ignore"`
}

// ShareType is a way to share a directory of the Host.
// +kubebuilder:validation:Enum=virtiofs;plan9
type ShareType string

const (
	// ShareTypeVirtioFS is the way that Proxmox knows.
	ShareTypeVirtioFS ShareType = "virtiofs"
	// ShareTypePlan9 needs arguments of QEMU, and so a root login.
	ShareTypePlan9 ShareType = "plan9"
)

// Share is a directory of the Host that the guest can mount.
// +kubebuilder:validation:XValidation:rule="!has(self.cache) || !has(self.type) || self.type == 'virtiofs'",message="cache is only used with type virtiofs: remove it, or set type to virtiofs"
type Share struct {
	// type is virtiofs, or plan9 for guests that lack it. plan9 needs a root login in the cloud config: it takes arguments
	// of QEMU, which no token may set. Left out, it is virtiofs.
	// +optional
	Type ShareType `json:"type,omitempty"`

	// mapping is the ID of a directory mapping (Datacenter, Resource Mappings). The guest mounts it by this name.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:Pattern=`^[a-zA-Z][a-zA-Z0-9_-]+$`
	// +required
	Mapping string `json:"mapping,omitempty"`

	// mountPath is where the boot data templates mount it in the guest. Empty means: they leave it alone.
	// +kubebuilder:validation:Pattern=`^/[^\s]*$`
	// +optional
	MountPath string `json:"mountPath,omitempty"`

	// cache says what the guest keeps in memory: auto, always, metadata or never.
	// +kubebuilder:validation:Enum=auto;always;metadata;never
	// +optional
	Cache string `json:"cache,omitempty"`
}

// Plan9 tells whether it is shared by arguments of QEMU.
func (s Share) Plan9() bool { return s.Type == ShareTypePlan9 }

// ZoneBalance is a way to choose among the Hosts that can take a VM.
// +kubebuilder:validation:Enum=Balanced;AvailabilityFirst;Packed
type ZoneBalance string

const (
	// ZoneBalanceBalanced prefers the Host with the most room.
	ZoneBalanceBalanced ZoneBalance = "Balanced"
	// ZoneBalanceAvailabilityFirst prefers the Host with the fewest VMs of the NodePool.
	ZoneBalanceAvailabilityFirst ZoneBalance = "AvailabilityFirst"
	// ZoneBalancePacked prefers the fullest Host that can still take the VM.
	ZoneBalancePacked ZoneBalance = "Packed"
)

// PoolAffinity is a rule about the Hosts of one NodePool's VMs.
// +kubebuilder:validation:Enum=None;SameHost;SameCell;SeparateHosts
type PoolAffinity string

const (
	// PoolAffinityNone leaves the choice to ZoneBalance.
	PoolAffinityNone PoolAffinity = "None"
	// PoolAffinitySameHost keeps all VMs of a NodePool on one Host.
	PoolAffinitySameHost PoolAffinity = "SameHost"
	// PoolAffinitySameCell keeps all VMs of a NodePool in one NUMA cell of one Host.
	PoolAffinitySameCell PoolAffinity = "SameCell"
	// PoolAffinitySeparateHosts never puts two VMs of a NodePool on one Host.
	PoolAffinitySeparateHosts PoolAffinity = "SeparateHosts"
)

// PlacementStrategy says how VMs are spread over Hosts.
type PlacementStrategy struct {
	// zoneBalance is Balanced (prefer the host with the most room), AvailabilityFirst (prefer the host with the fewest VMs of
	// the NodePool) or Packed (prefer the fullest host that can take the VM, so that others stay empty). Packed is an addition
	// of this provider.
	// +kubebuilder:default=Balanced
	// +optional
	ZoneBalance ZoneBalance `json:"zoneBalance,omitempty"`

	// poolAffinity is a rule about all VMs of one NodePool, which zoneBalance cannot break: SameHost keeps them on one host,
	// so that their traffic never leaves it; SameCell even in one NUMA cell of it (it needs spec.cpu); SeparateHosts puts at most one of them on each host. A VM that the rule has no
	// host for is not made. This field is an addition of this provider.
	// +kubebuilder:default=None
	// +optional
	PoolAffinity PoolAffinity `json:"poolAffinity,omitempty"`
}

// InstanceTemplateReference names a ProxmoxTemplate or a ProxmoxUnmanagedTemplate.
type InstanceTemplateReference struct {
	// kind is ProxmoxTemplate (made by this provider from an image) or ProxmoxUnmanagedTemplate (made by you).
	// +kubebuilder:validation:Enum=ProxmoxTemplate;ProxmoxUnmanagedTemplate
	// +required
	Kind string `json:"kind,omitempty"`

	// name is the name of that object.
	// +kubebuilder:validation:MinLength=1
	// +required
	Name string `json:"name,omitempty"`
}

// BootDevice is the disk that a VM boots from.
type BootDevice struct {
	// size is the smallest size of the disk, for example 30G or 30Gi. The disk grows to this size or to the
	// ephemeral storage of the instance type, whichever is larger.
	// +optional
	Size DiskSize `json:"size,omitempty"`

	// storage is the Proxmox storage that the disk is created on. Empty means the storage of the template.
	// +kubebuilder:validation:MaxLength=30
	// +optional
	Storage string `json:"storage,omitempty"`

	// fullClone copies the disk of the template. Otherwise the disk is linked to the template's where the storage can do
	// that, which takes a moment instead of minutes, but ties the template to the VM's life. A copy is made in any case
	// where the storage cannot link, or is another one than the template's. This field is an addition of this provider.
	// +optional
	FullClone bool `json:"fullClone,omitempty"`
}

// SecretReference names a Secret.
// +structType=atomic
type SecretReference struct {
	// name of the Secret.
	// +kubebuilder:validation:MinLength=1
	// +required
	Name string `json:"name,omitempty"`

	// namespace of the Secret.
	// +kubebuilder:validation:MinLength=1
	// +required
	Namespace string `json:"namespace,omitempty"`
}

// SecurityGroup is a Proxmox firewall security group on one interface of a VM.
type SecurityGroup struct {
	// name of the security group.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=30
	// +required
	Name string `json:"name,omitempty"`

	// interface of the VM that the group applies to, for example net0.
	// +kubebuilder:default=net0
	// +kubebuilder:validation:Pattern=`^net[0-9]+$`
	// +optional
	Interface string `json:"interface,omitempty"`
}
