// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package whatif

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
)

// Core does not replace Nodes of a NodePool without instance types.
func TestPlanMissingNodeClass(t *testing.T) {
	t.Parallel()
	for name, instanceType := range map[string]string{"same_requirements": testenv.InstanceType, "other_requirements": "other"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := NewWithT(t)
			pool, claim := newPool("pool", nil), testenv.NewNodeClaim("old", "default", "pool")
			claim.Labels[corev1.LabelInstanceTypeStable] = instanceType
			claim.CreationTimestamp = metav1.NewTime(time.Now().Add(-2 * time.Hour)) // core checks the instance types after an hour
			claim.Status.ProviderID = "proxmox://region-1/20123"
			claim.StatusConditions().SetTrue(karpv1.ConditionTypeLaunched)
			plan, err := (&State{Objects: []client.Object{pool, claim}}).Plan(t.Context(), Change{Objects: []client.Object{pool}})
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(plan.Create).To(BeEmpty())
			g.Expect(plan.Delete).To(BeEmpty())
		})
	}
}
