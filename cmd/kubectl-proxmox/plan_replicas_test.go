// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
)

// staticGate enables static NodePools.
const staticGate = "--feature-gates=StaticCapacity=true"

// addStatic adds a static NodePool whose Nodes are on pve1, each with a pod, and writes pool.yaml: the same
// NodePool with other replicas.
func (w *planEnv) addStatic(limits karpv1.Limits, replicas int64, nodes ...string) *karpv1.NodePool {
	w.T.Helper()
	pool := w.Pool(w.class, func(p *karpv1.NodePool) {
		p.Name, p.Spec.Replicas, p.Spec.Limits = "static", new(int64(len(nodes))), limits
		p.Spec.Template.Spec.Requirements = append(p.Spec.Template.Spec.Requirements, karpv1.NodeSelectorRequirementWithMinValues{
			Key: corev1.LabelTopologyZone, Operator: corev1.NodeSelectorOpIn, Values: []string{"pve1"},
		})
	})
	setPoolStatus(w.Env, pool, nil)
	for _, node := range nodes {
		w.addNode(node, "static", "pve1", "500m")
	}
	changed := &karpv1.NodePool{
		TypeMeta:   metav1.TypeMeta{APIVersion: "karpenter.sh/v1", Kind: "NodePool"},
		ObjectMeta: metav1.ObjectMeta{Name: "static"}, Spec: *pool.Spec.DeepCopy(),
	}
	changed.Spec.Replicas = &replicas
	w.write("pool.yaml", changed)
	return changed
}

func TestPlanStaticReplicas(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		gates    string
		limits   karpv1.Limits
		replicas int64
		create   int
		note     string
	}{
		"more_than_fit": {staticGate, nil, 5, 2, "static nodepool static has 3 of 5 nodes: the others wait for capacity: no host fits t1.2VCPU-6GB"},
		"at_node_limit": {staticGate, karpv1.Limits{"nodes": resource.MustParse("2")}, 3, 1, "static nodepool static has 2 of 3 nodes: it is at limits.nodes"},
		"gate_off":      {"--feature-gates=StaticCapacity=false", nil, 3, 0, "static nodepool static has 1 of 3 nodes: the feature gate StaticCapacity is off"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := savePlan(t, planSetup{args: []string{test.gates}, objects: func(w *planEnv) { w.addStatic(test.limits, test.replicas, "a") }})
			plan := s.plan("-f pool.yaml")
			s.Expect(plan.Delete).To(BeEmpty())
			s.Expect(plan.Create).To(HaveLen(test.create))
			for _, vm := range plan.Create {
				s.Expect(vm).To(And(HaveField("NodePool", "static"), HaveField("Host", "pve1")))
			}
			s.Expect(plan.PriceAfter).To(BeNumerically("~", float64(1+test.create)*plan.PriceBefore, 1e-9))
			s.Expect(plan.Notes).To(ConsistOf(HavePrefix(test.note)))
		})
	}
}

// The pod of the deleted Node runs on another one, and the capacity is free for other Nodes.
func TestPlanStaticReplicasFewer(t *testing.T) {
	t.Parallel()
	s := savePlan(t, planSetup{args: []string{staticGate}, objects: func(w *planEnv) { w.addStatic(nil, 2, "a", "b", "c") }})
	plan := s.plan("-f pool.yaml -f many.yaml")
	s.Expect(plan.Delete).To(ConsistOf(And(HaveField("NodePool", "static"), HaveField("Reason", "spec.replicas is 2"))))
	s.Expect(plan.Create).To(And(HaveLen(4), HaveEach(HaveField("NodePool", "default")), ContainElement(HaveField("Host", "pve1"))))
	s.Expect(plan.Unschedulable).To(And(HaveLen(5), HaveEach(HaveField("Pod", HavePrefix("shop/web-")))))
	s.Expect(plan.Notes).To(BeEmpty())
}

