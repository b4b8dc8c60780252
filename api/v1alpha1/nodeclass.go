// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ProxmoxNodeClass defines how the VMs of a NodePool are created: template, storage, network and boot data.
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=proxmoxnodeclasses,scope=Cluster,categories=karpenter,shortName=pnc
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="Zones",type="string",JSONPath=".status.resources.zones",description="Number of hosts where VMs of this class can be created"
// +kubebuilder:printcolumn:name="Balance",type="string",JSONPath=".spec.placementStrategy.zoneBalance",description="How VMs are spread over hosts"
// +kubebuilder:printcolumn:name="Template",type="string",JSONPath=".spec.instanceTemplateRef.name",description="Template that VMs are cloned from"
// +kubebuilder:printcolumn:name="Metadata",type="string",JSONPath=".spec.metadataOptions.type",description="How boot data is passed to the VM"
// +kubebuilder:printcolumn:name="Disk",type="string",JSONPath=".spec.bootDevice.size",description="Minimum size of the boot disk"
// +kubebuilder:printcolumn:name="Ready",type="string",JSONPath=".status.conditions[?(@.type==\"Ready\")].status",description="Whether VMs of this class can be created"
// +kubebuilder:printcolumn:name="Message",type="string",JSONPath=".status.conditions[?(@.type==\"Ready\")].message",priority=1,description="Why the class is not ready"
// +kubebuilder:printcolumn:name="Age",type="date",JSONPath=".metadata.creationTimestamp",description="Time since creation"
type ProxmoxNodeClass struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitzero"`

	// spec defines how VMs are created.
	// +required
	Spec ProxmoxNodeClassSpec `json:"spec,omitzero"`
	// status reports the hosts where VMs can be created, and why other hosts cannot be used.
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

