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

// String is the form of the kubelet's --node-labels flag.
func (l Labels) String() string {
	pairs := make([]string, 0, len(l))
	for _, key := range slices.Sorted(maps.Keys(l)) {
		pairs = append(pairs, key+"="+l[key])
	}
	return strings.Join(pairs, ",")
}

// allowed drops the labels that a kubelet cannot set on its own Node. With one
// of them in --node-labels a kubelet refuses to start, and the NodeRestriction
// admission plugin would refuse the Node; Karpenter adds them after registration.
func (l Labels) allowed() Labels {
	out := make(Labels, len(l))
	for key, value := range l {
		if !isKubernetesLabel(key) || kubeletapis.IsKubeletLabel(key) {
			out[key] = value
		}
	}
	return out
}

// isKubernetesLabel tells whether the key is in a namespace that Kubernetes
// keeps for itself.
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

// String is the form of the kubelet's --register-with-taints flag, which k3s,
// RKE2 and kubeadm understand as well.
func (t Taint) String() string {
	return t.Key + "=" + t.Value + ":" + string(t.Effect)
}

// Taints print as a comma-separated list.
type Taints []Taint

// String joins the taints with commas.
func (ts Taints) String() string {
	words := make([]string, 0, len(ts))
	for _, t := range ts {
		words = append(words, t.String())
	}
	return strings.Join(words, ",")
}

// UnregisteredTaint keeps pods off a Node until Karpenter has recognised it. A
// Node that registers without it may get pods before its labels are right.
var UnregisteredTaint = Taint{Key: "karpenter.sh/unregistered", Effect: corev1.TaintEffectNoExecute}

// RegistrationTaints are the taints that a Node must register with: Karpenter's
// own and those of the claim, the first of each key and effect.
func RegistrationTaints(claimTaints ...corev1.Taint) Taints {
	out := Taints{UnregisteredTaint}
	for _, t := range claimTaints {
		duplicate := slices.ContainsFunc(out, func(have Taint) bool {
			return have.Key == t.Key && have.Effect == t.Effect
		})
		if !duplicate {
			out = append(out, Taint{Key: t.Key, Value: t.Value, Effect: t.Effect})
		}
	}
	return out
}

// api turns the taints into what a kubelet config wants: it refuses to start
// with a taint that carries a time.
func (ts Taints) api() []corev1.Taint {
	out := make([]corev1.Taint, 0, len(ts))
	for _, t := range ts {
		out = append(out, corev1.Taint{Key: t.Key, Value: t.Value, Effect: t.Effect})
	}
	return out
}
