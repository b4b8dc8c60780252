// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"github.com/awslabs/operatorpkg/status"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Conditions of a ProxmoxNodeClass. Ready is true when all of them are.
const (
	// ConditionInstanceTemplateReady is true when the Template exists on at least one usable Host.
	ConditionInstanceTemplateReady = "InstanceTemplateReady"
	// ConditionInstanceMetadataOptionsReady is true when the Secrets of metadataOptions exist and their templates parse.
	ConditionInstanceMetadataOptionsReady = "InstanceMetadataOptionsReady"
	// ConditionClustersReachable is true when at least one Cluster of the class responds and accepts the credentials.
	ConditionClustersReachable = "ClustersReachable"
	// ConditionPrivilegesSufficient is true when the credentials have all required privileges on at least one Host.
	ConditionPrivilegesSufficient = "PrivilegesSufficient"
	// ConditionStorageReady is true when a Host with the Template has storages for the disk and the boot drive.
	ConditionStorageReady = "StorageReady"
	// ConditionNetworkReady is true when such a Host has the bridges and VLANs of the Template's interfaces.
	ConditionNetworkReady = "NetworkReady"
	// ConditionSharesReady is true when such a Host has the directories of the shares.
	ConditionSharesReady = "SharesReady"
	// ConditionSecurityGroupsReady is true when the security groups exist.
	ConditionSecurityGroupsReady = "SecurityGroupsReady"
	// ConditionTagsAllowed is true when the Cluster permits the tags.
	ConditionTagsAllowed = "TagsAllowed"
	// ConditionResourcePoolReady is true when the resource pool exists.
	ConditionResourcePoolReady = "ResourcePoolReady"
	// ConditionCPULayoutReady is true when at least one Host supports spec.cpu: NUMA cells, cores, hugepages.
	ConditionCPULayoutReady = "CPULayoutReady"
	// ConditionHardwareReady is true when at least one Host supports spec.hardware: its Proxmox release, storages and devices.
	ConditionHardwareReady = "HardwareReady"
	// ConditionHighAvailabilityReady is true when at least one Host supports spec.highAvailability: its Proxmox release, HA
	// group and HA rules.
	ConditionHighAvailabilityReady = "HighAvailabilityReady"
	// ConditionKubeletConfigurationValid is true when spec.kubeletConfiguration has only fields and values that a kubelet accepts.
	ConditionKubeletConfigurationValid = "KubeletConfigurationValid"
)

// ConditionLaunchesHealthy is false while launches of the class keep failing, or while clones take nearly as long as
// Karpenter's timeout for a Node. It does not affect Ready.
const ConditionLaunchesHealthy = "LaunchesHealthy"

// ConditionAddressesAvailable is false while an address pool of the class is exhausted. It does not affect Ready because
// addresses are released over time. It is not set on classes without address pools.
const ConditionAddressesAvailable = "AddressesAvailable"

// ReasonAddressPoolExhausted means that all addresses of an address pool are in use.
const ReasonAddressPoolExhausted = "AddressPoolExhausted"

// ConditionAddressPoolsConsistent is false while another class has an address pool on the same network with an overlapping,
// different subnet. It does not affect Ready because no address is assigned twice. It is not set on classes without address
// pools.
const ConditionAddressPoolsConsistent = "AddressPoolsConsistent"

// ReasonSubnetsOverlap means that two address pools define different prefixes for one network.
const ReasonSubnetsOverlap = "SubnetsOverlap"

// ConditionCapacityAvailable is false while no Host has capacity for the smallest VM of the class. Its message lists the
// reason of each Host. It does not affect Ready because capacity changes all the time.
const ConditionCapacityAvailable = "CapacityAvailable"

// ConditionReserveAvailable is false while the guests of a Host would not fit on the other Hosts if it failed. Its message
// lists the Host, what its guests have, what the other Hosts have free, and what is missing. It does not affect Ready because
// existing Nodes are not affected. It is not set on classes without a reserve.
const ConditionReserveAvailable = "ReserveAvailable"

// ReasonInsufficientReserve means that the guests of a Host would not fit on the other Hosts if it failed.
const ReasonInsufficientReserve = "InsufficientReserve"

