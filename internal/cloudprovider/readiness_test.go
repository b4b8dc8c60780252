// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package cloudprovider_test

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	corecloudprovider "sigs.k8s.io/karpenter/pkg/cloudprovider"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
)

// expectLaunch runs core's lifecycle until a claim is launched. It must not be deleted
// while its class is checked; check does that.
func expectLaunch(k *karpenter, claim *karpv1.NodeClaim, check func()) {
	k.T.Helper()
	_, err := k.lifecycle.Reconcile(k.ctx, testenv.Reload(k.Env, claim))
	k.Expect(err).To(HaveOccurred(), "core retries it")
	k.Expect(testenv.Reload(k.Env, claim).DeletionTimestamp.IsZero()).To(BeTrue(), "core deleted the claim")
	launched := claim.StatusConditions().Get(karpv1.ConditionTypeLaunched)
	k.Expect(launched.IsUnknown()).To(BeTrue())
	k.Expect(launched.Reason).To(Equal("NodeClassReadinessUnknown"))

	check()
	_, err = k.lifecycle.Reconcile(k.ctx, claim)
	k.Expect(err).NotTo(HaveOccurred())
	k.Expect(testenv.Reload(k.Env, claim).StatusConditions().Get(karpv1.ConditionTypeLaunched).IsTrue()).To(BeTrue())
	k.Expect(claim.Status.ProviderID).To(Equal(k.Intent(claim).ProviderID()))
}

// Core deletes a standalone claim if its class is not ready, but not while that is unknown.
func TestCreateWithUncheckedNodeClass(t *testing.T) {
	t.Parallel()
	k := newKarpenter(t, testenv.NoPolling())
	standalone := func(c *karpv1.NodeClaim) { c.Labels = nil }
	class := k.NewClass()
	check := func() {
		class.Status.SelectedZones = testenv.Zones(1)
		k.MarkReady(class)
	}
	expectLaunch(k, k.Claim("with-class", class, standalone), check)

	class.Spec.BootDevice.Size = "40G"
	k.Expect(k.Kube.Update(k.ctx, class)).To(Succeed())
	expectLaunch(k, k.Claim("with-changed-class", class, standalone), check)

	// The result of the previous generation does not count.
	class.StatusConditions().SetFalse(v1alpha1.ConditionStorageReady, v1alpha1.ReasonStorageUnsuitable, "too small")
	k.Expect(k.Kube.Status().Update(k.ctx, class)).To(Succeed())
	class.Spec.BootDevice.Size = "50G"
	k.Expect(k.Kube.Update(k.ctx, class)).To(Succeed())
	expectLaunch(k, k.Claim("with-fixed-class", class, standalone), check)
}

// A claim of a class that cannot be checked must not block all NodePools.
func TestCreateWithNodeClassThatIsNotChecked(t *testing.T) {
	t.Parallel()
	w := testenv.New(t, testenv.NoPolling())
	claim := w.Claim("a", w.NewClass())
	w.Clock.Advance(2 * time.Minute)
	_, err := provider(w).Create(t.Context(), claim)
	w.Expect(corecloudprovider.IsNodeClassNotReadyError(err)).To(BeTrue(), "%v", err)
}
