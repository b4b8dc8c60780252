// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/test/harness"
)

// withCloudController: kubelets leave provider ID and labels to the Proxmox cloud
// controller manager, whose view of a VM must be ours. All other tests do without.
func (w *world) withCloudController(t *testing.T) {
	manager := &harness.CloudController{Kube: w.kube, API: w.api, Region: w.region}
	go manager.Run(t.Context())
	p := w.newPool(t, "cloud", func(kit *harness.Kit) { kit.Values.StringData["cloudProvider"] = "external" })
	p.run(t, 1)
	p.podsRun(t, 1)
	claim := p.onlyClaim(t, "is settled", settled)
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
	if len(node.Spec.Taints) > 0 {
		t.Errorf("the node has the taints %v left", node.Spec.Taints)
	}
	p.giveBack(t, claim)
}
