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
	// LabelInstanceCPUType is the CPU type that the VM shows to its guest, for example "x86-64-v2-AES".
	LabelInstanceCPUType = Group + "/instance-cpu-type"
	// LabelInstanceImageID is the ID of the image or Template that the VM was cloned from.
	LabelInstanceImageID = Group + "/instance-image-id"
	// LabelNodeClass is the name of the ProxmoxNodeClass. Karpenter itself derives the key from the kind and sets it.
	LabelNodeClass = Group + "/proxmoxnodeclass"
)

// LabelBootstrapToken marks the Secrets of the join tokens that this provider issued, with the value "true".
const LabelBootstrapToken = Group + "/bootstrap-token"

// Annotations that carry hashes. A Claim holds the value of its NodeClass or Template at launch; a difference is drift,
// but only between hashes of the same version.
const (
	// AnnotationNodeClassHash is the hash of the fields whose change replaces a Node.
	AnnotationNodeClassHash = Group + "/proxmoxnodeclass-hash"
	// AnnotationNodeClassHashVersion is the HashVersion that AnnotationNodeClassHash was made with.
	AnnotationNodeClassHashVersion = Group + "/proxmoxnodeclass-hash-version"
	// AnnotationInPlaceUpdateHash is, on a Claim, the hash of the fields that were last written to its running VM.
	AnnotationInPlaceUpdateHash = Group + "/proxmoxnodeinplaceupdate-hash"
	// AnnotationTemplateHash is the hash of the fields whose change makes a new Template.
	AnnotationTemplateHash = Group + "/proxmoxtemplate-hash"
	// AnnotationTemplateHashVersion is the HashVersion that AnnotationTemplateHash was made with.
	AnnotationTemplateHashVersion = Group + "/proxmoxtemplate-hash-version"
	// AnnotationTemplateInPlaceUpdateHash is the hash of the fields that were last written to the existing Template.
	AnnotationTemplateInPlaceUpdateHash = Group + "/proxmoxtemplateinplaceupdate-hash"
)

// Annotations of a Claim that record what its VM was given.
const (
	// AnnotationResourcePool is the Proxmox resource pool that the VM was put into.
	AnnotationResourcePool = Group + "/proxmoxnodeclass-pool"
	// AnnotationBootDataStatus is BootDataInitialized once the guest has read its boot data and the ISO is gone.
	AnnotationBootDataStatus = Group + "/proxmoxcloudinit-status"
	// AnnotationBootDataToken is the ID (never the secret) of the join token in the boot data.
	AnnotationBootDataToken = Group + "/proxmoxcloudinit-token"

	// AnnotationHost is the Host that the VM was migrated to, when it is no longer on the one that its zone label names.
	AnnotationHost = Group + "/host"
	// AnnotationHostSince is the time (RFC 3339) when the VM was first seen there.
	AnnotationHostSince = Group + "/host-since"
	// AnnotationRebootOperation is the last reboot that Karpenter asked for, so that its retries restart the VM once.
	AnnotationRebootOperation = Group + "/reboot-operation"

	// BootDataInitialized is the final value of AnnotationBootDataStatus.
	BootDataInitialized = "Initialized"
)

// Annotations of a Claim that make its launch resumable. Karpenter's own patches of a Claim rewrite the whole list of
// conditions, but never these keys, so they survive a crash of the controller at any point.
const (
	// AnnotationLaunchIntent is written before anything happens in Proxmox. It holds, as JSON, the Cluster, Host and VMID
	// that the VM will have and the Template that it is cloned from. A controller that finds it adopts that VMID or gives
	// it up, and never tries another one.
	AnnotationLaunchIntent = Group + "/launch-intent"
	// AnnotationLaunchTask is the UPID of the clone task, written as soon as Proxmox has accepted the clone.
	AnnotationLaunchTask = Group + "/launch-task"
	// AnnotationLaunchProgress holds, as JSON, the launch step that was reached and when each step ended.
	AnnotationLaunchProgress = Group + "/launch-progress"
	// AnnotationLaunchCompleted is the time (RFC 3339) when the VM was seen running. With it the launch is over.
	AnnotationLaunchCompleted = Group + "/launch-completed"
)

// AnnotationAdopt is set on a Claim by an admin, to hand its VM over that another controller made. The value is the VM's
// SMBIOS UUID, which the Claim's Node shows as its system UUID. It stays as the record of whose word it was.
const AnnotationAdopt = Group + "/adopt"

// TerminationFinalizer keeps an object until what was made for it in Proxmox is gone, or until nothing uses it any more.
const TerminationFinalizer = Group + "/termination"

// Karpenter knows labels only through these two package variables. Both must be complete before the first Requirement is
// parsed, which no constructor could promise, hence an init function.
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