// ProxmoxNodeClassSpec defines how VMs are created. A change of a field replaces the nodes of the class (drift), unless the
// field's description states otherwise.
// +kubebuilder:validation:XValidation:rule="!has(self.placementStrategy) || !has(self.placementStrategy.poolAffinity) || self.placementStrategy.poolAffinity != 'SameCell' || (has(self.cpu) && (has(self.cpu.hugepages) || (has(self.cpu.numa) && self.cpu.numa == 'Bind') || (has(self.cpu.pinning) && self.cpu.pinning == 'Exclusive')))",message="poolAffinity SameCell needs VMs that are bound to NUMA cells: set cpu.numa to Bind"
// +kubebuilder:validation:XValidation:rule="!has(self.network) || !has(self.metadataOptions) || !has(self.metadataOptions.cloudInit) || !has(self.metadataOptions.cloudInit.snippets) || !has(self.metadataOptions.cloudInit.snippets.network)",message="metadataOptions.cloudInit.snippets.network replaces the settings of network: remove one of them"
// +kubebuilder:validation:XValidation:rule="!has(self.network) || !has(self.network.interfaces) || (has(self.metadataOptions) && has(self.metadataOptions.type) && self.metadataOptions.type in ['cdrom', 'fwcfg']) || self.network.interfaces.all(i, !has(i.defaultRoute) && !has(i.metric) && !has(i.routes) && !has(i.policyRoutes) && !has(i.dnsServers) && !has(i.searchDomains))",message="defaultRoute, metric, routes, policyRoutes, dnsServers and searchDomains of network.interfaces need boot data that the provider renders, because Proxmox's own drive cannot contain them: set metadataOptions.type to cdrom or fwcfg"
// +kubebuilder:validation:XValidation:rule="!has(self.highAvailability) || !has(self.highAvailability.separateHosts) || !self.highAvailability.separateHosts || (has(self.placementStrategy) && has(self.placementStrategy.poolAffinity) && self.placementStrategy.poolAffinity == 'SeparateHosts')",message="highAvailability.separateHosts needs placementStrategy.poolAffinity SeparateHosts: otherwise HA would move VMs right after they were created"
// +kubebuilder:validation:XValidation:rule="!has(self.disks) || !self.disks.exists(d, has(d.retain) && d.retain) || (has(self.machines) && self.machines.size() > 0 && self.machines.all(m, has(m.zone)))",message="a disk with retain belongs to a machine on one host: set machines, each with a zone"
type ProxmoxNodeClassSpec struct {
	// region is the Proxmox cluster that VMs are created in, by its name in the cloud config. If empty, all configured
	// clusters are used.
	// +kubebuilder:validation:MinLength=1
	// +optional
	Region string `json:"region,omitempty"`

	// placementStrategy defines how VMs are distributed over the hosts with sufficient capacity. A change applies to new VMs
	// only.
	// +kubebuilder:default={zoneBalance: Balanced}
	// +optional
	PlacementStrategy PlacementStrategy `json:"placementStrategy,omitzero" hash:"ignore"`

	// instanceTemplateRef names the template that VMs are cloned from.
	// +required
	InstanceTemplateRef InstanceTemplateReference `json:"instanceTemplateRef,omitzero"`

	// vmSize defines the sizes that VMs can have. A change applies to new VMs only. The upstream provider does not have this
	// field.
	// +optional
	VMSize VMSizing `json:"vmSize,omitzero" hash:"ignore"`

	// kubeletConfiguration contains fields of the kubelet's configuration file (kubelet.config.k8s.io/v1beta1). All of them are
	// accepted, also those that are not listed here, except for providerID, registerWithTaints and registerNode, which the
	// provider sets. The condition KubeletConfigurationValid reports fields that the kubelet does not have, and invalid values.
	// The boot data templates pass the fields to the guest.
	// +optional
	KubeletConfiguration *KubeletConfiguration `json:"kubeletConfiguration,omitempty"`

	// cpu defines how vCPUs and memory are placed on the cores and NUMA cells of the host. If empty, the controller's setting
	// node-policy applies. The upstream provider does not have this field.
	// +optional
	CPU *CPULayout `json:"cpu,omitempty"`

	// bootDevice is the disk that the VM boots from. The default size is 30G.
	// +kubebuilder:default={size: "30G"}
	// +optional
	BootDevice BootDevice `json:"bootDevice,omitzero"`

	// disks are more disks of the VM. They are created and deleted with the VM, except those with retain, and are available in the
	// boot data templates as .Disks. The upstream provider does not have this field.
	// +kubebuilder:validation:MaxItems=8
	// +listType=map
	// +listMapKey=name
	// +optional
	Disks []Disk `json:"disks,omitempty"`

	// machines are fixed identities of the Nodes: their names, hosts and addresses. Each VM of the class has one of them, and no VM
	// is created while none is free. Use them with a static NodePool whose limits.nodes is not higher than replicas. A change of a
	// machine replaces its Node only. The upstream provider does not have this field.
	// +kubebuilder:validation:MaxItems=100
	// +listType=map
	// +listMapKey=name
	// +optional
	Machines []Machine `json:"machines,omitempty" hash:"ignore"`

	// hardware sets options of the VM besides its size, for example a watchdog, a TPM or devices of the host. What is not set is
	// inherited from the template. The upstream provider does not have this field.
	// +optional
	Hardware *Hardware `json:"hardware,omitempty"`

	// description is a text in the VM's notes, below those of the provider. It can contain expressions as in
	// boot data templates, for example {{ .NodePool }}. A change applies to new VMs only. The upstream provider does not have
	// this field.
	// +kubebuilder:validation:MaxLength=2048
	// +optional
	Description string `json:"description,omitempty" hash:"ignore"`

	// tags are the Proxmox tags of the VM. A tag can contain expressions as in boot data templates, for example
	// pool-{{ .NodePool }}; a tag that renders to nothing is omitted. A change updates running VMs in place. The upstream provider
	// does not have expressions.
	// +kubebuilder:validation:MaxItems=10
	// +kubebuilder:validation:items:MaxLength=256
	// +kubebuilder:validation:items:Pattern=`^([a-zA-Z0-9_][a-zA-Z0-9_+.-]{0,123}|[^\n]*\{\{[^\n]*\}\}[^\n]*)$`
	// +optional
	Tags []string `json:"tags,omitempty" hash:"ignore"`

	// metadataOptions define how boot data (cloud-init or Ignition) is passed to the VM. A change applies to new VMs only.
	// +kubebuilder:default={type: none}
	// +optional
	MetadataOptions MetadataOptions `json:"metadataOptions,omitzero" hash:"ignore"`

	// network defines the interfaces of the VM and how they get their addresses. A change of an interface's device (bridge,
	// model, vlan, trunks, rateLimit, mtu, queues, firewall) replaces the nodes; any other change applies to new VMs only. The
	// upstream provider does not have this field.
	// +optional
	Network *Network `json:"network,omitempty" hash:"ignore"`

	// securityGroups are the Proxmox firewall security groups of the VM. A change updates running VMs in place.
	// +kubebuilder:validation:MaxItems=10
	// +optional
	SecurityGroups []SecurityGroup `json:"securityGroups,omitempty" hash:"ignore"`

	// resourcePool is the Proxmox resource pool of the VM. A change updates running VMs in place.
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:Pattern=`^[a-zA-Z0-9][a-zA-Z0-9._-]*(/[a-zA-Z0-9][a-zA-Z0-9._-]*){0,2}$`
	// +optional
	ResourcePool string `json:"resourcePool,omitempty" hash:"ignore"`

	// highAvailability adds the VM to Proxmox HA, which starts it again if it or its host fails. It needs the privilege
	// Sys.Console on /. If empty, VMs are not in HA. A change updates running VMs in place. The upstream provider does not have
	// this field.
	// +optional
	HighAvailability *HighAvailability `json:"highAvailability,omitempty" hash:"ignore"`

	// shares are host directories, defined by Proxmox directory mappings, that the guest can mount (virtiofs, Proxmox VE 8.4
	// and newer). They are available in the boot data templates as .Shares. The upstream provider does not have this field.
	// +kubebuilder:validation:MaxItems=10
	// +listType=map
	// +listMapKey=mapping
	// +optional
	Shares []Share `json:"shares,omitempty"`

	// hookScripts are scripts that run on the host when the VM starts or stops, in this order. Each is the name of a file in
	// the host's /etc/pve-hook.d. The template must have pve-hook as its hookscript. A change applies to new VMs only. The
	// upstream provider does not have this field.
	// +kubebuilder:validation:MaxItems=10
	// +kubebuilder:validation:items:Pattern=`^[a-zA-Z0-9][a-zA-Z0-9._-]{0,62}$`
	// +optional
	HookScripts []string `json:"hookScripts,omitempty" hash:"ignore"`
}

