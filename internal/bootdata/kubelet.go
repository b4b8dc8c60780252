// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package bootdata

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubeletconfig "k8s.io/kubelet/config/v1beta1"
)

// KubeletConfiguration is the config file of a kubelet. Templates refer to its fields by
// their Go names (.MaxPods) and print it with toYaml.
type KubeletConfiguration struct {
	kubeletconfig.KubeletConfiguration
}

// KubeletSettings has the same fields as spec.kubeletConfiguration of a NodeClass.
type KubeletSettings struct {
	CPUManagerPolicy            string
	CPUCFSQuota                 *bool
	CPUCFSQuotaPeriod           *metav1.Duration
	TopologyManagerPolicy       string
	TopologyManagerScope        string
	ImageGCHighThresholdPercent *int32
	ImageGCLowThresholdPercent  *int32
	ShutdownGracePeriod         *metav1.Duration
	AllowedUnsafeSysctls        []string
	ClusterDNS                  []string
	MaxPods                     *int32
	FailSwapOn                  *bool
}

// KubeletInput is the input of NewKubeletConfiguration.
type KubeletInput struct {
	// ProviderID must equal that of the Claim: Karpenter finds the Node by it.
	ProviderID string
	// Taints are the taints to register with, see RegistrationTaints.
	Taints Taints
	// KubeReserved, SystemReserved and EvictionHard are those of the instance type. Only
	// memory is used from EvictionHard.
	KubeReserved, SystemReserved, EvictionHard corev1.ResourceList
	Settings                                   KubeletSettings
}

// Defaults of the kubelet. They are repeated where setting one value would reset others,
// or where a value is validated against another that is not set.
const (
	defaultImageGCHigh    = 85
	defaultImageGCLow     = 80
	defaultCFSQuotaPeriod = 100 * time.Millisecond
	defaultEvictionMemory = "100Mi"
)

// NewKubeletConfiguration returns the config file for the kubelet of one VM. It fails for
// settings that a kubelet rejects at start: the Node would not join, which is detected
// only after 15 minutes.
func NewKubeletConfiguration(in KubeletInput) (KubeletConfiguration, error) {
	if err := in.validate(); err != nil {
		return KubeletConfiguration{}, err
	}
	s := in.Settings
	out := kubeletconfig.KubeletConfiguration{
		TypeMeta: metav1.TypeMeta{
			APIVersion: kubeletconfig.SchemeGroupVersion.String(),
			Kind:       "KubeletConfiguration",
		},
		ProviderID:                  in.ProviderID,
		RegisterWithTaints:          in.Taints.toAPI(),
		KubeReserved:                quantities(in.KubeReserved),
		SystemReserved:              quantities(in.SystemReserved),
		EvictionHard:                evictionHard(in.EvictionHard),
		CPUManagerPolicy:            s.CPUManagerPolicy,
		CPUCFSQuota:                 s.CPUCFSQuota,
		TopologyManagerPolicy:       s.TopologyManagerPolicy,
		TopologyManagerScope:        s.TopologyManagerScope,
		ImageGCHighThresholdPercent: s.ImageGCHighThresholdPercent,
		ImageGCLowThresholdPercent:  s.ImageGCLowThresholdPercent,
		AllowedUnsafeSysctls:        s.AllowedUnsafeSysctls,
		ClusterDNS:                  s.ClusterDNS,
		FailSwapOn:                  s.FailSwapOn,
	}
	if s.MaxPods != nil {
		out.MaxPods = *s.MaxPods
	}
	if s.ShutdownGracePeriod != nil {
		out.ShutdownGracePeriod = *s.ShutdownGracePeriod
	}
	if s.CPUCFSQuotaPeriod != nil {
		out.CPUCFSQuotaPeriod = s.CPUCFSQuotaPeriod
		if s.CPUCFSQuotaPeriod.Duration != defaultCFSQuotaPeriod {
			// Other periods need a feature gate that is off by default.
			out.FeatureGates = map[string]bool{"CustomCPUCFSQuotaPeriod": true}
		}
	}
	return KubeletConfiguration{out}, nil
}

// validate checks rules of the kubelet that involve several fields, which the CRD schema
// does not check.
func (in KubeletInput) validate() error {
	s := in.Settings
	var errs []error
	high, low := int32(defaultImageGCHigh), int32(defaultImageGCLow)
	if s.ImageGCHighThresholdPercent != nil {
		high = *s.ImageGCHighThresholdPercent
	}
	if s.ImageGCLowThresholdPercent != nil {
		low = *s.ImageGCLowThresholdPercent
	}
	if low >= high {
		errs = append(errs, fmt.Errorf("kubeletConfiguration.imageGCLowThresholdPercent: %d must be less than imageGCHighThresholdPercent, %d (defaults: %d and %d)",
			low, high, defaultImageGCLow, defaultImageGCHigh))
	}
	if p := s.CPUCFSQuotaPeriod; p != nil && (p.Duration < time.Millisecond || p.Duration > time.Second) {
		errs = append(errs, fmt.Errorf("kubeletConfiguration.cpuCFSQuotaPeriod: %s must be between 1ms and 1s", p.Duration))
	}
	if p := s.ShutdownGracePeriod; p != nil && p.Duration != 0 && p.Duration < time.Second {
		errs = append(errs, fmt.Errorf("kubeletConfiguration.shutdownGracePeriod: %s must be 0 or at least 1s", p.Duration))
	}
	if s.CPUManagerPolicy == "static" && in.KubeReserved.Cpu().IsZero() && in.SystemReserved.Cpu().IsZero() {
		errs = append(errs, errors.New("kubeletConfiguration.cpuManagerPolicy: static needs CPU in the instance type's KubeReserved or SystemReserved overhead, found none"))
	}
	return errors.Join(errs...)
}

// evictionHard includes the kubelet's default disk thresholds, because setting one hard
// threshold disables all that are not set.
func evictionHard(thresholds corev1.ResourceList) map[string]string {
	out := map[string]string{
		"memory.available":   defaultEvictionMemory,
		"nodefs.available":   "10%",
		"nodefs.inodesFree":  "5%",
		"imagefs.available":  "15%",
		"imagefs.inodesFree": "5%",
	}
	if memory, ok := thresholds[corev1.ResourceMemory]; ok {
		out["memory.available"] = memory.String()
	}
	return out
}

func quantities(list corev1.ResourceList) map[string]string {
	if len(list) == 0 {
		return nil
	}
	out := make(map[string]string, len(list))
	for name, quantity := range list {
		out[string(name)] = quantity.String()
	}
	return out
}

// MarshalJSON omits unset fields. The upstream type writes about twenty of them as zeros
// ("syncFrequency: 0s"), which would be duplicates of fields that users add in their
// templates.
func (k KubeletConfiguration) MarshalJSON() ([]byte, error) {
	fields, err := jsonFields(k.KubeletConfiguration)
	if err != nil {
		return nil, err
	}
	unset, err := jsonFields(kubeletconfig.KubeletConfiguration{})
	if err != nil {
		return nil, err
	}
	for name, zero := range unset {
		if bytes.Equal(fields[name], zero) {
			delete(fields, name)
		}
	}
	return json.Marshal(fields)
}

func jsonFields(config kubeletconfig.KubeletConfiguration) (map[string]json.RawMessage, error) {
	raw, err := json.Marshal(config)
	if err != nil {
		return nil, fmt.Errorf("encoding the kubelet configuration: %w", err)
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(raw, &fields); err != nil {
		return nil, fmt.Errorf("decoding the kubelet configuration: %w", err)
	}
	return fields, nil
}
