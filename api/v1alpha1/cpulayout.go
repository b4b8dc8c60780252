// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

// NUMAPolicy defines how a VM's memory is bound to the NUMA cells of its Host.
// +kubebuilder:validation:Enum=None;Bind
type NUMAPolicy string

const (
	// NUMANone lets the Host's kernel place the memory.
	NUMANone NUMAPolicy = "None"
	// NUMABind gives the guest NUMA cells that match cells of the Host.
	NUMABind NUMAPolicy = "Bind"
)

// PinningPolicy defines how a VM's vCPUs are bound to CPUs of its Host.
// +kubebuilder:validation:Enum=None;Exclusive
type PinningPolicy string

const (
	// PinningNone lets vCPUs run on all CPUs of the Host.
	PinningNone PinningPolicy = "None"
	// PinningExclusive gives the VM whole cores that no other pinned VM uses.
	PinningExclusive PinningPolicy = "Exclusive"
)

// HugepageSize is the size of hugepages.
// +kubebuilder:validation:Enum="2Mi";"1Gi"
type HugepageSize string

const (
	// Hugepages2Mi are pages of 2 MiB.
	Hugepages2Mi HugepageSize = "2Mi"
	// Hugepages1Gi are pages of 1 GiB.
	Hugepages1Gi HugepageSize = "1Gi"
)

// MiB returns the page size in MiB, or 0 if no hugepages are requested.
func (s HugepageSize) MiB() int {
	switch s {
	case Hugepages2Mi:
		return 2
	case Hugepages1Gi:
		return 1024
	}
	return 0
}

// CPULayout defines how vCPUs and memory are placed on the Host's cores and NUMA cells.
// +kubebuilder:validation:MinProperties=1
// +kubebuilder:validation:XValidation:rule="!has(self.numa) || self.numa != 'None' || !has(self.pinning) || self.pinning != 'Exclusive'",message="pinning Exclusive needs numa Bind: remove numa or set it to Bind"
// +kubebuilder:validation:XValidation:rule="!has(self.numa) || self.numa != 'None' || !has(self.hugepages)",message="hugepages need numa Bind: remove numa or set it to Bind"
type CPULayout struct {
	// numa is None or Bind. With Bind the guest sees NUMA cells that match cells of the host, and its memory is allocated
	// from those. A VM that fits into one cell uses one; otherwise it is split evenly over as few cells as possible. An API
	// token is sufficient for Bind. The default is Bind if pinning or hugepages is set, otherwise None. vCPUs run on all
	// CPUs of the host unless they are pinned.
	// +optional
	NUMA NUMAPolicy `json:"numa,omitempty"`

	// pinning is None or Exclusive. With Exclusive the VM gets whole cores (all their threads) that no other pinned VM uses.
	// Proxmox allows only root to pin: use slot templates, a hookscript in the template, or a root login in the cloud config.
	// The default is None.
	// +optional
	Pinning PinningPolicy `json:"pinning,omitempty"`

	// hugepages is the size of the host's pages that back the VM's memory: 2Mi or 1Gi. Proxmox allows only root to set
	// this: use templates that have the option set, or a root login in the cloud config. The default is no hugepages.
	// +optional
	Hugepages HugepageSize `json:"hugepages,omitempty"`
}

// IsBound reports whether the guest's NUMA cells are bound to cells of the Host.
func (l CPULayout) IsBound() bool {
	return l.NUMA == NUMABind || l.IsExclusive() || l.Hugepages != ""
}

// IsExclusive reports whether the VM gets cores that no other pinned VM uses.
func (l CPULayout) IsExclusive() bool { return l.Pinning == PinningExclusive }
