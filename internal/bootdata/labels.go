// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package bootdata

import (
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	kubeletapis "k8s.io/kubelet/pkg/apis"
)

// Labels are Node labels. They print sorted as key=value,key=value.
type Labels map[string]string

// String returns the labels in the format of the kubelet's --node-labels flag.
func (l Labels) String() string {
	pairs := make([]string, 0, len(l))
	for _, key := range slices.Sorted(maps.Keys(l)) {
		pairs = append(pairs, key+"="+l[key])
	}
	return strings.Join(pairs, ",")
}

// allowed returns the labels that a kubelet can set on its own Node. With another one in
// --node-labels the kubelet does not start, and the NodeRestriction admission plugin
// rejects the Node. Karpenter adds the others after registration.
func (l Labels) allowed() Labels {
	out := make(Labels, len(l))
	for key, value := range l {
		if !isKubernetesLabel(key) || kubeletapis.IsKubeletLabel(key) {
			out[key] = value
		}
	}
	return out
}

// isKubernetesLabel reports whether the key is in a namespace reserved by Kubernetes.
func isKubernetesLabel(key string) bool {
	namespace, _, found := strings.Cut(key, "/")
	if !found {
		return false
	}
	for _, reserved := range []string{"kubernetes.io", "k8s.io"} {
		if namespace == reserved || strings.HasSuffix(namespace, "."+reserved) {
			return true
		}
	}
	return false
}

// Taint is a Node taint. It prints as key=value:effect.
type Taint struct {
	Key    string             `json:"key"`
	Value  string             `json:"value,omitempty"`
	Effect corev1.TaintEffect `json:"effect"`
}

// String returns the taint in the format of the kubelet's --register-with-taints flag,
// which k3s, RKE2 and kubeadm also accept.
func (t Taint) String() string {
	return t.Key + "=" + t.Value + ":" + string(t.Effect)
}

// Taints print as a comma-separated list.
type Taints []Taint

// String joins the taints with commas.
func (ts Taints) String() string {
	parts := make([]string, 0, len(ts))
	for _, t := range ts {
		parts = append(parts, t.String())
	}
	return strings.Join(parts, ",")
}

// unregisteredTaint prevents scheduling to a Node until Karpenter has registered it. A
// Node that joins without it may get pods before its labels are complete.
var unregisteredTaint = Taint{Key: "karpenter.sh/unregistered", Effect: corev1.TaintEffectNoExecute}

// RegistrationTaints returns the taints that a Node must register with: Karpenter's and
// those of the Claim, the first of each key and effect.
func RegistrationTaints(claimTaints ...corev1.Taint) Taints {
	out := Taints{unregisteredTaint}
	for _, t := range claimTaints {
		duplicate := slices.ContainsFunc(out, func(existing Taint) bool {
			return existing.Key == t.Key && existing.Effect == t.Effect
		})
		if !duplicate {
			out = append(out, Taint{Key: t.Key, Value: t.Value, Effect: t.Effect})
		}
	}
	return out
}

// toAPI returns the taints for a kubelet config, without a time: a kubelet does not
// start with one.
func (ts Taints) toAPI() []corev1.Taint {
	out := make([]corev1.Taint, 0, len(ts))
	for _, t := range ts {
		out = append(out, corev1.Taint{Key: t.Key, Value: t.Value, Effect: t.Effect})
	}
	return out
}
