// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package cloudprovider_test

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
)

// Core deletes a claim whose Node does not register within 15 minutes of its creation, so
// a claim whose clone would wait too long is not created.
func TestScheduleWithCloneQueue(t *testing.T) {
	t.Parallel()
	k := newKarpenter(t, testenv.Settings(func(s *instance.Settings) { s.CloneSlots, s.CloneRefuseAfter = 2, time.Nanosecond }))
	class := k.readyPool()
	k.pending("pod", "1")
	schedule := func() (claims int, failure string) {
		results, err := k.provisioner.Schedule(k.ctx)
		k.Expect(err).NotTo(HaveOccurred())
		for _, err := range results.PodErrors {
			failure += err.Error()
		}
		return len(results.NewNodeClaims), failure
	}
	queued := []*karpv1.NodeClaim{k.Planned("a", class), k.Planned("b", class), k.Planned("c", class)}
	claims, failure := schedule()
	k.Expect(claims).To(Equal(1), "how long a clone takes is unknown: %s", failure)

	k.Expect(k.Launch(queued[0], class)).To(Succeed())
	k.Expect(k.Instances.CloneTimes.Get(testenv.Region, "pve1", "local-lvm")).To(BeNumerically(">", 0))
	k.Eventually(func() int {
		k.Refresh()
		storage, _ := k.Inventory.View().Storage(testenv.Region, "pve1", "local-lvm")
		return storage.QueuedClones
	}).Should(Equal(2), "the other two")
	claims, failure = schedule()
	k.Expect(claims).To(BeZero())
	_, err := provider(k.Env).Create(k.ctx, k.Claim("refused", class))
	k.Expect(err).To(MatchError(ContainSubstring("2 clones wait for storage local-lvm")), "core: %s", failure)

	k.Expect(k.Launch(queued[1], class)).To(Succeed())
	k.Eventually(func() int {
		k.Refresh()
		claims, failure = schedule()
		return claims
	}).Should(Equal(1), "a slot is free again: %s", failure)
}
