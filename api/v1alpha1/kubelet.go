// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// KubeletConfiguration contains the kubelet settings that a NodeClass can change. Names and meaning are those of the kubelet.
//
// Durations have a pattern although their Go type rejects invalid text as well: a value that the API server accepts but that
// does not decode would break every watch on NodeClasses, not only this object.
// +kubebuilder:validation:XValidation:rule="!has(self.imageGCHighThresholdPercent) || !has(self.imageGCLowThresholdPercent) || self.imageGCHighThresholdPercent > self.imageGCLowThresholdPercent",message="imageGCHighThresholdPercent must be greater than imageGCLowThresholdPercent"
type KubeletConfiguration struct {
	// cpuManagerPolicy is none or static. The default is the kubelet's.
	// +kubebuilder:validation:Enum=none;static
	// +optional
	CPUManagerPolicy string `json:"cpuManagerPolicy,omitempty"`

	// cpuCFSQuota enforces the CPU limits of containers.
	// +optional
	CPUCFSQuota *bool `json:"cpuCFSQuota,omitempty"`

	// cpuCFSQuotaPeriod is the CFS quota period, for example 100ms.
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:Pattern=`^([0-9]+(\.[0-9]+)?(ns|us|µs|ms|s|m|h))+$`
	// +optional
	CPUCFSQuotaPeriod *metav1.Duration `json:"cpuCFSQuotaPeriod,omitempty"`

	// topologyManagerPolicy is none, best-effort, restricted or single-numa-node.
	// +kubebuilder:validation:Enum=restricted;best-effort;none;single-numa-node
	// +optional
	TopologyManagerPolicy string `json:"topologyManagerPolicy,omitempty"`

	// topologyManagerScope is container or pod.
	// +kubebuilder:validation:Enum=container;pod
	// +optional
	TopologyManagerScope string `json:"topologyManagerScope,omitempty"`

	// imageGCHighThresholdPercent is the disk usage in percent above which unused images are always deleted.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=100
	// +optional
	ImageGCHighThresholdPercent *int32 `json:"imageGCHighThresholdPercent,omitempty"`

	// imageGCLowThresholdPercent is the disk usage in percent below which no images are deleted.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=100
	// +optional
	ImageGCLowThresholdPercent *int32 `json:"imageGCLowThresholdPercent,omitempty"`

	// shutdownGracePeriod is how long the node delays its shutdown for its pods, for example 30s.
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:Pattern=`^([0-9]+(\.[0-9]+)?(ns|us|µs|ms|s|m|h))+$`
	// +optional
	ShutdownGracePeriod *metav1.Duration `json:"shutdownGracePeriod,omitempty"`

	// allowedUnsafeSysctls are sysctls, or patterns of sysctls that end in *, that pods may set.
	// +optional
	AllowedUnsafeSysctls []string `json:"allowedUnsafeSysctls,omitempty"`

	// clusterDNS are the addresses of the cluster's DNS server. If empty, the boot data templates set them.
	// +kubebuilder:validation:MaxItems=3
	// +optional
	ClusterDNS []string `json:"clusterDNS,omitempty"`

	// maxPods is the maximum number of pods on the node, from 10 to 250.
	// +kubebuilder:validation:Minimum=10
	// +kubebuilder:validation:Maximum=250
	// +optional
	MaxPods *int32 `json:"maxPods,omitempty"`

	// failSwapOn prevents the kubelet from starting when swap is enabled.
	// +optional
	FailSwapOn *bool `json:"failSwapOn,omitempty"`
}
