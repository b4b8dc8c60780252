// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"github.com/awslabs/operatorpkg/status"
	corev1 "k8s.io/api/core/v1"
)

// Conditions of a ProxmoxNodeClass. Ready is true when all of them are.
const (
	// ConditionInstanceTemplateReady is true when the Template exists on at least one Host that can take VMs.
	ConditionInstanceTemplateReady = "InstanceTemplateReady"
	// ConditionInstanceMetadataOptionsReady is true when the Secrets of metadataOptions exist and their templates parse.
	ConditionInstanceMetadataOptionsReady = "InstanceMetadataOptionsReady"
	// ConditionClustersReachable is true when at least one Cluster of the class answers and takes our credentials.
	ConditionClustersReachable = "ClustersReachable"
	// ConditionPrivilegesSufficient is true when the credentials allow on at least one Host all that the life of a VM takes.
	ConditionPrivilegesSufficient = "PrivilegesSufficient"
	// ConditionStorageReady is true when a Host with the Template has storages for disk and boot drive.
	ConditionStorageReady = "StorageReady"
	// ConditionNetworkReady is true when such a Host has the bridges and VLANs of the Template's interfaces.
	ConditionNetworkReady = "NetworkReady"
	// ConditionSharesReady is true when such a Host has the directories of the shares.
	ConditionSharesReady = "SharesReady"
	// ConditionSecurityGroupsReady is true when the security groups exist.
	ConditionSecurityGroupsReady = "SecurityGroupsReady"
	// ConditionTagsAllowed is true when the Cluster lets us write the tags.
	ConditionTagsAllowed = "TagsAllowed"
	// ConditionResourcePoolReady is true when the resource pool exists.
	ConditionResourcePoolReady = "ResourcePoolReady"
	// ConditionCPULayoutReady is true when at least one Host can lay VMs out as the class asks: NUMA cells, cores, hugepages.
	ConditionCPULayoutReady = "CPULayoutReady"
)

// ConditionLaunchesHealthy is false while launches of the class keep failing, or clones take almost longer than Karpenter
// waits for a Node. It has no part in Ready.
const ConditionLaunchesHealthy = "LaunchesHealthy"

// ConditionAddressesAvailable is false while an address pool of the class has nothing left to give. It has no part in Ready:
// addresses come back. Classes without pools do not have it.
const ConditionAddressesAvailable = "AddressesAvailable"

// ReasonPoolExhausted says that all addresses of a pool are taken.
const ReasonPoolExhausted = "PoolExhausted"

// ConditionAddressPoolsConsistent is false while another class has a pool on the same network whose subnet overlaps and is another
// one. It has no part in Ready: no address is given twice. Classes without pools do not have it.
const ConditionAddressPoolsConsistent = "AddressPoolsConsistent"

// ReasonSubnetsOverlap says that two pools disagree about the prefix of their network.
const ReasonSubnetsOverlap = "SubnetsOverlap"

// ConditionCapacityAvailable is false while no Host can take even the smallest VM of the class; its message says why, Host by
// Host. It has no part in Ready: room comes and goes.
const ConditionCapacityAvailable = "CapacityAvailable"

// Reasons of conditions that other programs may know from before.
const (
	// ReasonTemplatesNotFound says that no Host has the Template.
	ReasonTemplatesNotFound = "TemplatesNotFound"
	// ReasonMetadataOptionsNotFound says that a Secret of metadataOptions does not exist or lacks a key.
	ReasonMetadataOptionsNotFound = "MetadataOptionsNotFound"
	// ReasonNoHostCanBind says that no Host can lay VMs out as spec.cpu asks.
	ReasonNoHostCanBind = "NoHostCanBind"
)

// Reasons of the other conditions when they are false.
const (
	// ReasonPrivilegesMissing says that the credentials lack privileges; the message names them by path.
	ReasonPrivilegesMissing = "PrivilegesMissing"
	// ReasonStorageUnsuitable says that a storage is not there, or does not take what it must.
	ReasonStorageUnsuitable = "StorageUnsuitable"
	// ReasonBridgesNotFound says that a bridge is not there, or does not carry a VLAN.
	ReasonBridgesNotFound = "BridgesNotFound"
	// ReasonNetworkInvalid says that spec.network, or ipconfigN of the Template, has a bad address pool or interface.
	ReasonNetworkInvalid = "NetworkInvalid"
	// ReasonDirectoriesNotFound says that a directory mapping is not there, or not on the Host.
	ReasonDirectoriesNotFound = "DirectoriesNotFound"
	// ReasonSecurityGroupsNotFound says that a security group does not exist.
	ReasonSecurityGroupsNotFound = "SecurityGroupsNotFound"
	// ReasonTagsForbidden says that the Cluster does not let us write a tag.
	ReasonTagsForbidden = "TagsForbidden"
	// ReasonResourcePoolNotFound says that the resource pool does not exist.
	ReasonResourcePoolNotFound = "ResourcePoolNotFound"
)

// ResourceZones is the key of status.resources that counts the usable zones (Hosts).
const ResourceZones corev1.ResourceName = "zones"

// ProxmoxNodeClassStatus is what the provider found out.
type ProxmoxNodeClassStatus struct {
	// conditions of this class. Ready is the sum of the others.
	// +optional
	Conditions []status.Condition `json:"conditions,omitempty"`

	// resources counts what the class can use; the key zones is the number of selected zones.
	// +optional
	Resources corev1.ResourceList `json:"resources,omitempty"`

	// selectedZones are the hosts where VMs of this class can be created, each with the VMID of its template, in the form
	// <region>/<host>/<vmid>.
	// +optional
	SelectedZones []string `json:"selectedZones,omitempty"`

	// unusableZones are the known hosts where VMs of this class cannot be created, and why.
	// This field is an addition of this provider.
	// +listType=map
	// +listMapKey=zone
	// +optional
	UnusableZones []UnusableZone `json:"unusableZones,omitempty"`
}

// UnusableZone is a Host that a NodeClass leaves out.
type UnusableZone struct {
	// zone is the host in the form <region>/<host>.
	// +required
	Zone string `json:"zone,omitempty"`

	// reason says in words why the host is left out.
	// +required
	Reason string `json:"reason,omitempty"`
}

// StatusConditions gives access to the conditions; Ready follows from the others.
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
