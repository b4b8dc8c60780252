// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// VMSizePolicy is how the size of a VM is chosen.
// +kubebuilder:validation:Enum=Exact;InstanceType
type VMSizePolicy string

const (
	// VMSizeExact gives a VM what its pods need.
	VMSizeExact VMSizePolicy = "Exact"
	// VMSizeInstanceType gives a VM the size of the instance type that Karpenter selects.
	VMSizeInstanceType VMSizePolicy = "InstanceType"
)

// VMSizing defines the sizes that VMs can have.
// +kubebuilder:validation:XValidation:rule="!has(self.min) || !has(self.max) || !has(self.min.cpu) || !has(self.max.cpu) || self.min.cpu <= self.max.cpu",message="min.cpu must not be greater than max.cpu"
// +kubebuilder:validation:XValidation:rule="!has(self.min) || !has(self.max) || !has(self.min.memory) || !has(self.max.memory) || quantity(self.min.memory).compareTo(quantity(self.max.memory)) <= 0",message="min.memory must not be greater than max.memory"
// +kubebuilder:validation:XValidation:rule="!has(self.memoryPerCPU) || !has(self.memoryPerCPU.min) || !has(self.memoryPerCPU.max) || quantity(self.memoryPerCPU.min).compareTo(quantity(self.memoryPerCPU.max)) <= 0",message="memoryPerCPU.min must not be greater than memoryPerCPU.max"
type VMSizing struct {
	// policy is Exact or InstanceType. Exact gives a VM the CPUs and memory that its pods, DaemonSets, reservations and
	// eviction thresholds need, rounded up to step. InstanceType gives it the size of the cheapest instance type that is large
	// enough. If empty, the controller's setting vm-size-policy applies.
	// +optional
	Policy VMSizePolicy `json:"policy,omitempty"`

	// min is the size of the smallest VM. The default is 1 CPU and 1Gi.
	// +optional
	Min VMSize `json:"min,omitzero"`

	// max is the size of the largest VM. The default is the largest instance type. With a larger value, Karpenter also creates
	// VMs that are larger than all instance types, if a host has the capacity.
	// +optional
	Max VMSize `json:"max,omitzero"`

	// step is what CPUs and memory are rounded up to. The default is 1 CPU and 256Mi.
	// +optional
	Step VMSize `json:"step,omitzero"`

	// memoryPerCPU limits the memory for each CPU. A VM below the minimum gets more memory, a VM above the maximum more CPUs.
	// +optional
	MemoryPerCPU MemoryRange `json:"memoryPerCPU,omitzero"`

	// headroomPercent is how much CPU and memory a VM gets in addition to what its pods need, for pods that are created later.
	// The default is 0.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=300
	// +optional
	HeadroomPercent int32 `json:"headroomPercent,omitempty"`
}

// VMSize is a number of CPUs and an amount of memory.
type VMSize struct {
	// cpu is a number of CPUs.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1024
	// +optional
	CPU int32 `json:"cpu,omitempty"`

	// memory is an amount of memory, for example 512Mi or 16Gi.
	// +optional
	Memory MemorySize `json:"memory,omitempty"`
}

// MemoryRange is a range of amounts of memory.
type MemoryRange struct {
	// min is the smallest amount, for example 1Gi.
	// +optional
	Min MemorySize `json:"min,omitempty"`

	// max is the largest amount, for example 8Gi.
	// +optional
	Max MemorySize `json:"max,omitempty"`
}

// MemorySize is an amount of memory in Mi or Gi.
// +kubebuilder:validation:MaxLength=10
// +kubebuilder:validation:Pattern=`^[1-9][0-9]*(Mi|Gi)$`
type MemorySize string

// Bytes returns the size in bytes, or 0 if the size is empty. It fails on any other format and on overflow.
func (s MemorySize) Bytes() (int64, error) {
	if s == "" {
		return 0, nil
	}
	for suffix, unit := range map[string]int64{"Mi": 1 << 20, "Gi": 1 << 30} {
		if digits, ok := strings.CutSuffix(string(s), suffix); ok {
			if count, err := strconv.ParseInt(digits, 10, 64); err == nil && count > 0 && count <= math.MaxInt64/unit {
				return count * unit, nil
			}
		}
	}
	return 0, fmt.Errorf("parsing memory size %q: want a number of Mi or Gi, like 512Mi", string(s))
}
