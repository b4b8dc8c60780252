// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

// Limits of status.memoryOverhead.
const (
	// MaxMemoryOverheads is the maximum number of images in status.memoryOverhead.
	MaxMemoryOverheads = 32
	// MaxMemoryOverheadSizes is the maximum number of sizes of an image in status.memoryOverhead.
	MaxMemoryOverheadSizes = 64
)

// MemoryOverhead is the memory that Nodes of an image do not report, because firmware and kernel use it.
type MemoryOverhead struct {
	// image is the image that the VMs of the Nodes were created from, as in status.imageID of their NodeClaims.
	// +required
	Image string `json:"image,omitempty"`

	// bios is the firmware of the VMs: seabios or ovmf.
	// +required
	BIOS string `json:"bios,omitempty"`

	// machine is the machine type of the VMs, for example q35.
	// +required
	Machine string `json:"machine,omitempty"`

	// sizes are the largest overheads of VMs of similar memory.
	// +kubebuilder:validation:MaxItems=64
	// +listType=map
	// +listMapKey=memoryMiB
	// +optional
	Sizes []MemoryOverheadSize `json:"sizes,omitempty"`

	// hugepages are the hugepages that Nodes of instance types with hugepages report, if they are less than those of the
	// instance type.
	// +kubebuilder:validation:MaxItems=64
	// +listType=map
	// +listMapKey=instanceType
	// +listMapKey=resource
	// +optional
	Hugepages []ObservedHugepages `json:"hugepages,omitempty"`
}

// MemoryOverheadSize is the largest overhead of VMs of similar memory.
type MemoryOverheadSize struct {
	// memoryMiB is the memory of the largest of these VMs.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1073741824
	// +required
	MemoryMiB int64 `json:"memoryMiB,omitempty"`

	// overheadMiB is the part of the memory that no Node reports, without 256 KiB for each CPU.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1073741824
	// +required
	OverheadMiB int64 `json:"overheadMiB"`
}

// ObservedHugepages is the smallest amount of hugepages that Nodes of an instance type report.
type ObservedHugepages struct {
	// instanceType is the name of the instance type.
	// +required
	InstanceType string `json:"instanceType,omitempty"`

	// resource is the name of the resource, for example hugepages-1Gi.
	// +required
	Resource string `json:"resource,omitempty"`

	// memoryMiB is the memory of these pages.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1073741824
	// +required
	MemoryMiB int64 `json:"memoryMiB"`
}
