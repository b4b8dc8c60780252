// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package instancetype

import (
	"maps"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"sigs.k8s.io/karpenter/pkg/cloudprovider"
)

const (
	// fileSystemShare is the share of the boot disk that the Node reports. Boot and
	// firmware partitions and file system metadata use the rest.
	fileSystemShare = 0.93
	// diskEvictionShare is the share of free disk below which the kubelet evicts pods.
	diskEvictionShare = 0.10

	systemReservedMilliCPU = 10
	systemReservedMemory   = 64 * mib
	evictionMemory         = 100 * mib
	minKubeReservedMemory  = 256 * mib
)

// capacity returns the capacity that a Node of the type reports.
func (t Type) capacity(diskBytes, pods, memoryOverhead int64) corev1.ResourceList {
	memory := (t.MemoryBytes - memoryOverhead) / mib * mib
	list := corev1.ResourceList{
		corev1.ResourceCPU:              *resource.NewQuantity(int64(t.CPUs), resource.DecimalSI),
		corev1.ResourceMemory:           *resource.NewQuantity(memory, resource.BinarySI),
		corev1.ResourcePods:             *resource.NewQuantity(pods, resource.DecimalSI),
		corev1.ResourceEphemeralStorage: *resource.NewQuantity(nodeDisk(diskBytes), resource.BinarySI),
	}
	maps.Copy(list, t.Extra)
	return list
}

// nodeDisk returns the disk capacity that a Node reports for its boot disk.
func nodeDisk(diskBytes int64) int64 {
	return int64(float64(diskBytes)*fileSystemShare) / mib * mib
}

// overhead returns the part of the capacity that is not available to pods.
func (t Type) overhead(diskBytes int64) *cloudprovider.InstanceTypeOverhead {
	o := &cloudprovider.InstanceTypeOverhead{
		KubeReserved:      t.Overhead.KubeReserved,
		SystemReserved:    t.Overhead.SystemReserved,
		EvictionThreshold: t.Overhead.EvictionThreshold,
	}
	if o.KubeReserved == nil {
		o.KubeReserved = reserved(kubeReservedMilliCPU(t.CPUs), kubeReservedMemory(t.MemoryBytes))
	}
	if o.SystemReserved == nil {
		o.SystemReserved = reserved(systemReservedMilliCPU, systemReservedMemory)
	}
	if o.EvictionThreshold == nil {
		disk := int64(float64(nodeDisk(diskBytes)) * diskEvictionShare)
		o.EvictionThreshold = corev1.ResourceList{
			corev1.ResourceMemory:           *resource.NewQuantity(evictionMemory, resource.BinarySI),
			corev1.ResourceEphemeralStorage: *resource.NewQuantity(disk, resource.BinarySI),
		}
	}
	return o
}

func reserved(milliCPU, memory int64) corev1.ResourceList {
	return corev1.ResourceList{
		corev1.ResourceCPU:    *resource.NewMilliQuantity(milliCPU, resource.DecimalSI),
		corev1.ResourceMemory: *resource.NewQuantity(memory, resource.BinarySI),
	}
}

// kubeReservedMilliCPU returns 6 % of the first core, 1 % of the second, 0.5 % of the
// next two and 0.25 % of all others, rounded up.
func kubeReservedMilliCPU(cpus int) int64 {
	tenths := int64(0) // of a millicore
	for core := range cpus {
		switch {
		case core == 0:
			tenths += 600
		case core == 1:
			tenths += 100
		case core < 4:
			tenths += 50
		default:
			tenths += 25
		}
	}
	return (tenths + 9) / 10
}

// kubeReservedMemory returns 10 % of the first 4 GiB, 5 % of the next 12 GiB and 2 % of
// the rest, at least 256 MiB, rounded up to MiB.
func kubeReservedMemory(memory int64) int64 {
	percents := min(memory, 4*gib)*10 +
		min(max(memory-4*gib, 0), 12*gib)*5 +
		max(memory-16*gib, 0)*2
	bytes := max(percents/100, minKubeReservedMemory)
	return (bytes + mib - 1) / mib * mib
}
