// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package registration

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
)

// uninitializedTaint is set by a kubelet that was told that a cloud controller
// manager will finish its Node, and removed by that one.
const uninitializedTaint = "node.cloudprovider.kubernetes.io/uninitialized"

// breaches says in words what a Node owes to its Claim, and how boot data pays it.
func breaches(node *corev1.Node, claim *karpv1.NodeClaim) []string {
	var out []string
	if node.Name != claim.Name {
		out = append(out, fmt.Sprintf("its name is %s; the VM's hostname must be {{ .Metadata.Hostname }}", node.Name))
	}
	if b := providerIDBreach(node, claim); b != "" {
		out = append(out, b)
	}
	// Once Karpenter has seen the Node, it has taken the taint off itself.
	if node.Labels[karpv1.NodeRegisteredLabelKey] == "" && !hasTaint(node, karpv1.UnregisteredTaintKey) {
		out = append(out, fmt.Sprintf("it registered without the taint %s:NoExecute, so pods may come before its labels are right; "+
			"print {{ .Kubernetes.KubeletConfiguration | toYaml }} into the kubelet's config file, "+
			"or give the kubelet --register-with-taints={{ .Kubernetes.NodeTaints }}", karpv1.UnregisteredTaintKey))
	}
	return append(out, labelBreaches(node, claim)...)
}

// providerIDBreach: without the right one Karpenter never finds the Node, and
// replaces the Claim after a quarter of an hour.
func providerIDBreach(node *corev1.Node, claim *karpv1.NodeClaim) string {
	const advice = "print {{ .Kubernetes.KubeletConfiguration | toYaml }} into the kubelet's config file, or give the kubelet --provider-id={{ .Metadata.ProviderID }}"
	switch {
	case node.Spec.ProviderID == claim.Status.ProviderID:
		return ""
	case node.Spec.ProviderID != "":
		return fmt.Sprintf("its provider ID is %s, not %s, so Karpenter does not find it; %s", node.Spec.ProviderID, claim.Status.ProviderID, advice)
	case hasTaint(node, uninitializedTaint):
		return "" // the cloud controller manager is about to give it one
	}
	return "it has no provider ID, so Karpenter does not find it; " + advice
}

// labelBreaches are labels that say something else than the Claim. Karpenter writes
// the Claim's over them when it sees the Node; afterwards somebody else has.
func labelBreaches(node *corev1.Node, claim *karpv1.NodeClaim) []string {
	var wrong []string
	for _, key := range slices.Sorted(maps.Keys(claim.Labels)) {
		if have, ok := node.Labels[key]; ok && have != claim.Labels[key] {
			wrong = append(wrong, fmt.Sprintf("label %s is %q, not %q", key, have, claim.Labels[key]))
		}
	}
	if len(wrong) == 0 {
		return nil
	}
	who := "use {{ .Kubernetes.NodeLabels }} in the boot data"
	if node.Labels[karpv1.NodeRegisteredLabelKey] != "" {
		who = "a cloud controller manager sets them so: give it the same region names, and turn off the one that k3s and RKE2 bring along"
	}
	return []string{strings.Join(wrong, ", ") + "; " + who}
}

func hasTaint(node *corev1.Node, key string) bool {
	return slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.Key == key })
}
