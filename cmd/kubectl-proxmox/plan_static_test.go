// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/whatif"
)

// addStatic adds a static NodePool whose Nodes are on pve1, each with a pod.
func (w *planEnv) addStatic(limits karpv1.Limits, nodes ...string) {
	w.T.Helper()
	name := w.Named("static")
	pool := w.Pool(w.class, func(p *karpv1.NodePool) {
		p.Name, p.Spec.Replicas, p.Spec.Limits = name, new(int64(len(nodes))), limits
		p.Spec.Template.Spec.Requirements = append(p.Spec.Template.Spec.Requirements, karpv1.NodeSelectorRequirementWithMinValues{
			Key: corev1.LabelTopologyZone, Operator: corev1.NodeSelectorOpIn, Values: []string{"pve1"},
		})
	})
	setPoolStatus(w.Env, pool, nil)
	for _, node := range nodes {
		w.addNode(node, "pve1", "500m", func(c *karpv1.NodeClaim) { c.Labels[karpv1.NodePoolLabelKey] = name })
	}
}

// A static NodePool replaces its drifted Nodes, and their pods stay on the replacements.
func TestPlanStaticDrift(t *testing.T) {
	t.Parallel()
	const gates, unchecked = "--feature-gates=StaticCapacity=true", "boot data of ProxmoxNodeClass default was not checked: a saved inventory contains no Secrets"
	atLimit := karpv1.Limits{"nodes": resource.MustParse("1")}
	replaced := func(w *planEnv, plan whatif.Plan) {
		w.Expect(plan.Create).To(ConsistOf(And(HaveField("NodePool", "default-static"), HaveField("Host", "pve1"), HaveField("Pods", ConsistOf("shop/a")))))
		w.Expect(plan.Delete).To(ConsistOf(And(HaveField("NodeClaim", "default-a"), HaveField("Reason", "NodeClassDrift"))))
		w.Expect(plan.Unschedulable).To(BeEmpty())
		w.Expect(plan.Notes).To(HaveExactElements(unchecked))
		w.Expect(plan.PriceAfter).To(BeNumerically("~", plan.PriceBefore, 1e-9))
	}
	kept := func(reasons ...any) func(*planEnv, whatif.Plan) {
		return func(w *planEnv, plan whatif.Plan) {
			w.Expect(plan.Create).To(BeEmpty())
			w.Expect(plan.Delete).To(BeEmpty())
			w.Expect(plan.Unschedulable).To(BeEmpty())
			w.Expect(plan.Notes).To(HaveExactElements(append([]any{unchecked}, reasons...)...))
		}
	}
	full := func(node string) any {
		return HavePrefix("nodeclaim default-" + node + " is drifted (NodeClassDrift), but is not replaced, because its replacement would wait for capacity: no host fits t1.2VCPU-6GB")
	}
	for name, test := range map[string]struct {
		gates  string
		limits karpv1.Limits
		nodes  []string
		want   func(*planEnv, whatif.Plan)
	}{
		"replacement_first": {gates, nil, []string{"a"}, replaced},
		"at_node_limit": {gates, atLimit, []string{"a"}, kept(
			"nodeclaim default-a is drifted (NodeClassDrift), but is not replaced, because static nodepool default-static is at limits.nodes",
		)},
		"termination_first": {gates + ",TerminateFirstDrift=true", atLimit, []string{"a"}, replaced},
		"full_host":         {gates, nil, []string{"a", "b", "c"}, kept(full("a"), full("b"), full("c"))},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newPlanEnv(t, test.gates)
			w.addStatic(test.limits, test.nodes...)
			w.writeManifests()
			test.want(w, w.decode(w.plan("-f class.yaml -o json"), nil))
		})
	}
}
