// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

// NUMAPolicy says how a VM's memory is tied to the cells of its Host.
// +kubebuilder:validation:Enum=None;Bind
type NUMAPolicy string

const (
	// NUMANone leaves memory to the Host's kernel.
	NUMANone NUMAPolicy = "None"
	// NUMABind gives the guest cells that match cells of the Host.
	NUMABind NUMAPolicy = "Bind"
)

// PinningPolicy says how a VM's vCPUs are tied to CPUs of its Host.
// +kubebuilder:validation:Enum=None;Exclusive
type PinningPolicy string

const (
	// PinningNone lets vCPUs float over all CPUs of the Host.
	PinningNone PinningPolicy = "None"
	// PinningExclusive gives the VM whole cores that no other pinned VM gets.
	PinningExclusive PinningPolicy = "Exclusive"
)

// HugepageSize is a size of memory pages.
// +kubebuilder:validation:Enum="2Mi";"1Gi"
type HugepageSize string

const (
	// Hugepages2Mi are pages of 2 MiB.
	Hugepages2Mi HugepageSize = "2Mi"
	// Hugepages1Gi are pages of 1 GiB.
	Hugepages1Gi HugepageSize = "1Gi"
)

// MiB is the size of a page; 0 where none is asked for.
func (s HugepageSize) MiB() int {
	switch s {
	case Hugepages2Mi:
		return 2
	case Hugepages1Gi:
		return 1024
	}
	return 0
}

// CPULayout says how vCPUs and memory lie on the Host's cores and NUMA cells.
// +kubebuilder:validation:MinProperties=1
// +kubebuilder:validation:XValidation:rule="!has(self.numa) || self.numa != 'None' || !has(self.pinning) || self.pinning != 'Exclusive'",message="pinning Exclusive needs numa Bind: leave numa out, or set it to Bind"
// +kubebuilder:validation:XValidation:rule="!has(self.numa) || self.numa != 'None' || !has(self.hugepages)",message="hugepages need numa Bind: leave numa out, or set it to Bind"
type CPULayout struct {
	// numa is None, or Bind: the guest sees NUMA cells that match cells of the host, and its memory comes from those. A VM
	// that fits into one cell gets one; else it is split evenly over as few as possible. An API token suffices for that.
	// Left out it is Bind with pinning or hugepages, else None. vCPUs float over the host's CPUs unless they are pinned.
	// +optional
	NUMA NUMAPolicy `json:"numa,omitempty"`

	// pinning is None, or Exclusive: the VM gets whole cores (all threads of them) that no other pinned VM gets. Proxmox
	// reserves that for root: it takes slot templates, a hookscript in the template, or a root login in the cloud config.
	// +optional
	Pinning PinningPolicy `json:"pinning,omitempty"`

	// hugepages is the size of the pages that the VM's memory is made of on the host: 2Mi or 1Gi. Proxmox reserves that
	// for root: it takes templates that have the option set, or a root login in the cloud config.
	// +optional
	Hugepages HugepageSize `json:"hugepages,omitempty"`
}

// Bound tells whether the guest's cells match the Host's.
func (l CPULayout) Bound() bool {
	return l.NUMA == NUMABind || l.Exclusive() || l.Hugepages != ""
}

// Exclusive tells whether the VM gets cores of its own.
func (l CPULayout) Exclusive() bool { return l.Pinning == PinningExclusive }
