// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package bootdata

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubeletconfig "k8s.io/kubelet/config/v1beta1"
)

// KubeletConfiguration is the config file of a kubelet. Templates refer to its fields by
// their Go names (.MaxPods) and print it with toYaml.
type KubeletConfiguration struct {
	kubeletconfig.KubeletConfiguration
}

// KubeletInput is the input of NewKubeletConfiguration.
type KubeletInput struct {
	// Config contains the fields that the NodeClass sets. They must be valid.
	Config kubeletconfig.KubeletConfiguration
	// ProviderID must equal that of the Claim: Karpenter finds the Node by it.
	ProviderID string
	// Taints are the taints to register with, see RegistrationTaints.
	Taints Taints
	// KubeReserved, SystemReserved and EvictionHard are those of the instance type. Values
	// of Config take precedence. Only memory is used from EvictionHard.
	KubeReserved, SystemReserved, EvictionHard corev1.ResourceList
	// MaxPods is the number of pods of the instance type; 0 if it is unknown. That of Config
	// takes precedence.
	MaxPods int32
}

const (
	// Defaults of the kubelet.
	defaultCFSQuotaPeriod = 100 * time.Millisecond
	defaultEvictionMemory = "100Mi"
	defaultMaxPods        = 110

	signalMemory = "memory.available"
)

// NewKubeletConfiguration returns the config file for the kubelet of one VM. It fails if
// the kubelet would not start: the Node would not join, which is detected only after 15
// minutes.
func NewKubeletConfiguration(in KubeletInput) (KubeletConfiguration, error) {
	out := *in.Config.DeepCopy()
	out.TypeMeta = metav1.TypeMeta{APIVersion: kubeletconfig.SchemeGroupVersion.String(), Kind: "KubeletConfiguration"}
	out.ProviderID = in.ProviderID
	out.RegisterWithTaints = in.Taints.toAPI()
	out.KubeReserved = reserved(in.KubeReserved, in.Config.KubeReserved)
	out.SystemReserved = reserved(in.SystemReserved, in.Config.SystemReserved)
	out.EvictionHard = evictionHard(in)
	// The default is not written: templates of users may contain maxPods, too.
	if out.MaxPods == 0 && in.MaxPods != defaultMaxPods {
		out.MaxPods = in.MaxPods
	}
	if period := out.CPUCFSQuotaPeriod; period != nil && period.Duration != defaultCFSQuotaPeriod {
		// Other periods need a feature gate that is off by default.
		const gate = "CustomCPUCFSQuotaPeriod"
		if _, ok := out.FeatureGates[gate]; !ok {
			gates := map[string]bool{gate: true}
			maps.Copy(gates, out.FeatureGates)
			out.FeatureGates = gates
		}
	}
	if out.CPUManagerPolicy == "static" && out.ReservedSystemCPUs == "" && !reservesCPU(out.KubeReserved) && !reservesCPU(out.SystemReserved) {
		return KubeletConfiguration{}, errors.New("kubeletConfiguration.cpuManagerPolicy: found static, which needs CPU in kubeReserved or systemReserved " +
			"of the NodeClass or of the instance type, found none")
	}
	return KubeletConfiguration{out}, nil
}

func reservesCPU(reserved map[string]string) bool {
	quantity, err := resource.ParseQuantity(reserved[string(corev1.ResourceCPU)])
	return err == nil && !quantity.IsZero()
}

// evictionHard includes the kubelet's default disk thresholds, because setting one hard
// threshold disables all that are not set.
func evictionHard(in KubeletInput) map[string]string {
	out := map[string]string{
		signalMemory:         defaultEvictionMemory,
		"nodefs.available":   "10%",
		"nodefs.inodesFree":  "5%",
		"imagefs.available":  "15%",
		"imagefs.inodesFree": "5%",
	}
	// The threshold of the instance type includes the soft one, if there is one.
	_, hasSoft := in.Config.EvictionSoft[signalMemory]
	if memory, ok := in.EvictionHard[corev1.ResourceMemory]; ok && !hasSoft {
		out[signalMemory] = memory.String()
	}
	maps.Copy(out, in.Config.EvictionHard)
	return out
}

// reserved returns what the instance type reserves, with the values of the NodeClass.
func reserved(list corev1.ResourceList, class map[string]string) map[string]string {
	if len(list) == 0 && len(class) == 0 {
		return nil
	}
	out := make(map[string]string, len(list))
	for name, quantity := range list {
		out[string(name)] = quantity.String()
	}
	maps.Copy(out, class)
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
