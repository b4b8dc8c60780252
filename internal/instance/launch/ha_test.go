// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package launch_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

// separated returns a class whose VMs HA keeps on separate hosts.
func separated(class *v1alpha1.ProxmoxNodeClass) *v1alpha1.ProxmoxNodeClass {
	class.Spec.PlacementStrategy.PoolAffinity = v1alpha1.PoolAffinitySeparateHosts
	class.Spec.HighAvailability = &v1alpha1.HighAvailability{SeparateHosts: true}
	return class
}

// poolRule is the name of the rule of a NodePool.
func poolRule(w *testenv.Env, claim *karpv1.NodeClaim) string {
	return fmt.Sprintf("karpenter-%s-%s", instance.ShortClusterID(w.KubeCluster), claim.Labels[karpv1.NodePoolLabelKey])
}

// resourceIDs returns the IDs of the claims' VMs in HA, in order.
func resourceIDs(w *testenv.Env, claims ...*karpv1.NodeClaim) []string {
	var ids []string
	for _, claim := range claims {
		ids = append(ids, proxmox.HAResourceID(w.Intent(claim).VMID))
	}
	slices.Sort(ids)
	return ids
}

func TestLaunchHA(t *testing.T) {
	t.Parallel()
	for _, release := range []string{"8.4", "9.2"} {
		t.Run(release, func(t *testing.T) {
			t.Parallel()
			w := testenv.NewFake(t, testenv.HA(release))
			w.NodeClass.Spec.HighAvailability = &v1alpha1.HighAvailability{MaxRestart: new(int32(3)), MaxRelocate: new(int32(0))}
			p := w.StartProcess()
			claim := p.Launched("pool-abc", w.NodeClass)
			vmid := w.Intent(claim).VMID
			resource, err := w.Client.HAResource(t.Context(), vmid)
			w.Expect(err).NotTo(HaveOccurred())
			w.Expect(resource).To(And(HaveField("State", "started"), HaveField("MaxRestart", 3), HaveField("MaxRelocate", 0),
				HaveField("Comment", And(ContainSubstring("NodePool "+claim.Labels[karpv1.NodePoolLabelKey]), ContainSubstring(w.KubeCluster)))))
			w.Expect(w.Running(claim)).To(BeTrue(), "it is started before it is added to HA")
			stops := w.RecordRequests(func() { p.Delete(claim) })
			w.Expect(names(stops)).To(ContainElement("DELETE /cluster/ha/resources/{sid}"))
			w.ExpectNoOrphans()
			w.Expect(w.Sim.HAResources()).To(BeEmpty())
		})
	}
}

func TestLaunchHAOptions(t *testing.T) {
	t.Parallel()
	for release, want := range map[string]string{"8.4": "", "9.2": "0"} {
		t.Run(release, func(t *testing.T) {
			t.Parallel()
			w := testenv.NewFake(t, testenv.HA(release))
			w.NodeClass.Spec.HighAvailability = &v1alpha1.HighAvailability{State: v1alpha1.HAStateIgnored}
			p := w.StartProcess()
			claim := p.Launched("pool-abc", w.NodeClass)
			options := w.Sim.HAResources()[w.Intent(claim).VMID]
			w.Expect(options).To(HaveKeyWithValue("state", "ignored"))
			for _, option := range []string{"failback", "auto-rebalance"} {
				w.Expect(options[option]).To(Equal(want), "HA must not move running VMs")
			}
		})
	}
}

// The group of 8.4.
func TestLaunchHAGroup(t *testing.T) {
	t.Parallel()
	w := testenv.NewFake(t, testenv.HA("8.4"))
	w.Sim.AddHAGroup("rack1", "pve1:2")
	w.NodeClass.Spec.HighAvailability = &v1alpha1.HighAvailability{Group: "rack1"}
	claim := w.StartProcess().Launched("pool-abc", w.NodeClass)
	w.Expect(w.Client.HAResource(t.Context(), w.Intent(claim).VMID)).To(HaveField("Group", "rack1"))
}