// Reasons of conditions that upstream uses as well.
const (
	// ReasonTemplatesNotFound means that no Host has the Template.
	ReasonTemplatesNotFound = "TemplatesNotFound"
	// ReasonMetadataOptionsNotFound means that a Secret of metadataOptions does not exist or lacks a key.
	ReasonMetadataOptionsNotFound = "MetadataOptionsNotFound"
)

// Reasons of the other conditions when they are false.
const (
	// ReasonPrivilegesMissing means that the credentials lack privileges. The message lists them by path.
	ReasonPrivilegesMissing = "PrivilegesMissing"
	// ReasonStorageUnsuitable means that a storage does not exist or lacks a content type.
	ReasonStorageUnsuitable = "StorageUnsuitable"
	// ReasonBridgesNotFound means that a bridge does not exist or does not carry a VLAN.
	ReasonBridgesNotFound = "BridgesNotFound"
	// ReasonNetworkInvalid means that spec.network or ipconfigN of the Template has an invalid address pool or interface.
	ReasonNetworkInvalid = "NetworkInvalid"
	// ReasonDirectoriesNotFound means that a directory mapping does not exist, or has no directory on the Host.
	ReasonDirectoriesNotFound = "DirectoriesNotFound"
	// ReasonSecurityGroupsNotFound means that a security group does not exist.
	ReasonSecurityGroupsNotFound = "SecurityGroupsNotFound"
	// ReasonTagsForbidden means that the Cluster does not permit a tag.
	ReasonTagsForbidden = "TagsForbidden"
	// ReasonCPULayoutUnsupported means that no Host supports spec.cpu.
	ReasonCPULayoutUnsupported = "CPULayoutUnsupported"
	// ReasonHardwareUnsupported means that no Host supports spec.hardware. The message names field, value and what is missing.
	ReasonHardwareUnsupported = "HardwareUnsupported"
	// ReasonHighAvailabilityUnsupported means that no Host supports spec.highAvailability. The message names field, value and
	// what exists.
	ReasonHighAvailabilityUnsupported = "HighAvailabilityUnsupported"
	// ReasonTextInvalid means that an expression in spec.tags or spec.description cannot be evaluated, or its result is invalid.
	ReasonTextInvalid = "TextInvalid"
	// ReasonResourcePoolNotFound means that the resource pool does not exist.
	ReasonResourcePoolNotFound = "ResourcePoolNotFound"
	// ReasonKubeletConfigurationInvalid means that a kubelet would not start with spec.kubeletConfiguration. The message names
	// the field, its value and what is allowed. Nodes are not replaced because of such a change.
	ReasonKubeletConfigurationInvalid = "KubeletConfigurationInvalid"
)

// Reasons of conditions that are false or unknown because of the state of a Proxmox cluster.
const (
	// ReasonClustersNotPolled means that a Proxmox cluster has not been polled yet.
	ReasonClustersNotPolled = "ClustersNotPolled"
	// ReasonNotChecked means that a condition is not checked until another one is true.
	ReasonNotChecked = "NotChecked"
	// ReasonNoHosts means that no host is known in the regions of the object.
	ReasonNoHosts = "NoHosts"
	// ReasonNoQuorum means that no reachable Proxmox cluster has quorum.
	ReasonNoQuorum = "NoQuorum"
	// ReasonClustersUnreachable means that no Proxmox cluster of the class is reachable.
	ReasonClustersUnreachable = "ClustersUnreachable"
	// ReasonRegionNotFound means that the cloud config does not contain the region.
	ReasonRegionNotFound = "RegionNotFound"
	// ReasonInsufficientCapacity means that no host has capacity for the smallest VM of the class.
	ReasonInsufficientCapacity = "InsufficientCapacity"
)

// ReasonNodeClassReadinessUnknown is the reason of the condition Launched of a Claim whose NodeClass is being checked.
const ReasonNodeClassReadinessUnknown = "NodeClassReadinessUnknown"

// ResourceZones is the key of status.resources that counts the usable zones (Hosts).
const ResourceZones corev1.ResourceName = "zones"

