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

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
)

// uninitializedTaint is set by a kubelet with --cloud-provider=external, and removed by
// the cloud controller manager.
const uninitializedTaint = "node.cloudprovider.kubernetes.io/uninitialized"

// findProblems returns how a Node differs from its NodeClaim, and how to fix the boot
// data.
func findProblems(node *corev1.Node, claim *karpv1.NodeClaim) []string {
	var out []string
	if node.Name != instance.ExpectedNodeName(claim) {
		out = append(out, fmt.Sprintf("its name is %s; the VM's hostname must be {{ .Metadata.Hostname }}", node.Name))
	}
	if problem := providerIDProblem(node, claim); problem != "" {
		out = append(out, problem)
	}
	// Karpenter removes the taint when it registers the Node.
	if node.Labels[karpv1.NodeRegisteredLabelKey] == "" && !hasTaint(node, karpv1.UnregisteredTaintKey) {
		out = append(out, fmt.Sprintf("it registered without the taint %s:NoExecute, so pods may be scheduled before its labels are set; "+
			"write {{ .Kubernetes.KubeletConfiguration | toYaml }} to the kubelet's config file, "+
			"or start the kubelet with --register-with-taints={{ .Kubernetes.NodeTaints }}", karpv1.UnregisteredTaintKey))
	}
	return append(out, labelProblems(node, claim)...)
}

// providerIDProblem checks the provider ID. Without a matching one, Karpenter never
// finds the Node and replaces the NodeClaim after 15 minutes.
func providerIDProblem(node *corev1.Node, claim *karpv1.NodeClaim) string {
	const advice = "write {{ .Kubernetes.KubeletConfiguration | toYaml }} to the kubelet's config file, or start the kubelet with --provider-id={{ .Metadata.ProviderID }}"
	switch {
	case node.Spec.ProviderID == claim.Status.ProviderID:
		return ""
	case node.Spec.ProviderID != "":
		return fmt.Sprintf("its provider ID is %s, not %s, so Karpenter cannot find it; %s", node.Spec.ProviderID, claim.Status.ProviderID, advice)
	case hasTaint(node, uninitializedTaint):
		return "" // the cloud controller manager will set it
	}
	return "it has no provider ID, so Karpenter cannot find it; " + advice
}

// labelProblems returns labels that differ from the NodeClaim. Karpenter overwrites them
// when it registers the Node; afterwards another controller has changed them.
func labelProblems(node *corev1.Node, claim *karpv1.NodeClaim) []string {
	var wrong []string
	for _, key := range slices.Sorted(maps.Keys(claim.Labels)) {
		if have, ok := node.Labels[key]; ok && have != claim.Labels[key] {
			wrong = append(wrong, fmt.Sprintf("label %s is %q, not %q", key, have, claim.Labels[key]))
		}
	}
	if len(wrong) == 0 {
		return nil
	}
	advice := "use {{ .Kubernetes.NodeLabels }} in the boot data"
	if node.Labels[karpv1.NodeRegisteredLabelKey] != "" {
		advice = "a cloud controller manager changes them: configure the same region names there, and disable the built-in one of k3s and RKE2"
	}
	return []string{strings.Join(wrong, ", ") + "; " + advice}
}

func hasTaint(node *corev1.Node, key string) bool {
	return slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.Key == key })
}