// The first VM of a NodePool has no rule, the second one creates it.
func TestLaunchHASeparateHosts(t *testing.T) {
	t.Parallel()
	w := testenv.NewFake(t, testenv.Hosts(3), testenv.HA("9.2"))
	class := separated(w.NodeClass)
	p := w.StartProcess()
	first := p.Launched("a", class)
	w.Expect(w.Sim.HARules()).To(BeEmpty())
	second := p.Launched("b", class)
	w.Expect(w.Sim.HARules()).To(Equal(map[string][]string{poolRule(w, first): resourceIDs(w, first, second)}))
	third := p.Launched("c", class)
	w.Expect(w.Sim.HARules()[poolRule(w, first)]).To(ConsistOf(resourceIDs(w, first, second, third)))
	rules, err := w.Client.HARules(t.Context())
	w.Expect(err).NotTo(HaveOccurred())
	w.Expect(rules).To(ConsistOf(And(HaveField("Type", "resource-affinity"), HaveField("Affinity", "negative"), HaveField("Comment", ContainSubstring(w.KubeCluster)))))
	p.Delete(second)
	w.Expect(w.Sim.HARules()[poolRule(w, first)]).To(ConsistOf(resourceIDs(w, first, third)))
	p.Delete(first)
	p.Delete(third)
	w.Expect(w.Sim.HARules()).To(BeEmpty())
	w.Expect(w.Sim.HAResources()).To(BeEmpty())
}

// An administrator destroys a VM, which leaves it in the rule. Proxmox refuses all changes
// of such a rule.
func TestLaunchHAAfterManualDestroy(t *testing.T) {
	t.Parallel()
	w := testenv.NewFake(t, testenv.Hosts(4), testenv.HA("9.2"))
	class := separated(w.NodeClass)
	p := w.StartProcess()
	first, second, lost := p.Launched("a", class), p.Launched("b", class), p.Launched("c", class)
	rule := poolRule(w, first)
	destroy := func(claim *karpv1.NodeClaim) {
		in := w.Intent(claim)
		w.Expect(w.Sim.SetHA(in.VMID, "ignored")).To(Succeed())
		w.DestroyByHand(in.Host, in.VMID)
	}
	destroy(lost)
	w.Expect(w.Sim.HARules()[rule]).To(HaveLen(3))
	fourth := p.Launched("d", class)
	w.Expect(w.Sim.HARules()[rule]).To(ConsistOf(resourceIDs(w, first, second, fourth)))
	destroy(fourth)
	w.Expect(w.Sim.HARules()[rule]).To(ContainElements(resourceIDs(w, fourth)))
	p.Refresh()
	for _, claim := range []*karpv1.NodeClaim{fourth, lost, first, second} {
		p.Delete(claim)
	}
	w.Expect(w.Sim.HARules()).To(BeEmpty())
}

// Rules that exist keep their other resources.
func TestLaunchHARules(t *testing.T) {
	t.Parallel()
	w := testenv.NewFake(t, testenv.Hosts(2), testenv.HA("9.2"))
	p := w.StartProcess()
	other := w.Intent(p.Launched("other", w.NodeClass)).VMID
	w.Expect(w.Sim.SetHA(other, "ignored")).To(Succeed())
	w.Sim.AddHARule("rack1", map[string]string{"type": "node-affinity", "nodes": "pve1,pve2", "resources": proxmox.HAResourceID(other)})
	w.NodeClass.Spec.HighAvailability = &v1alpha1.HighAvailability{Rules: []string{"rack1"}}
	claim := p.Launched("pool-abc", w.NodeClass)
	w.Expect(w.Sim.HARules()["rack1"]).To(Equal([]string{proxmox.HAResourceID(other), proxmox.HAResourceID(w.Intent(claim).VMID)}))
	p.Delete(claim)
	w.Expect(w.Sim.HARules()["rack1"]).To(Equal([]string{proxmox.HAResourceID(other)}))

	w.NodeClass.Spec.HighAvailability = &v1alpha1.HighAvailability{Rules: []string{"rack2"}}
	w.Expect(p.Launch(p.Planned("unknown", w.NodeClass), w.NodeClass)).To(MatchError(ContainSubstring(`HA rule "rack2" does not exist`)))
}

