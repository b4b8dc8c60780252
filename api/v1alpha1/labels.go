// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
)

// Labels of Nodes and Claims. Pods and NodePools may select on them.
const (
	// LabelInstanceFamily is the family of the instance type, for example "t1".
	LabelInstanceFamily = Group + "/instance-family"
	// LabelInstanceCPU is the number of vCPUs of the VM. Requirements may compare it with Gt and Lt.
	LabelInstanceCPU = Group + "/instance-cpu"
	// LabelInstanceMemory is the memory of the VM in MiB. Requirements may compare it with Gt and Lt.
	LabelInstanceMemory = Group + "/instance-memory"
	// LabelInstanceCPUType is the CPU type that the guest sees, for example "x86-64-v2-AES".
	LabelInstanceCPUType = Group + "/instance-cpu-type"
	// LabelInstanceImageID is the ID of the image or Template that the VM was cloned from.
	LabelInstanceImageID = Group + "/instance-image-id"
	// LabelNodeClass is the name of the ProxmoxNodeClass. Karpenter derives the key from the kind and sets the label.
	LabelNodeClass = Group + "/proxmoxnodeclass"
)

// LabelBootstrapToken marks the Secrets of the join tokens that this provider issued, with the value "true".
const LabelBootstrapToken = Group + "/bootstrap-token"

// Annotations that store hashes. A Claim stores the value of its NodeClass at launch. A different value of the
// same hash version is drift.
const (
	// AnnotationNodeClassHash is the hash of the fields whose change replaces a Node.
	AnnotationNodeClassHash = Group + "/proxmoxnodeclass-hash"
	// AnnotationNodeClassHashVersion is the version of the hash in AnnotationNodeClassHash.
	AnnotationNodeClassHashVersion = Group + "/proxmoxnodeclass-hash-version"
	// AnnotationBootDataHash is the hash of what the boot data was made of. It is set only if the class replaces
	// Nodes when that changes.
	AnnotationBootDataHash = Group + "/proxmoxnodeclass-bootdata-hash"
)

// Annotations of a Claim that record the state of its VM.
const (
	// AnnotationHostMaintenanceSince is the time (RFC 3339) since when the Host of the VM is in maintenance. It is removed when the
	// maintenance ends.
	AnnotationHostMaintenanceSince = Group + "/host-maintenance-since"
	// AnnotationRebootOperation is the last reboot that Karpenter requested. It is recorded before the VM is reset.
	AnnotationRebootOperation = Group + "/reboot-operation"
)

// Annotations of a Claim that core stores with the plan of its VM.
const (
	// AnnotationLaunchedBy is on the Claims whose VM this controller launches, with the value LaunchedByVersion. It grants
	// nothing: it distinguishes them from Claims of another controller for Proxmox.
	AnnotationLaunchedBy = Group + "/launched-by"
	// LaunchedByVersion is the value of AnnotationLaunchedBy, and LaunchedByAdopted that of Claims whose VM another
	// controller launched, and that was adopted.
	LaunchedByVersion = "v1"
	LaunchedByAdopted = "adopted"
	// AnnotationHolds are the addresses, the machine, the devices and the storage of the VM as JSON. It grants nothing: others do
	// not get them, and the VM gets them again if it is planned again after a restart.
	AnnotationHolds = Group + "/holds"
)

// AnnotationDriftTerminateFirst is set on a NodePool by an administrator, with the value "true", to delete a drifted Node before
// its replacement is launched if no Host has capacity for both.
const AnnotationDriftTerminateFirst = Group + "/drift-terminate-first"

// AnnotationDriftTerminatedFirst is set on a NodePool to the last Node that was deleted because of AnnotationDriftTerminateFirst:
// when, and the UIDs of the controllers of its pods. No other Node is deleted until its pods are scheduled.
const AnnotationDriftTerminatedFirst = Group + "/drift-terminated-first"

// TerminationFinalizer keeps an object until its resources in Proxmox are deleted, or until it is no longer in use.
const TerminationFinalizer = Group + "/termination"

// Karpenter reads known labels from these two package variables. Both must be complete before the first Requirement is
// parsed, which only an init function guarantees.
func init() {
	karpv1.RestrictedLabelDomains.Insert(Group)
	karpv1.WellKnownLabels.Insert(
		LabelInstanceFamily,
		LabelInstanceCPU,
		LabelInstanceMemory,
		LabelInstanceCPUType,
		LabelInstanceImageID,
	)
}
