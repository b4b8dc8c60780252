// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// KubeletConfiguration holds the settings of the kubelet that a NodeClass may tune. Names and meaning are the kubelet's own.
//
// Durations carry a pattern although their type would refuse bad text as well: a value that passes the API server but does
// not decode would stop every watch on NodeClasses, not only this one object.
// +kubebuilder:validation:XValidation:rule="!has(self.imageGCHighThresholdPercent) || !has(self.imageGCLowThresholdPercent) || self.imageGCHighThresholdPercent > self.imageGCLowThresholdPercent",message="imageGCHighThresholdPercent must be greater than imageGCLowThresholdPercent"
type KubeletConfiguration struct {
	// cpuManagerPolicy is none or static.
	// +kubebuilder:validation:Enum=none;static
	// +optional
	CPUManagerPolicy string `json:"cpuManagerPolicy,omitempty"`

	// cpuCFSQuota enforces the CPU limits of containers.
	// +optional
	CPUCFSQuota *bool `json:"cpuCFSQuota,omitempty"`

	// cpuCFSQuotaPeriod is the period of that enforcement, for example 100ms.
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

	// imageGCHighThresholdPercent is the disk usage above which images are always collected.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=100
	// +optional
	ImageGCHighThresholdPercent *int32 `json:"imageGCHighThresholdPercent,omitempty"`

	// imageGCLowThresholdPercent is the disk usage that the collection of images aims for.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=100
	// +optional
	ImageGCLowThresholdPercent *int32 `json:"imageGCLowThresholdPercent,omitempty"`

	// shutdownGracePeriod is how long the node delays its shutdown for its pods, for example 30s.
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:Pattern=`^([0-9]+(\.[0-9]+)?(ns|us|µs|ms|s|m|h))+$`
	// +optional
	ShutdownGracePeriod *metav1.Duration `json:"shutdownGracePeriod,omitempty"`

	// allowedUnsafeSysctls are sysctls or patterns of them (ending in *) that pods may set.
	// +optional
	AllowedUnsafeSysctls []string `json:"allowedUnsafeSysctls,omitempty"`

	// clusterDNS are the addresses of the cluster's DNS server. Left empty, the templates decide.
	// +kubebuilder:validation:MaxItems=3
	// +optional
	ClusterDNS []string `json:"clusterDNS,omitempty"`

	// maxPods is the largest number of pods on the node.
	// +kubebuilder:validation:Minimum=10
	// +kubebuilder:validation:Maximum=250
	// +optional
	MaxPods *int32 `json:"maxPods,omitempty"`

	// failSwapOn makes the kubelet refuse to start when swap is on.
	// +optional
	FailSwapOn *bool `json:"failSwapOn,omitempty"`
}
