// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package nodeclass

import "github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"

// check is a requirement that each zone of a NodeClass must meet. Each check has its own
// condition.
type check struct {
	condition string
	// reason of the condition when no zone passes.
	reason string
	// run returns the problem of a zone; nil if it passes.
	run func(zone) *problem
}

// checks in the order in which a Host must pass them. Privileges come first: Proxmox
// hides objects that the token may not see, so they seem not to exist.
//
// To check a new field of the NodeClass, add a function checkX in a file check_x.go, a
// line here, and the condition to ProxmoxNodeClass.StatusConditions.
var checks = []check{
	{v1alpha1.ConditionPrivilegesSufficient, v1alpha1.ReasonPrivilegesMissing, checkPrivileges},
	{v1alpha1.ConditionInstanceTemplateReady, v1alpha1.ReasonTemplatesNotFound, checkTemplate},
	{v1alpha1.ConditionStorageReady, v1alpha1.ReasonStorageUnsuitable, checkStorage},
	{v1alpha1.ConditionNetworkReady, v1alpha1.ReasonBridgesNotFound, checkNetwork},
	{v1alpha1.ConditionSharesReady, v1alpha1.ReasonDirectoriesNotFound, checkShares},
	{v1alpha1.ConditionSecurityGroupsReady, v1alpha1.ReasonSecurityGroupsNotFound, checkSecurityGroups},
	{v1alpha1.ConditionTagsAllowed, v1alpha1.ReasonTagsForbidden, checkTags},
	{v1alpha1.ConditionResourcePoolReady, v1alpha1.ReasonResourcePoolNotFound, checkResourcePool},
	{v1alpha1.ConditionCPULayoutReady, v1alpha1.ReasonCPULayoutUnsupported, checkCPULayout},
	{v1alpha1.ConditionHardwareReady, v1alpha1.ReasonHardwareUnsupported, checkHardware},
	{v1alpha1.ConditionHighAvailabilityReady, v1alpha1.ReasonHighAvailabilityUnsupported, checkHighAvailability},
}
