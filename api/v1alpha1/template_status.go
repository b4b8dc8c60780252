// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"github.com/awslabs/operatorpkg/status"
	corev1 "k8s.io/api/core/v1"
)

// ConditionTemplateReady is a condition of both kinds of templates. It is true when at least one Host has the Template; for
// ProxmoxTemplates, a Host with the bridges of spec.network. Ready is derived from it.
const ConditionTemplateReady = "ProxmoxVirtualMachineTemplateReady"

// ConditionTemplateUpToDate is a condition of ProxmoxTemplates. It is true when every Host has the Template of the current
// spec. It does not affect Ready because a Host without it, or with that of an older generation, does not block the other
// Hosts. Its message lists the progress of each Host, or what to fix on it.
const ConditionTemplateUpToDate = "UpToDate"

// ConditionChecksumResolved is a condition of ProxmoxTemplates with a checksumURL. It is true when the checksum of the image
// was read. It does not affect Ready: if reading it again fails, the last checksum stays in use.
const ConditionChecksumResolved = "ChecksumResolved"

// ReasonChecksumUnavailable means that the checksum could not be read from checksumURL.
const ReasonChecksumUnavailable = "ChecksumUnavailable"

// Reasons of ConditionTemplateReady, besides ReasonTemplatesNotFound.
const (
	// ReasonTemplateValidation means that a Proxmox template was found but cannot be used.
	ReasonTemplateValidation = "TemplateValidation"
	// ReasonTemplateResolutionError means that the Template could not be created or found.
	ReasonTemplateResolutionError = "NodeTemplateClassResolutionError"
	// ReasonTemplateBuilding means that Templates are being created.
	ReasonTemplateBuilding = "Building"
)

// ProxmoxTemplateStatus is the observed state of a ProxmoxTemplate.
type ProxmoxTemplateStatus struct {
	// conditions are the conditions of this template. Ready summarizes the others.
	// +optional
	Conditions []status.Condition `json:"conditions,omitempty"`

	// resources counts the resources of the template. The key zones is the number of hosts that have the template.
	// +optional
	Resources corev1.ResourceList `json:"resources,omitempty"`

	// zones are the hosts on which VMs can be cloned, each with the VMID of its template, in the format
	// <region>/<host>/<vmid>. A template on shared storage is used by every host that has the storage.
	// +optional
	Zones []string `json:"zones,omitempty"`

	// imageID is the file name of the image that the template was created from.
	// +optional
	ImageID string `json:"imageID,omitempty"`

	// checksum is the checksum that was read from checksumURL of a ProxmoxTemplate.
	// +optional
	Checksum *ResolvedChecksum `json:"checksum,omitempty"`

	// preparation is the state of spec.prepare of a ProxmoxTemplate.
	// +optional
	Preparation *PreparationStatus `json:"preparation,omitempty"`
}

// ProxmoxUnmanagedTemplateStatus is the observed state of a ProxmoxUnmanagedTemplate.
type ProxmoxUnmanagedTemplateStatus = ProxmoxTemplateStatus

// StatusConditions returns the set of conditions, in which Ready is derived from the others.
func (in *ProxmoxTemplate) StatusConditions(opts ...status.ForOption) status.ConditionSet {
	return status.NewReadyConditions(ConditionTemplateReady).For(in, opts...)
}

// GetConditions returns the conditions as stored.
func (in *ProxmoxTemplate) GetConditions() []status.Condition {
	return in.Status.Conditions
}

// SetConditions replaces the conditions.
func (in *ProxmoxTemplate) SetConditions(conditions []status.Condition) {
	in.Status.Conditions = conditions
}

// StatusConditions returns the set of conditions, in which Ready is derived from the others.
func (in *ProxmoxUnmanagedTemplate) StatusConditions(opts ...status.ForOption) status.ConditionSet {
	return status.NewReadyConditions(ConditionTemplateReady).For(in, opts...)
}

// GetConditions returns the conditions as stored.
func (in *ProxmoxUnmanagedTemplate) GetConditions() []status.Condition {
	return in.Status.Conditions
}

// SetConditions replaces the conditions.
func (in *ProxmoxUnmanagedTemplate) SetConditions(conditions []status.Condition) {
	in.Status.Conditions = conditions
}