// Pods run on the existing and new Nodes of static NodePools, also if there are no others.
func TestPlanStaticReplicasOnly(t *testing.T) {
	t.Parallel()
	s := savePlan(t, planSetup{args: []string{staticGate}, objects: func(w *planEnv) {
		w.Expect(w.Kube.Delete(w.T.Context(), &karpv1.NodePool{ObjectMeta: metav1.ObjectMeta{Name: "default"}})).To(Succeed())
		pool := w.addStatic(nil, 2, "a")
		pool.Name = "new"
		w.write("pool.yaml", pool)
		w.PendingPod("small", "1")
		w.PendingPod("large", "3")
	}})
	plan := s.plan("-f pool.yaml -f web.yaml")
	onePod := And(HaveField("NodePool", "new"), HaveField("Pods", ConsistOf(HavePrefix("shop/web-"))))
	s.Expect(plan.Create).To(ConsistOf(onePod, onePod))
	const reason = "no existing node fits, and no dynamic NodePool is ready to create one"
	s.Expect(plan.Unschedulable).To(And(HaveLen(2), HaveEach(HaveField("Reason", reason)), ContainElement(HaveField("Pod", "shop/large"))))
	s.Expect(plan.Notes).To(BeEmpty())
}

// NodeClaims that wait for capacity have no VM. They get one when there is capacity.
func TestPlanParked(t *testing.T) {
	t.Parallel()
	s := savePlan(t, planSetup{args: []string{staticGate}, objects: func(w *planEnv) {
		w.addStatic(nil, 4, "a", "b", "c")
		w.addClaim("d", "static", "pve1")
	}})
	const waiting = " of 4 nodes: the others wait for capacity: "
	plan := s.plan("-f pool.yaml")
	s.Expect(plan.Create).To(BeEmpty())
	s.Expect(plan.Delete).To(BeEmpty())
	s.Expect(plan.Notes).To(ConsistOf(HavePrefix("static nodepool static has 3" + waiting)))

	plan = s.plan("-f pool.yaml --new-node-setting-file settings.json")
	s.Expect(plan.Create).To(ConsistOf(HaveField("NodePool", "static")))
	s.Expect(plan.PriceAfter).To(BeNumerically("~", plan.PriceBefore*4/3, 1e-9))

	plan = s.plan("-f pool.yaml --lose-host home/pve1")
	s.Expect(plan.Delete).To(HaveLen(3))
	s.Expect(plan.Notes).To(ContainElement(HavePrefix("static nodepool static has 0" + waiting)))
}

// A static NodePool replaces its drifted Nodes, and their pods stay on the replacements.
func TestPlanStaticDrift(t *testing.T) {
	t.Parallel()
	const unchecked = "boot data of ProxmoxNodeClass default was not checked: a saved inventory contains no Secrets"
	atLimit := karpv1.Limits{"nodes": resource.MustParse("1")}
	full := func(node string) any {
		return HavePrefix("nodeclaim " + node + " is drifted (NodeClassDrift), but is not replaced, " +
			"because its replacement would wait for capacity: no host fits t1.2VCPU-6GB")
	}
	for name, test := range map[string]struct {
		gates  string
		limits karpv1.Limits
		nodes  []string
		// kept are the notes of Nodes that are not replaced; nil if all are replaced.
		kept []any
	}{
		"replacement_first": {staticGate, nil, []string{"a"}, nil},
		"at_node_limit": {staticGate, atLimit, []string{"a"}, []any{
			"nodeclaim a is drifted (NodeClassDrift), but is not replaced, because static nodepool static is at limits.nodes",
		}},
		"termination_first": {staticGate + ",TerminateFirstDrift=true", atLimit, []string{"a"}, nil},
		"full_host":         {staticGate, nil, []string{"a", "b", "c"}, []any{full("a"), full("b"), full("c")}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := savePlan(t, planSetup{args: []string{test.gates}, objects: func(w *planEnv) { w.addStatic(test.limits, 0, test.nodes...) }})
			plan := s.plan("-f class.yaml")
			s.Expect(plan.Unschedulable).To(BeEmpty())
			s.Expect(plan.Notes).To(HaveExactElements(append([]any{unchecked}, test.kept...)...))
			s.Expect(plan.PriceAfter).To(BeNumerically("~", plan.PriceBefore, 1e-9))
			if test.kept != nil {
				s.Expect(plan.Create).To(BeEmpty())
				s.Expect(plan.Delete).To(BeEmpty())
				return
			}
			s.Expect(plan.Create).To(ConsistOf(And(HaveField("NodePool", "static"), HaveField("Host", "pve1"), HaveField("Pods", ConsistOf("shop/a")))))
			s.Expect(plan.Delete).To(ConsistOf(And(HaveField("NodeClaim", "a"), HaveField("Reason", "NodeClassDrift"))))
		})
	}
}