// ShareType is a method to share a directory of the Host with a guest.
// +kubebuilder:validation:Enum=virtiofs;plan9
type ShareType string

const (
	// ShareTypeVirtioFS is the method that Proxmox supports natively.
	ShareTypeVirtioFS ShareType = "virtiofs"
	// ShareTypePlan9 needs QEMU arguments and therefore a root login.
	ShareTypePlan9 ShareType = "plan9"
)

// Share is a directory of the Host that the guest can mount.
// +kubebuilder:validation:XValidation:rule="!has(self.cache) || !has(self.type) || self.type == 'virtiofs'",message="cache is only used with type virtiofs: remove it, or set type to virtiofs"
type Share struct {
	// type is virtiofs, or plan9 for guests without virtiofs support. plan9 needs a root login in the cloud config because
	// no API token may set QEMU arguments. The default is virtiofs.
	// +optional
	Type ShareType `json:"type,omitempty"`

	// mapping is the ID of a directory mapping (Datacenter, Resource Mappings). It is also the mount tag in the guest.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:Pattern=`^[a-zA-Z][a-zA-Z0-9_-]+$`
	// +required
	Mapping string `json:"mapping,omitempty"`

	// mountPath is the directory in the guest where the boot data templates mount the share. If empty, they do not mount it.
	// +kubebuilder:validation:Pattern=`^/[^\s]*$`
	// +optional
	MountPath string `json:"mountPath,omitempty"`

	// cache is the cache policy of virtiofs: auto, always, metadata or never. The default is Proxmox's.
	// +kubebuilder:validation:Enum=auto;always;metadata;never
	// +optional
	Cache string `json:"cache,omitempty"`
}

// IsPlan9 reports whether the directory is shared with type plan9.
func (s Share) IsPlan9() bool { return s.Type == ShareTypePlan9 }

// ZoneBalance is a preference among the Hosts with sufficient capacity for a VM.
// +kubebuilder:validation:Enum=Balanced;AvailabilityFirst;Packed
type ZoneBalance string

const (
	// ZoneBalanceBalanced prefers the Host with the most free capacity.
	ZoneBalanceBalanced ZoneBalance = "Balanced"
	// ZoneBalanceAvailabilityFirst prefers the Host with the fewest VMs of the NodePool.
	ZoneBalanceAvailabilityFirst ZoneBalance = "AvailabilityFirst"
	// ZoneBalancePacked prefers the Host with the least free capacity that is sufficient for the VM.
	ZoneBalancePacked ZoneBalance = "Packed"
)

// PoolAffinity restricts the Hosts of the VMs of one NodePool.
// +kubebuilder:validation:Enum=None;SameHost;SameCell;SeparateHosts
type PoolAffinity string

const (
	// PoolAffinityNone sets no restriction.
	PoolAffinityNone PoolAffinity = "None"
	// PoolAffinitySameHost keeps all VMs of a NodePool on one Host.
	PoolAffinitySameHost PoolAffinity = "SameHost"
	// PoolAffinitySameCell keeps all VMs of a NodePool in one NUMA cell of one Host.
	PoolAffinitySameCell PoolAffinity = "SameCell"
	// PoolAffinitySeparateHosts places at most one VM of a NodePool on each Host.
	PoolAffinitySeparateHosts PoolAffinity = "SeparateHosts"
)

// Reserve is the capacity that new VMs leave free.
// +kubebuilder:validation:Enum=None;LargestHost
type Reserve string

const (
	// ReserveNone leaves no capacity free.
	ReserveNone Reserve = "None"
	// ReserveLargestHost leaves free what the largest Host holds.
	ReserveLargestHost Reserve = "LargestHost"
)