// ProxmoxNodeClassStatus is the observed state of a ProxmoxNodeClass.
type ProxmoxNodeClassStatus struct {
	// conditions are the conditions of this class. Ready summarizes the others.
	// +optional
	Conditions []status.Condition `json:"conditions,omitempty"`

	// resources counts the resources of the class. The key zones is the number of selectedZones that are not in unusableZones.
	// +optional
	Resources corev1.ResourceList `json:"resources,omitempty"`

	// selectedZones are the hosts where VMs of this class can be created, each with the VMID of its template, in the format
	// <region>/<host>/<vmid>. A host that is out of service remains here, and is in unusableZones too.
	// +optional
	SelectedZones []string `json:"selectedZones,omitempty"`

	// bootDataHash is a hash of what boot data is made of: the content of Secrets and the cloud-init settings. It is set only with
	// metadataOptions.onChange Replace. The upstream provider does not have this field.
	// +optional
	BootDataHash string `json:"bootDataHash,omitempty"`

	// unusableZones are the hosts where VMs of this class cannot be created now, and the reasons. Hosts that are offline, in
	// maintenance or excluded by settings are listed too. The upstream provider does not have this field.
	// +listType=map
	// +listMapKey=zone
	// +optional
	UnusableZones []UnusableZone `json:"unusableZones,omitempty"`

	// memoryOverhead is the memory that Nodes of this class do not report, as observed. It corrects the estimate in the capacity of
	// instance types. Remove an entry to learn it again. The upstream provider does not have this field.
	// +kubebuilder:validation:MaxItems=32
	// +listType=map
	// +listMapKey=image
	// +listMapKey=bios
	// +listMapKey=machine
	// +optional
	MemoryOverhead []MemoryOverhead `json:"memoryOverhead,omitempty"`

	// versions are the last versions of the fields whose change replaces nodes, newest first. The event DriftDetected names the
	// fields that changed since the version that a node was launched with. The upstream provider does not have this field.
	// +kubebuilder:validation:MaxItems=10
	// +listType=atomic
	// +optional
	Versions []NodeClassVersion `json:"versions,omitempty"`
}

// maxVersions is the maximum number of versions in the status.
const maxVersions = 10

// NodeClassVersion is a version of the fields of a NodeClass whose change replaces its Nodes.
type NodeClassVersion struct {
	// hash is the annotation karpenter.proxmox.sinextra.dev/proxmoxnodeclass-hash of nodes with these fields.
	// +required
	Hash string `json:"hash,omitempty"`

	// fields are the values by the path of the field below spec, for example bootDevice.size. Fields that are not set are omitted.
	// +optional
	Fields map[string]string `json:"fields,omitempty"`
}

// UnusableZone is a Host that a NodeClass cannot use.
type UnusableZone struct {
	// zone is the host in the format <region>/<host>.
	// +required
	Zone string `json:"zone,omitempty"`

	// reason describes why the host cannot be used.
	// +required
	Reason string `json:"reason,omitempty"`

	// since is when Proxmox was first seen to report that the host is offline or in maintenance. It is not set for other reasons.
	// +optional
	Since *metav1.Time `json:"since,omitempty"`
}

// StatusConditions returns the set of conditions, in which Ready is derived from the others.
func (in *ProxmoxNodeClass) StatusConditions(opts ...status.ForOption) status.ConditionSet {
	return status.NewReadyConditions(
		ConditionClustersReachable,
		ConditionPrivilegesSufficient,
		ConditionInstanceTemplateReady,
		ConditionStorageReady,
		ConditionNetworkReady,
		ConditionSharesReady,
		ConditionSecurityGroupsReady,
		ConditionTagsAllowed,
		ConditionResourcePoolReady,
		ConditionInstanceMetadataOptionsReady,
		ConditionCPULayoutReady,
		ConditionHardwareReady,
		ConditionHighAvailabilityReady,
		ConditionKubeletConfigurationValid,
	).For(in, opts...)
}

// GetConditions returns the conditions as stored.
func (in *ProxmoxNodeClass) GetConditions() []status.Condition {
	return in.Status.Conditions
}

// SetConditions replaces the conditions.
func (in *ProxmoxNodeClass) SetConditions(conditions []status.Condition) {
	in.Status.Conditions = conditions
}
