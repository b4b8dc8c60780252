// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// KubeletConfiguration contains fields of the kubelet's configuration file. Names and meaning are those of the kubelet.
//
// Durations have a pattern although their Go type rejects invalid text as well: a value that the API server accepts but that
// does not decode would break every watch on NodeClasses, not only this object. For the same reason, fields without a Go
// field are not decoded here.
// +kubebuilder:pruning:PreserveUnknownFields
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

	// maxPods is the maximum number of pods on the node: a number from 10 to 250, or a CEL expression over cpu (vCPUs of the
	// VM) and memory (in bytes), for example "math.least(110, cpu * 30)". The default is that of the instance type.
	// +kubebuilder:validation:Schemaless
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:XValidation:rule="type(self) == string || (self >= 10 && self <= 250)",message="maxPods must be from 10 to 250, or a CEL expression"
	// +optional
	MaxPods *int32 `json:"maxPods,omitempty"`

	// failSwapOn prevents the kubelet from starting when swap is enabled.
	// +optional
	FailSwapOn *bool `json:"failSwapOn,omitempty"`

	// podsPerCore limits the pods of the node by its vCPUs, in addition to maxPods. 0 is no limit.
	// +kubebuilder:validation:Minimum=0
	// +optional
	PodsPerCore int32 `json:"podsPerCore,omitempty"`

	// kubeReserved is reserved for Kubernetes components: cpu, memory, ephemeral-storage and pid. A value is a quantity such as
	// 512Mi, or a CEL expression over cpu (vCPUs of the VM) and memory (in bytes), for example "256 * Mi + memory / 50". Resources
	// that are not set keep the reservation of the instance type.
	// +optional
	KubeReserved map[string]string `json:"kubeReserved,omitempty"`

	// systemReserved is reserved for system services, in the format of kubeReserved.
	// +optional
	SystemReserved map[string]string `json:"systemReserved,omitempty"`

	// evictionHard are the thresholds of free resources below which pods are evicted at once, for example memory.available. A
	// value is a quantity, a percentage such as 5%, or a CEL expression as in kubeReserved. 0% disables a threshold. Thresholds
	// that are not set keep their default.
	// +optional
	EvictionHard map[string]string `json:"evictionHard,omitempty"`

	// evictionSoft are the thresholds below which pods are evicted after evictionSoftGracePeriod, in the format of evictionHard.
	// +optional
	EvictionSoft map[string]string `json:"evictionSoft,omitempty"`

	// evictionSoftGracePeriod are the durations of evictionSoft, for example 1m30s. Each threshold of evictionSoft needs one.
	// +optional
	EvictionSoftGracePeriod map[string]string `json:"evictionSoftGracePeriod,omitempty"`

	// Fields are all other fields of the configuration file, by name, as JSON. They include maxPods if it is an expression.
	Fields map[string]string `json:"-"`
}

// kubeletFields are the names of the fields with a Go field.
var kubeletFields = sync.OnceValue(func() map[string]bool {
	names := map[string]bool{}

	for field := range reflect.TypeFor[KubeletConfiguration]().Fields() {
		if name, _, _ := strings.Cut(field.Tag.Get("json"), ","); name != "-" {
			names[name] = true
		}
	}

	return names
})

// plainKubeletConfiguration encodes and decodes the fields with a Go field.
type plainKubeletConfiguration KubeletConfiguration

// MarshalJSON encodes all fields of the configuration file.
func (in KubeletConfiguration) MarshalJSON() ([]byte, error) {
	raw, err := json.Marshal(plainKubeletConfiguration(in))
	if err != nil || len(in.Fields) == 0 {
		return raw, err
	}

	var fields map[string]json.RawMessage
	if err := json.Unmarshal(raw, &fields); err != nil {
		return nil, err
	}

	for name, value := range in.Fields {
		fields[name] = json.RawMessage(value)
	}

	return json.Marshal(fields)
}

// UnmarshalJSON decodes the fields that have a Go field, and stores the others in Fields.
func (in *KubeletConfiguration) UnmarshalJSON(raw []byte) error {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(raw, &fields); err != nil {
		return err
	}

	other := map[string]string{}

	for name, value := range fields {
		isExpression := name == "maxPods" && bytes.HasPrefix(value, []byte(`"`))
		if kubeletFields()[name] && !isExpression {
			continue
		}

		delete(fields, name)

		text, err := canonicalJSON(value)
		if err != nil {
			return fmt.Errorf("decoding %s: %w", name, err)
		}

		if text != "null" {
			other[name] = text
		}
	}

	known, err := json.Marshal(fields)
	if err != nil {
		return err
	}

	var out plainKubeletConfiguration
	if err := json.Unmarshal(known, &out); err != nil {
		return err
	}

	*in = KubeletConfiguration(out)
	if len(other) > 0 {
		in.Fields = other
	}

	// Empty maps are not written, so they must not change the hash.
	for _, values := range []*map[string]string{&in.KubeReserved, &in.SystemReserved, &in.EvictionHard, &in.EvictionSoft, &in.EvictionSoftGracePeriod} {
		if len(*values) == 0 {
			*values = nil
		}
	}

	return nil
}

// canonicalJSON returns a value with sorted keys and without white space, so the same value has the same hash.
func canonicalJSON(raw []byte) (string, error) {
	decoder := json.NewDecoder(bytes.NewReader(raw))
	decoder.UseNumber() // a float64 would round large numbers

	var value any
	if err := decoder.Decode(&value); err != nil {
		return "", err
	}

	text, err := json.Marshal(value)

	return string(text), err
}