// PlacementStrategy defines how VMs are distributed over Hosts.
type PlacementStrategy struct {
	// zoneBalance is Balanced (prefer the host with the most free capacity), AvailabilityFirst (prefer the host with the
	// fewest VMs of the NodePool) or Packed (prefer the host with the least free capacity that is sufficient, so other hosts
	// stay empty). The default is Balanced. The upstream provider does not have Packed.
	// +kubebuilder:default=Balanced
	// +optional
	ZoneBalance ZoneBalance `json:"zoneBalance,omitempty"`

	// poolAffinity restricts the hosts of all VMs of one NodePool and takes precedence over zoneBalance. SameHost keeps them
	// on one host, so their traffic stays on it. SameCell keeps them in one NUMA cell of one host and needs spec.cpu.
	// SeparateHosts places at most one of them on each host. If no host satisfies the rule, no VM is created. The default is
	// None. The upstream provider does not have this field.
	// +kubebuilder:default=None
	// +optional
	PoolAffinity PoolAffinity `json:"poolAffinity,omitempty"`

	// reserve is the capacity of the Proxmox cluster that new VMs leave free. LargestHost leaves free what the largest host
	// holds, so the guests of any one host fit on the others if it fails. A VM is not created if they would not fit. While a
	// host is offline or in maintenance, new VMs can use the reserve. The condition ReserveAvailable reports whether the guests
	// fit. The default is None. The upstream provider does not have this field.
	// +optional
	Reserve Reserve `json:"reserve,omitempty"`
}

// InstanceTemplateReference names a ProxmoxTemplate or a ProxmoxUnmanagedTemplate.
type InstanceTemplateReference struct {
	// kind is ProxmoxTemplate (the provider creates it from an image) or ProxmoxUnmanagedTemplate (you create it).
	// +kubebuilder:validation:Enum=ProxmoxTemplate;ProxmoxUnmanagedTemplate
	// +required
	Kind string `json:"kind,omitempty"`

	// name is the name of the ProxmoxTemplate or ProxmoxUnmanagedTemplate.
	// +kubebuilder:validation:MinLength=1
	// +required
	Name string `json:"name,omitempty"`
}

// BootDevice is the disk that a VM boots from.
// +kubebuilder:validation:XValidation:rule="[has(self.storage), has(self.storages), has(self.storageSelector)].filter(x, x).size() <= 1",message="set only one of storage, storages and storageSelector"
type BootDevice struct {
	// size is the minimum size of the disk, for example 30G or 30Gi. The disk is resized to this size, to the ephemeral storage
	// of the instance type, or to the size of the largest template's disk on all hosts, whichever is largest.
	// +optional
	Size DiskSize `json:"size,omitempty"`

	// storage is the Proxmox storage that the disk is created on. If none of storage, storages and storageSelector is set, the
	// storage of the template is used.
	// +kubebuilder:validation:MaxLength=30
	// +optional
	Storage string `json:"storage,omitempty"`

	// storages are Proxmox storages in order of preference. The disk is created on the first one that the host has and that
	// has enough free space. The upstream provider does not have this field.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=30
	// +listType=atomic
	// +optional
	Storages []string `json:"storages,omitempty"`

	// storageSelector is a CEL expression that selects storages of the host, for example storage.type == 'zfspool' &&
	// !storage.shared. It can use storage.name, storage.type, storage.free (bytes) and storage.shared. The disk is created on
	// the selected storage with the most free space. The upstream provider does not have this field.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1024
	// +optional
	StorageSelector string `json:"storageSelector,omitempty"`

	DiskOptions `json:",inline"`

	// fullClone copies the disk of the template. Otherwise the provider creates a linked clone if the storage supports it,
	// which takes seconds instead of minutes, but the template cannot be deleted before the VM. The disk is always copied if
	// the storage does not support linked clones or differs from the template's. The default is false. The upstream provider does not have this field.
	// +optional
	FullClone bool `json:"fullClone,omitempty"`
}

// SecretReference names a Secret.
// +structType=atomic
type SecretReference struct {
	// name is the name of the Secret.
	// +kubebuilder:validation:MinLength=1
	// +required
	Name string `json:"name,omitempty"`

	// namespace is the namespace of the Secret.
	// +kubebuilder:validation:MinLength=1
	// +required
	Namespace string `json:"namespace,omitempty"`
}

// SecurityGroup is a Proxmox firewall security group on one interface of a VM.
type SecurityGroup struct {
	// name is the name of the security group.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=30
	// +required
	Name string `json:"name,omitempty"`

	// interface is the interface of the VM that the group applies to. The default is net0.
	// +kubebuilder:default=net0
	// +kubebuilder:validation:Pattern=`^net[0-9]+$`
	// +optional
	Interface string `json:"interface,omitempty"`
}
