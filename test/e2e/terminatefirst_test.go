// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"errors"
	"fmt"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/test/harness"
)

// TestDriftOnFullHosts changes a NodeClass whose Nodes fill all hosts. They are replaced
// only if their NodePool allows to terminate them first, one after the other.
func TestDriftOnFullHosts(t *testing.T) {
	t.Parallel()
	needs(t, simulator("it knows the capacity of the hosts"))
	const nodes = 2
	// Other guests use two cores of each host, a VM the other two.
	e := newEnv(t, setup{hosts: nodes, scenario: func(s *pvesim.Scenario) {
		for i := range s.Hosts {
			s.Hosts[i].Cores = 4
		}
	}})
	p := e.newNodePool(t, "full", func(kit *harness.Kit) {
		kit.Pool.Spec.Disruption.ConsolidateAfter = karpv1.MustParseNillableDuration("Never")
		kit.Pool.Spec.Disruption.Budgets = []karpv1.Budget{{Nodes: "1"}}
		kit.Pool.Spec.Template.Spec.Requirements = append(kit.Pool.Spec.Template.Spec.Requirements, karpv1.NodeSelectorRequirementWithMinValues{
			Key: v1alpha1.LabelInstanceCPU, Operator: corev1.NodeSelectorOpIn, Values: []string{"2"},
		})
	})
	p.deploy(t, nodes, func(d *appsv1.Deployment) {
		d.Spec.Template.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{LabelSelector: d.Spec.Selector, TopologyKey: corev1.LabelHostname}},
		}}
	})
	p.waitForPods(t, nodes)
	before := map[string]types.UID{} // by name
	for _, claim := range p.waitForNodes(t, nodes) {
		before[claim.Name] = claim.UID
	}
	fewest := p.countReadyPods(t, nodes)

	patch := client.RawPatch(types.MergePatchType, []byte(`{"spec":{"bootDevice":{"size":"40G"}}}`))
	must(t, p.kube.Patch(t.Context(), &v1alpha1.ProxmoxNodeClass{ObjectMeta: p.kit.Class.ObjectMeta}, patch))
	for name, uid := range before {
		p.waitForEvent(t, name, "DriftWaitingForCapacity")
		if now := (&karpv1.NodeClaim{}); p.kube.Get(t.Context(), client.ObjectKey{Name: name}, now) != nil || now.UID != uid {
			t.Errorf("claim %s was replaced without the annotation", name)
		}
	}
	must(t, p.kube.Patch(t.Context(), &karpv1.NodePool{ObjectMeta: p.kit.Pool.ObjectMeta}, client.RawPatch(types.MergePatchType,
		fmt.Appendf(nil, `{"metadata":{"annotations":{%q:"true"}}}`, v1alpha1.AnnotationDriftTerminateFirst))))
	p.within(t, 3*timeout(), "all nodes to be replaced", func(ctx context.Context) error {
		claims, err := p.claims(ctx)
		if err == nil && len(claims) != nodes {
			err = fmt.Errorf("there are %d claims", len(claims))
		}
		for i := range claims {
			if _, old := before[claims[i].Name]; old {
				err = errors.Join(err, fmt.Errorf("claim %s was not replaced", claims[i].Name))
			}
		}
		return err
	})
	p.waitForNodes(t, nodes)
	p.waitForPods(t, nodes)
	if n := fewest(); n != nodes-1 {
		t.Errorf("at least %d of %d pods were ready, want %d: one Node is replaced at a time", n, nodes, nodes-1)
	}
	p.deleteAllClaims(t)
}
