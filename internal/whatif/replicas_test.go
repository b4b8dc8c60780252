// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package whatif

import (
	"testing"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/operator"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

// newPool returns a NodePool of the NodeClass default; a dynamic one if replicas is nil.
func newPool(name string, replicas *int64) *karpv1.NodePool {
	pool := &karpv1.NodePool{ObjectMeta: metav1.ObjectMeta{Name: name}}
	claim := testenv.NewNodeClaim("", "default", name)
	pool.Spec.Replicas = replicas
	pool.Spec.Template.Spec.NodeClassRef, pool.Spec.Template.Spec.Requirements = claim.Spec.NodeClassRef, claim.Spec.Requirements
	return pool
}

// The capacity that one static NodePool frees is available for another, whatever their names.
func TestPlanStaticReplicasMoved(t *testing.T) {
	var state *State
	testenv.Simulated(t, func(t *testing.T) {
		w := testenv.NewFake(t, testenv.NoPolling(), testenv.Scenario(func(s *pvesim.Scenario) { s.Hosts[0].Cores = 8 }))
		w.Process = w.StartProcess()
		for _, condition := range w.NodeClass.StatusConditions().List() {
			w.NodeClass.StatusConditions().SetTrue(condition.Type)
		}
		objects := []client.Object{w.NodeClass, newPool("a", new(int64(1))), newPool("b", new(int64(2)))}
		for _, name := range []string{"b-1", "b-2", "b-3"} {
			objects = append(objects, w.Planned(name, w.NodeClass, func(c *karpv1.NodeClaim) { c.Labels[karpv1.NodePoolLabelKey] = "b" }))
		}
		state = &State{
			Controller:  operator.Deployed{Args: []string{"--feature-gates=StaticCapacity=true"}},
			KubeCluster: w.KubeCluster, Snapshots: w.Inventory.View().Snapshots, Objects: objects,
		}
	})
	// Core's controllers do not end with the test, so they are not part of the simulation.
	g := NewWithT(t)
	plan, err := state.Plan(t.Context(), Change{})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(plan.Delete).To(ConsistOf(HaveField("NodePool", "b")))
	g.Expect(plan.Create).To(ConsistOf(HaveField("NodePool", "a")))
	g.Expect(plan.Notes).To(BeEmpty())
}
