// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

// Events of a Claim while its VM is launched.
const (
	// EventVMLaunched means that the VM was started. The message contains its VMID and host, and when each step of the launch ended.
	EventVMLaunched = "VMLaunched"
	// EventVMWaitsForHost means that the launch waits for a host that was shut down to save energy and is being woken.
	EventVMWaitsForHost = "VMWaitsForHost"
	// EventWaitingForCapacity means that no host has capacity for a Claim of a static NodePool.
	EventWaitingForCapacity = "WaitingForCapacity"
	// EventHostPowerUnknown means that the launch waits, because the records of hosts that were shut down to save energy cannot be
	// read. The message contains the cause.
	EventHostPowerUnknown = "HostPowerUnknown"
	// EventNodeNotJoined means that the VM runs and has not become a Node.
	EventNodeNotJoined = "NodeNotJoined"
	// EventRegistrationInvalid means that the Node does not match its Claim: the boot data must be fixed.
	EventRegistrationInvalid = "RegistrationInvalid"
	// EventCloudControllerManagerMissing means that the kubelet waits for a cloud controller manager, and there is none.
	EventCloudControllerManagerMissing = "CloudControllerManagerMissing"
	// EventNodeCapacityIgnored means that the Node reports a capacity that new Nodes will not have, so it is not used for their
	// estimate. The message contains the reason.
	EventNodeCapacityIgnored = "NodeCapacityIgnored"
)

// Events of a Claim whose launch failed. They decide for how long and how widely the offering is avoided.
const (
	// EventCloneFailed means that Proxmox could not clone the template.
	EventCloneFailed = "CloneFailed"
	// EventTemplateUnusable means that the template does not exist, or has no boot disk.
	EventTemplateUnusable = "TemplateUnusable"
	// EventStartFailed means that Proxmox could not start the VM.
	EventStartFailed = "StartFailed"
	// EventBootDataFailed means that the boot data templates, or expressions in tags and description, do not render, or the boot
	// drive could not be created.
	EventBootDataFailed = "BootDataFailed"
	// EventPermissionMissing means that the credentials lack a privilege.
	EventPermissionMissing = "PermissionMissing"
	// EventProxmoxRefused means that Proxmox rejected a request for another reason.
	EventProxmoxRefused = "ProxmoxRefused"
	// EventStorageFull means that a storage has no space for the disk.
	EventStorageFull = "StorageFull"
	// EventCloneTooSlow means that a clone took longer than proxmox-task-timeout.
	EventCloneTooSlow = "CloneTooSlow"
	// EventLaunchTimeout means that transient errors continued until launch-retry-timeout.
	EventLaunchTimeout = "LaunchTimeout"
	// EventVMIDTaken means that another guest has the VMID.
	EventVMIDTaken = "VMIDTaken"
	// EventAddressTaken means that another guest has the address of the VM.
	EventAddressTaken = "AddressTaken"
	// EventStaleLock means that a crash of Proxmox left a locked, incomplete clone.
	EventStaleLock = "StaleLock"
	// EventInvalidLaunchIntent means that the NodeClass was deleted, or that labels or status of the NodeClaim name a VM that the
	// NodeClass and the configuration of the controller do not allow.
	EventInvalidLaunchIntent = "InvalidLaunchIntent"
	// EventInsufficientCapacity means that no host had capacity in time.
	EventInsufficientCapacity = "InsufficientCapacity"
)

// Events of a Claim whose VM cannot be deleted now. The deletion is retried.
const (
	// EventVMProtected means that the protection flag of the VM is set.
	EventVMProtected = "VMProtected"
	// EventVMLocked means that the VM is locked by a backup, another task or a crash.
	EventVMLocked = "VMLocked"
	// EventHostUnreachable means that the host or the Proxmox cluster of the VM is unreachable.
	EventHostUnreachable = "HostUnreachable"
	// EventOwnershipMarkLost means that the notes of the VM no longer contain the ownership mark.
	EventOwnershipMarkLost = "OwnershipMarkLost"
	// EventVMNotVisible means that the credentials cannot see the VM. It can be neither deleted nor adopted.
	EventVMNotVisible = "VMNotVisible"
	// EventCreatedByNewerController means that a newer release of the controller created the VM.
	EventCreatedByNewerController = "CreatedByNewerController"
	// EventVMNotAdopted means that another controller created the VM. The message contains the ownership mark to append to its
	// notes.
	EventVMNotAdopted = "VMNotAdopted"
	// EventVolumeAttached means that Proxmox would delete a volume that is not a disk of the VM.
	EventVolumeAttached = "VolumeAttached"
	// EventDiskNotDeleted means that Proxmox cannot delete a disk of the VM.
	EventDiskNotDeleted = "DiskNotDeleted"
	// EventProxmoxBusy means that the deletion waits for other requests to Proxmox, or for the deletion of other VMs. The message
	// contains for which.
	EventProxmoxBusy = "ProxmoxBusy"
	// EventRegionNotConfigured means that the cloud config does not contain the region of the VM.
	EventRegionNotConfigured = "RegionNotConfigured"
)

