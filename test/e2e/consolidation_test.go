// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instancetype"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/test/harness"
)

// TestConsolidation runs pods of many sizes on Nodes of exact size and removes a third of them. Consolidation must end, with
// cheaper Nodes.
func TestConsolidation(t *testing.T) {
	t.Parallel()
	needs(t, simulator("it creates many VMs"))
	const apps = 15
	e := newEnv(t, setup{})
	p := e.newNodePool(t, "exact", func(kit *harness.Kit) {
		kit.Pool.Spec.Disruption.ConsolidateAfter = karpv1.MustParseNillableDuration(karpv1.Never)
		kit.Class.Spec.VMSize = v1alpha1.VMSizing{Policy: v1alpha1.VMSizeExact, Max: v1alpha1.VMSize{CPU: 4, Memory: "16Gi"}} // several Nodes
	})
	random, milliCPU, mib := rand.New(rand.NewPCG(18, 0)), []int64{50, 100, 250, 500, 1000}, []int64{64, 128, 256, 512, 1024, 1500}
	for n := range apps {
		p.deployPods(t, 1+random.Int32N(3), func(d *appsv1.Deployment) {
			d.Name = fmt.Sprintf("%s-%d", p.name, n)
			d.Spec.Template.Spec.Containers[0].Resources.Requests = corev1.ResourceList{
				corev1.ResourceCPU:    *resource.NewMilliQuantity(milliCPU[random.IntN(len(milliCPU))], resource.DecimalSI),
				corev1.ResourceMemory: *resource.NewQuantity(mib[random.IntN(len(mib))]<<20, resource.BinarySI),
			}
		})
	}
	before := 0.0
	p.eventually(t, "all pods to run on settled Nodes", func(g Gomega) {
		before = p.priceOfSettled(g)
		g.Expect(before).To(BeNumerically(">", 0))
	})

	for n := range apps / 3 {
		must(t, harness.Scale(e.ctx, e.kube, fmt.Sprintf("%s-%d", p.name, 3*n), 0))
	}
	p.patch(t, p.kit.Pool, `{"spec":{"disruption":{"consolidateAfter":"1s"}}}`)
	// Karpenter needs 10 and 15 seconds to find and validate a consolidation.
	const quiet = 27 * time.Second
	changed, known := time.Now(), sets.Set[types.UID]{}
	p.within(t, 2*timeout(), "consolidation to end", func(g Gomega) {
		now := sets.Set[types.UID]{}
		for _, claim := range p.claims(g) {
			if claim.DeletionTimestamp.IsZero() {
				now.Insert(claim.UID)
			}
		}
		if !now.Equal(known) {
			changed, known = time.Now(), now
		}
		g.Expect(p.priceOfSettled(g)).To(And(BeNumerically(">", 0), BeNumerically("<", before)))
		g.Expect(time.Since(changed)).To(BeNumerically(">", quiet))
	})
}

// priceOfSettled returns the price of all Nodes. It fails unless all pods run and all Nodes are settled.
func (p *nodePool) priceOfSettled(g Gomega) (price float64) {
	pods := &corev1.PodList{}
	g.Expect(p.kube.List(p.ctx, pods)).To(Succeed())
	for i := range pods.Items {
		g.Expect(harness.PodReady(&pods.Items[i])).To(BeTrue(), "pod %s is not ready", pods.Items[i].Name)
	}
	for _, claim := range p.claims(g) {
		g.Expect(p.settled(&claim)).To(Succeed())
		size, ok := instancetype.DefaultCatalog().Get(claim.Labels[corev1.LabelInstanceTypeStable])
		g.Expect(ok).To(BeTrue())
		price += float64(size.CPUs) + float64(size.MemoryBytes)/float64(4<<30)
	}
	return price
}