// All VMs of a NodePool are launched and deleted at the same time, while another user changes
// rules.
func TestLaunchHAConcurrently(t *testing.T) {
	t.Parallel()
	w := testenv.NewFake(t, testenv.Hosts(4), testenv.HA("9.2"))
	class := separated(w.NodeClass)
	p := w.StartProcess()
	w.AddFault(pvesim.Fault{Method: "PUT", Path: "/cluster/ha/rules/{rule}", Count: 2, Status: 500, Message: "update HA rules failed: detected modified configuration - file changed by other user? Try again."})
	var claims []*karpv1.NodeClaim
	for n := range 4 {
		claims = append(claims, p.Planned(fmt.Sprint("pool-", n), class))
	}
	all := func(act func(*karpv1.NodeClaim) error) {
		results := make(chan error, len(claims))
		for _, claim := range claims {
			go func() { results <- act(claim) }()
		}
		for range claims {
			w.Expect(<-results).To(Succeed())
		}
	}
	all(func(claim *karpv1.NodeClaim) error { return p.Launch(claim, class) })
	w.Expect(w.Sim.HARules()).To(HaveKeyWithValue(poolRule(w, claims[0]), ConsistOf(resourceIDs(w, claims...))))
	p.Refresh()
	all(func(claim *karpv1.NodeClaim) error {
		for {
			if deleted, err := p.Instances.Deleter.Delete(t.Context(), claim); deleted || err != nil && !proxmox.IsTransient(err) {
				return err
			}
		}
	})
	w.Expect(w.Sim.HARules()).To(BeEmpty())
	w.Expect(w.Sim.HAResources()).To(BeEmpty())
}

// Whenever the controller is killed during the launch of the second VM of a NodePool, the next
// one completes it, and deletes it without leaving anything in HA.
func TestLaunchHACrash(t *testing.T) {
	t.Parallel()
	start := func(t *testing.T) (*testenv.Env, *testenv.Process, *karpv1.NodeClaim, *karpv1.NodeClaim) {
		t.Helper()
		w := testenv.NewFake(t, testenv.Hosts(2), testenv.HA("9.2"))
		p := w.StartProcess(testenv.NoPolling())
		class := separated(w.NodeClass)
		return w, p, p.Launched("first", class), p.Planned("second", class)
	}
	w, p, _, second := start(t)
	requests := w.RecordRequests(func() { w.Expect(p.Launch(second, w.NodeClass)).To(Succeed()) })
	for _, point := range testenv.CrashPoints(requests) {
		if point.Request < len(requests)-6 {
			continue // TestLaunchCrash has the steps before
		}
		t.Run(point.Name, func(t *testing.T) {
			t.Parallel()
			w, killed, first, second := start(t)
			err := killed.Instances.Launcher.Launch(testenv.KillAtRequest(w.T, w.Sim, point.Request, point.After), second, w.NodeClass)
			w.EndCrash(err != nil)
			next := w.StartProcess()
			w.Eventually(func() error { return next.Launch(w.Stored(second), w.NodeClass) }).
				WithTimeout(30 * time.Second).WithPolling(100 * time.Millisecond).Should(Succeed())
			w.Expect(w.Sim.HARules()).To(HaveKeyWithValue(poolRule(w, first), ConsistOf(resourceIDs(w, first, second))))
			next.Delete(w.Stored(second))
			next.Delete(w.Stored(first))
			w.ExpectNoOrphans()
			w.Expect(w.Sim.HARules()).To(BeEmpty())
			w.Expect(w.Sim.HAResources()).To(BeEmpty())
		})
	}
}
