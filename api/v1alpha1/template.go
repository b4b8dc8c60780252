// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ProxmoxTemplate is a Proxmox template that the provider creates from an image and keeps up to date on every host.
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=proxmoxtemplates,scope=Cluster,categories=karpenter,shortName=pt
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="Zones",type="string",JSONPath=".status.resources.zones",description="Number of hosts that have the template"
// +kubebuilder:printcolumn:name="Machine",type="string",JSONPath=".spec.machine",description="Machine type"
// +kubebuilder:printcolumn:name="CPU",type="string",JSONPath=".spec.cpu.type",description="CPU type"
// +kubebuilder:printcolumn:name="VGA",type="string",JSONPath=".spec.vga.type",description="Display type"
// +kubebuilder:printcolumn:name="Ready",type="string",JSONPath=".status.conditions[?(@.type==\"Ready\")].status",description="Whether at least one host has the template"
// +kubebuilder:printcolumn:name="Message",type="string",JSONPath=".status.conditions[?(@.type==\"Ready\")].message",priority=1,description="Why the template is not ready"
// +kubebuilder:printcolumn:name="Age",type="date",JSONPath=".metadata.creationTimestamp",description="Time since creation"
type ProxmoxTemplate struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitzero"`

	// spec defines the image and the hardware of the template.
	// +required
	Spec ProxmoxTemplateSpec `json:"spec,omitzero"`
	// status reports the hosts that have the template.
	// +optional
	Status ProxmoxTemplateStatus `json:"status,omitzero"`
}

// ProxmoxTemplateList is a list of ProxmoxTemplates.
// +kubebuilder:object:root=true
type ProxmoxTemplateList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitzero"`

	Items []ProxmoxTemplate `json:"items"`
}

// ProxmoxTemplateSpec defines the image and the hardware of a template. A change of image, preparation, storages, firmware or
// TPM creates a new template. A change of another field updates the existing template.
type ProxmoxTemplateSpec struct {
	// region limits the template to one Proxmox cluster. If empty, it is created in all configured clusters.
	// +kubebuilder:validation:MinLength=1
	// +optional
	Region string `json:"region,omitempty" hash:"ignore"`

	// description is the first line of the template's notes in Proxmox.
	// +kubebuilder:validation:MinLength=1
	// +optional
	Description string `json:"description,omitempty" hash:"ignore"`

	// sourceImage is the image that the template's disk is created from.
	// +required
	SourceImage SourceImage `json:"sourceImage,omitzero"`

	// storageIDs are the Proxmox storages to use. The first with content type import stores the downloaded image, the first
	// with content type images stores the template.
	// +kubebuilder:validation:MinItems=1
	// +required
	StorageIDs []string `json:"storageIDs,omitempty"`

	// prepare installs software in the template with a builder VM, so nodes do not install it at their first boot. The default
	// is a template that contains the image as it is.
	// +optional
	Prepare *Preparation `json:"prepare,omitempty"`

	// machine is the machine type: pc or q35. The default is q35.
	// +kubebuilder:default=q35
	// +kubebuilder:validation:Enum=pc;q35
	// +optional
	Machine string `json:"machine,omitempty" hash:"ignore"`

	// bios is the firmware: seabios or ovmf (UEFI). The default is seabios.
	// +kubebuilder:default=seabios
	// +kubebuilder:validation:Enum=seabios;ovmf
	// +optional
	BIOS string `json:"bios,omitempty"`

	// tpm adds a TPM device. The default is no TPM.
	// +optional
	TPM *TPM `json:"tpm,omitempty"`

	// agent configures the QEMU guest agent.
	// +optional
	Agent *Agent `json:"agent,omitempty" hash:"ignore"`

	// cpu configures the virtual CPU.
	// +kubebuilder:default={type: "x86-64-v2-AES"}
	// +optional
	CPU CPU `json:"cpu,omitzero" hash:"ignore"`

	// vga configures the display.
	// +optional
	VGA *VGA `json:"vga,omitempty" hash:"ignore"`

	// network lists the interfaces of the VM.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=6
	// +kubebuilder:validation:XValidation:rule="self.all(x, !has(x.name) || self.exists_one(y, has(y.name) && y.name == x.name))",message="two interfaces have the same name: give each its own, like net0 and net1"
	// +required
	Network []NetworkInterface `json:"network,omitempty" hash:"ignore"`

	// pciDevices are PCI devices of the host that are passed through to the VM.
	// +kubebuilder:validation:MaxItems=6
	// +optional
	PCIDevices []PCIDevice `json:"pciDevices,omitempty" hash:"ignore"`

	// tags are the Proxmox tags of the template.
	// +kubebuilder:validation:MaxItems=10
	// +kubebuilder:validation:items:MaxLength=124
	// +kubebuilder:validation:items:Pattern=`^[a-zA-Z0-9_][a-zA-Z0-9_+.-]*$`
	// +optional
	Tags []string `json:"tags,omitempty" hash:"ignore"`

	// resourcePool is the Proxmox resource pool of the template.
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:Pattern=`^[a-zA-Z0-9][a-zA-Z0-9._-]*(/[a-zA-Z0-9][a-zA-Z0-9._-]*){0,2}$`
	// +optional
	ResourcePool string `json:"resourcePool,omitempty" hash:"ignore"`

	// onBoot starts VMs of this template when their host boots. The default is false.
	// +optional
	OnBoot *bool `json:"onBoot,omitempty" hash:"ignore"`
}
