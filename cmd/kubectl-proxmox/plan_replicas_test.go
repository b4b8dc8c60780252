// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"path/filepath"
	"testing"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/yaml"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/whatif"
)

// staticGate enables static NodePools.
const staticGate = "--feature-gates=StaticCapacity=true"

// planReplicas runs the command on the live cluster, with pool.yaml: a NodePool like that of
// addStatic, with other replicas.
func (w *planEnv) planReplicas(name string, replicas int64, args ...string) whatif.Plan {
	w.T.Helper()
	stored := testenv.Reload(w.Env, &karpv1.NodePool{ObjectMeta: metav1.ObjectMeta{Name: w.Named("static")}})
	pool := &karpv1.NodePool{TypeMeta: metav1.TypeMeta{APIVersion: "karpenter.sh/v1", Kind: "NodePool"}, ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: stored.Spec}
	pool.Spec.Replicas = &replicas
	content, err := yaml.Marshal(pool)
	w.Expect(err).NotTo(HaveOccurred())
	out, err := runIn(w.Env, append([]string{"plan", "-o", "json", "-f", write(w.T, w.dir, "pool.yaml", string(content))}, args...)...)
	return w.decode(w.rename(out), err)
}

func TestPlanStaticReplicas(t *testing.T) {
	t.Parallel()
	isStatic := And(HaveField("NodePool", "default-static"), HaveField("Host", "pve1"))
	for name, test := range map[string]struct {
		gates    string
		limits   karpv1.Limits
		nodes    []string
		replicas int64
		want     func(*planEnv, whatif.Plan)
	}{
		"more": {staticGate, nil, []string{"a"}, 3, func(w *planEnv, plan whatif.Plan) {
			w.Expect(plan.Create).To(And(HaveLen(2), HaveEach(isStatic)))
			w.Expect(plan.Notes).To(BeEmpty())
			w.Expect(plan.PriceAfter).To(BeNumerically("~", 3*plan.PriceBefore, 1e-9))
		}},
		"more_than_fit": {staticGate, nil, []string{"a"}, 5, func(w *planEnv, plan whatif.Plan) {
			w.Expect(plan.Create).To(And(HaveLen(2), HaveEach(isStatic)))
			w.Expect(plan.Notes).To(ConsistOf(HavePrefix("static nodepool default-static has 3 of 5 nodes: the others wait for capacity: no host fits t1.2VCPU-6GB")))
		}},
		"at_node_limit": {staticGate, karpv1.Limits{"nodes": resource.MustParse("2")}, []string{"a"}, 3, func(w *planEnv, plan whatif.Plan) {
			w.Expect(plan.Create).To(ConsistOf(isStatic))
			w.Expect(plan.Notes).To(ConsistOf("static nodepool default-static has 2 of 3 nodes: it is at limits.nodes"))
		}},
		"gate_off": {"--feature-gates=StaticCapacity=false", nil, []string{"a"}, 3, func(w *planEnv, plan whatif.Plan) {
			w.Expect(plan.Create).To(BeEmpty())
			w.Expect(plan.Notes).To(ConsistOf("static nodepool default-static has 1 of 3 nodes: the feature gate StaticCapacity is off"))
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newPlanEnv(t, test.gates)
			w.addStatic(test.limits, test.nodes...)
			plan := w.planReplicas(w.Named("static"), test.replicas)
			w.Expect(plan.Delete).To(BeEmpty())
			test.want(w, plan)
		})
	}
}

// The pod of the deleted Node runs on another one, and the capacity is free for other Nodes.
func TestPlanStaticReplicasFewer(t *testing.T) {
	t.Parallel()
	w := newPlanEnv(t, staticGate)
	w.addStatic(nil, "a", "b", "c")
	w.writeManifests()
	plan := w.planReplicas(w.Named("static"), 2, "-f", filepath.Join(w.dir, "many.yaml"))
	w.Expect(plan.Delete).To(ConsistOf(And(HaveField("NodePool", "default-static"), HaveField("Reason", "spec.replicas is 2"))))
	w.Expect(plan.Create).To(And(HaveLen(4), HaveEach(HaveField("NodePool", "default")), ContainElement(HaveField("Host", "pve1"))))
	w.Expect(plan.Unschedulable).To(And(HaveLen(5), HaveEach(HaveField("Pod", HavePrefix("shop/web-")))))
	w.Expect(plan.Notes).To(BeEmpty())
}

// Pods run on the existing and new Nodes of static NodePools, also if there are no others.
func TestPlanStaticReplicasOnly(t *testing.T) {
	t.Parallel()
	w := newPlanEnv(t, staticGate)
	w.Expect(w.Kube.Delete(t.Context(), &karpv1.NodePool{ObjectMeta: metav1.ObjectMeta{Name: w.Named("pool")}})).To(Succeed())
	w.addStatic(nil, "a")
	w.PendingPod("small", "1")
	w.PendingPod("large", "3")
	w.writeManifests()
	plan := w.planReplicas("new", 2, "-f", filepath.Join(w.dir, "web.yaml"))
	onePod := And(HaveField("NodePool", "new"), HaveField("Pods", ConsistOf(HavePrefix("shop/web-"))))
	w.Expect(plan.Create).To(ConsistOf(onePod, onePod))
	const reason = "no existing node fits, and no dynamic NodePool is ready to create one"
	w.Expect(plan.Unschedulable).To(And(HaveLen(2), HaveEach(HaveField("Reason", reason)), ContainElement(HaveField("Pod", "shop/large"))))
	w.Expect(plan.Notes).To(BeEmpty())
}

// NodeClaims that wait for capacity have no VM. They get one when there is capacity.
func TestPlanParked(t *testing.T) {
	t.Parallel()
	w := newPlanEnv(t, staticGate)
	w.addStatic(nil, "a", "b", "c")
	w.addClaim("d", "pve1", func(c *karpv1.NodeClaim) { c.Labels[karpv1.NodePoolLabelKey] = w.Named("static") })
	w.writeManifests()
	plan := w.planReplicas(w.Named("static"), 4)
	w.Expect(plan.Create).To(BeEmpty())
	w.Expect(plan.Delete).To(BeEmpty())
	w.Expect(plan.Notes).To(ConsistOf(HavePrefix("static nodepool default-static has 3 of 4 nodes: the others wait for capacity: ")))

	plan = w.planReplicas(w.Named("static"), 4, "--new-node-setting-file", filepath.Join(w.dir, "settings.json"))
	w.Expect(plan.Create).To(ConsistOf(HaveField("NodePool", "default-static")))
	w.Expect(plan.PriceAfter).To(BeNumerically("~", plan.PriceBefore*4/3, 1e-9))

	plan = w.planReplicas(w.Named("static"), 4, "--lose-host", testenv.Region+"/pve1")
	w.Expect(plan.Delete).To(HaveLen(3))
	w.Expect(plan.Notes).To(ContainElement(HavePrefix("static nodepool default-static has 0 of 4 nodes: the others wait for capacity: ")))
}
