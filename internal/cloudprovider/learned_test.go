// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package cloudprovider_test

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/controllers/nodeclaim/disruption"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
)

func withMemory(pod *corev1.Pod) {
	pod.Spec.Containers[0].Resources.Requests[corev1.ResourceMemory] = resource.MustParse("500Mi")
}

// TestLearnedCapacity checks that what Nodes report changes the capacity of new Nodes, and
// replaces no existing one.
func TestLearnedCapacity(t *testing.T) {
	t.Parallel()
	k := newKarpenter(t, testenv.NoPolling())
	class := k.readyPool(withExactSizes)
	pod := k.PendingPod("pod", "2500m", withMemory)
	claim := k.launchPending()[0]
	in := k.Intent(claim)
	k.Expect(claim.Status.Capacity.Memory().Value()>>20).To(BeEquivalentTo(in.MemoryMiB), "the estimate of the test is no overhead")

	testenv.Reload(k.Env, class)
	class.Status.MemoryOverhead = []v1alpha1.MemoryOverhead{{
		Image: in.ImageID, BIOS: "seabios", Machine: "pc", Sizes: []v1alpha1.MemoryOverheadSize{{MemoryMiB: int64(in.MemoryMiB), OverheadMiB: 400}},
	}}
	k.Expect(k.Kube.Status().Update(k.ctx, class)).To(Succeed())

	// The same pods get a VM that is larger by the overhead.
	k.Expect(k.Kube.Delete(k.ctx, pod)).To(Succeed())
	k.PendingPod("other", "2500m", withMemory)
	claims := k.launchPending()
	k.Expect(claims).To(HaveLen(1))
	k.Expect(k.Intent(claims[0]).MemoryMiB).To(Equal(in.MemoryMiB + 512))
	k.Expect(claims[0].Status.Capacity.Memory().Value() >> 20).To(BeEquivalentTo(in.MemoryMiB + 512 - 401))

	k.Restart(true)
	k.Clock.Advance(2 * time.Hour) // core checks the instance types of Nodes that are older than an hour
	_, err := disruption.NewController(k.Clock, k.Kube, provider(k.Env)).Reconcile(k.ctx, claim)
	k.Expect(err).NotTo(HaveOccurred())
	k.Expect(testenv.Reload(k.Env, claim).StatusConditions().Get(karpv1.ConditionTypeDrifted)).To(BeNil())
}
