// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package cloudprovider_test

import (
	"testing"

	. "github.com/onsi/gomega"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/controllers/nodeclaim/lifecycle"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
)

// Core plans pods for the capacity in the status of a claim, also if it waits for capacity.
func TestParkedClaimHasNoCapacity(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		// launch launches the VM of a claim for which there is capacity.
		launch func(*testenv.Env, *karpv1.NodeClaim, *v1alpha1.ProxmoxNodeClass)
	}{
		"launched": {func(w *testenv.Env, claim *karpv1.NodeClaim, class *v1alpha1.ProxmoxNodeClass) {
			w.MustLaunch(claim, class)
		}},
		"controller_stopped_before_the_write": {func(w *testenv.Env, claim *karpv1.NodeClaim, class *v1alpha1.ProxmoxNodeClass) {
			_, err := w.Instances.Planner.Unpark(w.T.Context(), claim, class, w.Intent(claim))
			w.Expect(err).NotTo(HaveOccurred())
			w.Expect(w.Intent(testenv.Reload(w, claim)).Parked).To(BeFalse())
			w.StartProcess().MustLaunch(claim, class)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := testenv.New(t, testenv.NoPolling(), testenv.Scenario(full))
			class := w.Class()
			w.Pool(class, func(p *karpv1.NodePool) { p.Spec.Replicas = new(int64(1)) })
			claim := w.Claim("a", class)
			filled, err := provider(w).Create(t.Context(), claim)
			w.Expect(err).NotTo(HaveOccurred())
			w.Expect(w.Intent(testenv.Reload(w, claim)).Parked).To(BeTrue())
			w.Expect(filled.Status.Capacity).To(BeEmpty())
			w.Expect(filled.Status.Allocatable).To(BeEmpty())

			w.DestroyByHand("pve1", 101)
			w.Refresh()
			w.Expect(w.Launch(claim, class)).To(MatchError(instance.ErrParked), "core did not write the result of Create yet")
			lifecycle.PopulateNodeClaimDetails(claim, filled)
			w.Expect(w.Kube.Status().Update(t.Context(), claim)).To(Succeed())
			c.launch(w, claim, class)
			it, ok := w.Types.Get(class, w.Intent(claim).InstanceType)
			w.Expect(ok).To(BeTrue())
			allocatable := it.Allocatable()
			launched := testenv.Reload(w, claim)
			w.Expect(launched.Annotations).To(HaveKey(v1alpha1.AnnotationLaunchCompleted))
			w.Expect(launched.Status.Capacity.Cpu().Value()).To(Equal(it.Capacity.Cpu().Value()))
			w.Expect(launched.Status.Allocatable.Memory().Value()).To(Equal(allocatable.Memory().Value()))
			w.Expect(launched.Status.ProviderID).To(Equal(filled.Status.ProviderID))
		})
	}
}
