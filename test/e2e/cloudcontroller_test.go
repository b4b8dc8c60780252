// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/test/harness"
)

// cloudController checks nodes whose kubelets leave provider ID, labels and addresses to the
// Proxmox cloud controller manager. All other tests run without it.
func (e *env) cloudController(t *testing.T) {
	needs(t, guestsThatJoin())
	manager := &harness.CloudController{Kube: e.kube, API: e.api, Region: e.region}
	go manager.Run(t.Context())
	p := e.newNodePool(t, "cloud", func(kit *harness.Kit) { kit.Values.StringData["cloudProvider"] = "external" })
	p.deployPods(t, 1)
	p.waitForPods(t, 1)
	claim := p.waitForClaim(t, "is settled", settled)
	node, err := p.node(t.Context(), claim)
	must(t, err)
	if node.Spec.ProviderID != claim.Status.ProviderID {
		t.Errorf("provider ID of the node is %q, want the claim's %q", node.Spec.ProviderID, claim.Status.ProviderID)
	}
	for _, key := range []string{corev1.LabelInstanceTypeStable, corev1.LabelTopologyZone, corev1.LabelTopologyRegion, karpv1.NodePoolLabelKey} {
		if node.Labels[key] != claim.Labels[key] || claim.Labels[key] == "" {
			t.Errorf("label %s of the node is %q, want the claim's %q", key, node.Labels[key], claim.Labels[key])
		}
	}
	if !slices.ContainsFunc(node.Status.Addresses, func(a corev1.NodeAddress) bool { return a.Type == corev1.NodeInternalIP }) {
		t.Errorf("the node has the addresses %v, want an internal one", node.Status.Addresses)
	}
	if len(node.Spec.Taints) > 0 {
		t.Errorf("the node still has taints %v", node.Spec.Taints)
	}
	p.deleteClaims(t, claim)
}
