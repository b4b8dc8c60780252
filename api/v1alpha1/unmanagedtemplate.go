// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ProxmoxUnmanagedTemplate selects existing Proxmox templates, which the provider does not manage, by name, tags or VMID.
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=proxmoxunmanagedtemplates,scope=Cluster,categories=karpenter,shortName=put
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="Zones",type="string",JSONPath=".status.resources.zones",description="Number of hosts that have the template"
// +kubebuilder:printcolumn:name="Name",type="string",JSONPath=".spec.templateName",description="Name of the Proxmox template"
// +kubebuilder:printcolumn:name="Ready",type="string",JSONPath=".status.conditions[?(@.type==\"Ready\")].status",description="Whether at least one host has the template"
// +kubebuilder:printcolumn:name="Message",type="string",JSONPath=".status.conditions[?(@.type==\"Ready\")].message",priority=1,description="Why the template is not ready"
// +kubebuilder:printcolumn:name="Age",type="date",JSONPath=".metadata.creationTimestamp",description="Time since creation"
type ProxmoxUnmanagedTemplate struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitzero"`

	// spec selects the Proxmox templates.
	// +required
	Spec ProxmoxUnmanagedTemplateSpec `json:"spec,omitzero"`
	// status reports the hosts that have the templates.
	// +optional
	Status ProxmoxUnmanagedTemplateStatus `json:"status,omitzero"`
}

// ProxmoxUnmanagedTemplateList is a list of ProxmoxUnmanagedTemplates.
// +kubebuilder:object:root=true
type ProxmoxUnmanagedTemplateList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitzero"`

	Items []ProxmoxUnmanagedTemplate `json:"items"`
}

// ProxmoxUnmanagedTemplateSpec selects Proxmox templates. All criteria that are set must match.
// +kubebuilder:validation:XValidation:rule="has(self.templateName) || has(self.tags) || has(self.vmid)",message="set templateName, tags or both, or vmid: without either no template can be found"
type ProxmoxUnmanagedTemplateSpec struct {
	// region limits the search to one Proxmox cluster. If empty, all configured clusters are searched.
	// +kubebuilder:validation:MinLength=1
	// +optional
	Region string `json:"region,omitempty"`

	// templateName is the name of the Proxmox template.
	// +kubebuilder:validation:MinLength=1
	// +optional
	TemplateName string `json:"templateName,omitempty"`

	// tags are the tags that a Proxmox template must have. All of them must match.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=10
	// +kubebuilder:validation:items:MaxLength=124
	// +kubebuilder:validation:items:Pattern=`^[a-zA-Z0-9_][a-zA-Z0-9_+.-]*$`
	// +optional
	Tags []string `json:"tags,omitempty"`

	// vmid is the VMID of the Proxmox template.
	// +kubebuilder:validation:Minimum=100
	// +kubebuilder:validation:Maximum=999999999
	// +optional
	VMID int32 `json:"vmid,omitempty"`
}