// Other events of Claims and their Nodes.
const (
	// EventVMAbandoned means that the Claim was finished although its VM was not deleted. The message contains what is left
	// of the VM.
	EventVMAbandoned = "VMAbandoned"
	// EventHostOffline means that the host of the VM is offline.
	EventHostOffline = "HostOffline"
	// EventHostOnline means that the host of the VM is online again.
	EventHostOnline = "HostOnline"
	// EventHostInMaintenance means that the Node is replaced because its host is in maintenance.
	EventHostInMaintenance = "HostInMaintenance"
	// EventHostMaintenanceTimeout means that the Claim is deleted because it was not replaced in time.
	EventHostMaintenanceTimeout = "HostMaintenanceTimeout"
	// EventHostMaintenanceBlocked means that the Claim is not deleted, because no other host could run its replacement.
	EventHostMaintenanceBlocked = "HostMaintenanceBlocked"
	// EventDriftDetected means that the Node drifted. The message contains the field with its old and new value.
	EventDriftDetected = "DriftDetected"
	// EventDriftWaitingForCapacity means that a drifted Node is not replaced, because no host has capacity for its
	// replacement. The NodePool gets it too.
	EventDriftWaitingForCapacity = "DriftWaitingForCapacity"
	// EventDriftTerminatingFirst means that the Node is deleted before its replacement is launched.
	EventDriftTerminatingFirst = "DriftTerminatingFirst"
	// EventInPlaceUpdateFailed means that a change of the NodeClass could not be written to the VM.
	EventInPlaceUpdateFailed = "InPlaceUpdateFailed"
	// EventBootDriveNotDeleted means that the Node is initialized, and the boot drive of its VM cannot be deleted. The message contains
	// the volume and the reason. The deletion is retried.
	EventBootDriveNotDeleted = "BootDriveNotDeleted"
	// EventVMAdopted means that the VM of another controller was adopted: an administrator added the ownership mark to its notes.
	EventVMAdopted = "VMAdopted"
	// EventAdoptionRefused means that the VM has an ownership mark and was not adopted, because something does not match. The
	// message contains what was found and what is expected. The VM is neither changed nor deleted.
	EventAdoptionRefused = "AdoptionRefused"
)

// Events of a Claim about the power state of its VM.
const (
	// EventVMStopped means that the VM is stopped, and Karpenter did not stop it.
	EventVMStopped = "VMStopped"
	// EventVMPaused means that the VM is paused, for example because its storage is full. Karpenter does not resume it.
	EventVMPaused = "VMPaused"
	// EventVMRestarted means that the VM was stopped and runs again.
	EventVMRestarted = "VMRestarted"
	// EventVMRestartFailed means that the VM is stopped and could not be started. The start is retried.
	EventVMRestartFailed = "VMRestartFailed"
	// EventVMRestartSuspended means that the VM is stopped and is not started, because its host is in maintenance, excluded
	// or shutting down.
	EventVMRestartSuspended = "VMRestartSuspended"
	// EventVMStoppedByHA means that Proxmox HA keeps the VM stopped, or starts it.
	EventVMStoppedByHA = "VMStoppedByHA"
	// EventVMCrashLooping means that the VM stopped again after each start. Its Claim is replaced.
	EventVMCrashLooping = "VMCrashLooping"
	// EventVMMigrated means that the VM is on another host than its zone label.
	EventVMMigrated = "VMMigrated"
	// EventVMNotFound means that the VM was deleted outside of Karpenter. Its Claim is replaced.
	EventVMNotFound = "VMNotFound"
	// EventReplacementBlocked means that so many VMs of a region are stopped or deleted that none is replaced.
	EventReplacementBlocked = "ReplacementBlocked"
)

// Events of orphaned VMs, on their former Claims.
const (
	// EventOrphanedVM means that a VM has no Claim and is not deleted, because the orphan-policy is report, or because only
	// its ownership mark shows that it is ours. The message contains the reason and the command to delete it.
	EventOrphanedVM = "OrphanedVM"
	// EventDuplicateVM means that two VMs are those of one Claim. Garbage collection deletes neither.
	EventDuplicateVM = "DuplicateVM"
	// EventOrphanedVMDeleted means that a VM without a Claim was deleted.
	EventOrphanedVMDeleted = "OrphanedVMDeleted"
)

