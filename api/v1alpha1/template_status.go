// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"github.com/awslabs/operatorpkg/status"
	corev1 "k8s.io/api/core/v1"
)

// ConditionTemplateReady is the condition of both kinds of template: at least one Host has it. Ready follows from it.
const ConditionTemplateReady = "ProxmoxVirtualMachineTemplateReady"

// ConditionTemplateUpToDate is a condition of ProxmoxTemplates: every Host has what the spec asks for. It is no part of Ready:
// a Host that lacks the Template, or still has that of an older generation, does not keep VMs from the others. Its message tells
// how far each Host is, or what to mend there.
const ConditionTemplateUpToDate = "UpToDate"

// Reasons of ConditionTemplateReady that other programs may know from before, beside ReasonTemplatesNotFound.
const (
	// ReasonTemplateValidation says that a Proxmox template was found but cannot be used.
	ReasonTemplateValidation = "TemplateValidation"
	// ReasonTemplateResolutionError says that the Template could not be made or looked up.
	ReasonTemplateResolutionError = "NodeTemplateClassResolutionError"
	// ReasonTemplateBuilding says that Templates are being made.
	ReasonTemplateBuilding = "Building"
)

// ProxmoxTemplateStatus is what the provider made.
type ProxmoxTemplateStatus struct {
	// conditions of this template. Ready is the sum of the others.
	// +optional
	Conditions []status.Condition `json:"conditions,omitempty"`

	// resources counts what is there; the key zones is the number of hosts that have the template.
	// +optional
	Resources corev1.ResourceList `json:"resources,omitempty"`

	// zones are the hosts that VMs can be cloned on, each with the VMID of the template that serves it, in the form
	// <region>/<host>/<vmid>. A template on shared storage serves every host that has the storage.
	// +optional
	Zones []string `json:"zones,omitempty"`

	// imageID is the file name of the image that the template was made from.
	// +optional
	ImageID string `json:"imageID,omitempty"`
}

// ProxmoxUnmanagedTemplateStatus is what the provider found. It is the same as that of a ProxmoxTemplate.
type ProxmoxUnmanagedTemplateStatus = ProxmoxTemplateStatus

// StatusConditions gives access to the conditions; Ready follows from the others.
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

// StatusConditions gives access to the conditions; Ready follows from the others.
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