// Events of other objects.
const (
	// EventNoHostFits means that no host can run a Node for the pod. The message lists what each host lacks.
	EventNoHostFits = "NoHostFits"
	// EventMultipleTemplatesMatch means that several templates on a host match a ProxmoxUnmanagedTemplate.
	EventMultipleTemplatesMatch = "MultipleTemplatesMatch"
	// EventWaitingOnNodeClaimTermination means that an object is not deleted while Claims use it.
	EventWaitingOnNodeClaimTermination = "WaitingOnNodeClaimTermination"
	// EventWaitingOnTemplateDeletion means that a ProxmoxTemplate is not deleted while its templates exist, or because an error
	// prevents the deletion of its templates or images. The deletion is retried.
	EventWaitingOnTemplateDeletion = "WaitingOnTemplateDeletion"
	// EventImageDownloadFailed means that a host could not download an image from one of its mirrors. It tries the next one.
	EventImageDownloadFailed = "ImageDownloadFailed"
	// EventImageChecksumChanged means that checksumURL of a ProxmoxTemplate lists another checksum, so a new template is built.
	EventImageChecksumChanged = "ImageChecksumChanged"
	// EventTemplatePreparing means that the builder VM of a ProxmoxTemplate was started on a host.
	EventTemplatePreparing = "TemplatePreparing"
	// EventTemplatePrepared means that the builder VM of a ProxmoxTemplate has powered itself off and becomes the template.
	EventTemplatePrepared = "TemplatePrepared"
	// EventTemplatePreparationFailed means that the builder VM of a ProxmoxTemplate failed. The message contains its host and
	// VMID, the cause, and the time of the next attempt.
	EventTemplatePreparationFailed = "TemplatePreparationFailed"
	// EventTemplateDiskNotDeleted means that a template of a ProxmoxTemplate was destroyed, but not a disk of it, or that its host
	// was removed from the Proxmox cluster. That is not retried: the message contains the command for an administrator.
	EventTemplateDiskNotDeleted = "TemplateDiskNotDeleted"
	// EventInvalidHostMaintenance means that the ConfigMap with hosts in maintenance has an invalid entry.
	EventInvalidHostMaintenance = "InvalidHostMaintenance"
	// EventInvalidHostFencing means that the ConfigMap with hosts that are powered off has an invalid entry.
	EventInvalidHostFencing = "InvalidHostFencing"
	// EventHostFencingEnded means that a host that was declared as powered off is online, and that its entry was deleted.
	EventHostFencingEnded = "HostFencingEnded"
	// EventHostShutDown means that a host is shut down to save energy.
	EventHostShutDown = "HostShutDown"
	// EventHostWoken means that a host that was shut down to save energy is woken.
	EventHostWoken = "HostWoken"
	// EventHostShutdownFailed means that a host could not be shut down to save energy.
	EventHostShutdownFailed = "HostShutdownFailed"
	// EventHostWakeFailed means that a host that was shut down to save energy did not wake up in time. It is an event of the
	// ConfigMap with these hosts, and of each Claim that waited for the host.
	EventHostWakeFailed = "HostWakeFailed"
	// EventInvalidDriftTerminateFirst means that AnnotationDriftTerminateFirst of a NodePool is invalid.
	EventInvalidDriftTerminateFirst = "InvalidDriftTerminateFirst"
)

// Reasons of the condition Drifted of a Claim.
const (
	// DriftNodeClass means that a field of the NodeClass changed that cannot be updated in place.
	DriftNodeClass = "NodeClassDrift"
	// DriftMachine means that the machine of the Claim was changed or removed in the NodeClass.
	DriftMachine = "MachineChanged"
	// DriftImage means that the Claim's Host has another Template now.
	DriftImage = "ImageDrift"
	// DriftBootData means that the content of the Secrets that boot data is made of changed.
	DriftBootData = "BootDataChanged"
	// DriftHostInMaintenance means that the Host of the VM is in maintenance.
	DriftHostInMaintenance = "HostInMaintenance"
	// DriftHostOffline means that the Host of the VM is offline for longer than host-drift-after.
	DriftHostOffline = "HostOffline"
	// DriftHostExcluded means that the Host of the VM is excluded by settings for longer than host-drift-after.
	DriftHostExcluded = "HostExcluded"
)

// Conditions that monitoring, such as node-problem-detector, may set on a Node to request a repair.
const (
	// NodeConditionGuestUnhealthy requests a replacement of the Node.
	NodeConditionGuestUnhealthy = "ProxmoxGuestUnhealthy"
	// NodeConditionRebootRequired requests a reboot of the Node.
	NodeConditionRebootRequired = "ProxmoxRebootRequired"
)
