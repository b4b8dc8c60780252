// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package instance_test

import (
	"fmt"
	"testing"

	. "github.com/onsi/gomega"
	"github.com/onsi/gomega/types"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance/deletion"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

// separate makes HA keep the VMs of a class on separate hosts.
func separate(w *testenv.Env) {
	w.NodeClass.Spec.PlacementStrategy.PoolAffinity = v1alpha1.PoolAffinitySeparateHosts
	w.NodeClass.Spec.HighAvailability = &v1alpha1.HighAvailability{SeparateHosts: true}
	w.Create(w.NodeClass.DeepCopy())
}

// haveRule matches the only HA rule, that of a NodePool, with the VMs of claims.
func haveRule(w *testenv.Env, claims ...*karpv1.NodeClaim) types.GomegaMatcher {
	w.T.Helper()
	var members []string
	for _, claim := range claims {
		members = append(members, proxmox.HAResourceID(w.Intent(claim).VMID))
	}
	name := fmt.Sprintf("karpenter-%s-%s", instance.ShortClusterID(w.KubeCluster), claims[0].Labels[karpv1.NodePoolLabelKey])
	return And(HaveLen(1), HaveKeyWithValue(name, ConsistOf(members)))
}

func TestLaunchHA(t *testing.T) {
	t.Parallel()
	for release, moves := range map[string]string{"8.4": "", "9.2": "0"} {
		testenv.With(testenv.HA(release), testenv.NoPolling()).Subtest(t, release, func(w *testenv.Env, p *testenv.Process) {
			w.NodeClass.Spec.HighAvailability = &v1alpha1.HighAvailability{MaxRestart: new(int32(3)), MaxRelocate: new(int32(0))}
			claim := p.Launched("pool-abc", w.NodeClass)
			vmid := w.Intent(claim).VMID
			w.Expect(w.Client.HAResource(w.Context(), vmid)).To(And(
				HaveField("State", "started"), HaveField("MaxRestart", 3), HaveField("MaxRelocate", 0),
				HaveField("Comment", And(ContainSubstring("NodePool "+claim.Labels[karpv1.NodePoolLabelKey]), ContainSubstring(w.KubeCluster)))))
			for _, option := range []string{"failback", "auto-rebalance"} {
				w.Expect(w.Sim.HAResources()[vmid][option]).To(Equal(moves), "HA must not move running VMs")
			}
			w.Expect(w.Running(claim)).To(BeTrue(), "it is started before it is added to HA")
			w.Sim.ResetRequests()
			p.DeleteAll(claim)
			w.Expect(w.Sim.CountRequests("DELETE", "/cluster/ha/resources/{sid}")).To(Equal(1))
		})
	}
}

// The group of 8.4.
func TestLaunchHAGroup(t *testing.T) {
	testenv.With(testenv.HA("8.4"), testenv.NoPolling()).Test(t, func(w *testenv.Env, p *testenv.Process) {
		w.Sim.AddHAGroup("rack1", "pve1:2")
		w.NodeClass.Spec.HighAvailability = &v1alpha1.HighAvailability{Group: "rack1", State: v1alpha1.HAStateIgnored}
		claim := p.Launched("pool-abc", w.NodeClass)
		w.Expect(w.Client.HAResource(w.Context(), w.Intent(claim).VMID)).To(And(HaveField("Group", "rack1"), HaveField("State", "ignored")))
	})
}

// destroyInHA destroys a claim's VM in HA by hand, which leaves it in rules.
func destroyInHA(w *testenv.Env, claim *karpv1.NodeClaim) {
	w.T.Helper()
	in := w.Intent(claim)
	w.Expect(w.Sim.SetHA(in.VMID, "ignored")).To(Succeed())
	w.DestroyByHand(in.Host, in.VMID)
}

func TestLaunchHARules(t *testing.T) {
	t.Parallel()
	// Rules that exist keep their other resources.
	testenv.With(testenv.Hosts(2), testenv.HA("9.2"), testenv.NoPolling()).Subtest(t, "existing_rule", func(w *testenv.Env, p *testenv.Process) {
		other := proxmox.HAResourceID(101)
		w.Expect(w.Sim.SetHA(101, "ignored")).To(Succeed())
		w.Sim.AddHARule("rack1", map[string]string{"type": "node-affinity", "nodes": "pve1,pve2", "resources": other})
		w.NodeClass.Spec.HighAvailability = &v1alpha1.HighAvailability{Rules: []string{"rack1"}}
		claim := p.Launched("pool-abc", w.NodeClass)
		w.Expect(w.Sim.HARules()["rack1"]).To(Equal([]string{other, proxmox.HAResourceID(w.Intent(claim).VMID)}))
		p.Delete(claim)
		w.Expect(w.Sim.HARules()["rack1"]).To(Equal([]string{other}))
	})
	// The first VM of a NodePool has no rule, the second one creates it.
	testenv.With(testenv.Hosts(3), testenv.HA("9.2")).Subtest(t, "separate_hosts", func(w *testenv.Env, p *testenv.Process) {
		separate(w)
		first := p.Launched("a", w.NodeClass)
		w.Expect(w.Sim.HARules()).To(BeEmpty())
		second := p.Launched("b", w.NodeClass)
		w.Expect(w.Sim.HARules()).To(haveRule(w, first, second))
		third := p.Launched("c", w.NodeClass)
		w.Expect(w.Sim.HARules()).To(haveRule(w, first, second, third))
		w.Expect(w.Client.HARules(w.Context())).To(ConsistOf(And(
			HaveField("Type", "resource-affinity"), HaveField("Affinity", "negative"), HaveField("Comment", ContainSubstring(w.KubeCluster)))))
		p.Delete(second)
		w.Expect(w.Sim.HARules()).To(haveRule(w, first, third))
		p.Delete(first)
		p.DeleteAll(third)
	})
	// An administrator destroys a VM, which leaves it in the rule. Proxmox refuses all changes
	// of such a rule.
	testenv.With(testenv.Hosts(4), testenv.HA("9.2")).Subtest(t, "after_manual_destroy", func(w *testenv.Env, p *testenv.Process) {
		separate(w)
		first, second, lost := p.Launched("a", w.NodeClass), p.Launched("b", w.NodeClass), p.Launched("c", w.NodeClass)
		destroyInHA(w, lost)
		w.Expect(w.Sim.HARules()).To(haveRule(w, first, second, lost))
		fourth := p.Launched("d", w.NodeClass)
		w.Expect(w.Sim.HARules()).To(haveRule(w, first, second, fourth))
		destroyInHA(w, fourth)
		w.Expect(w.Sim.HARules()).To(haveRule(w, first, second, fourth))
		p.Refresh()
		for _, claim := range []*karpv1.NodeClaim{fourth, lost, first, second} {
			p.Delete(claim)
		}
		w.Expect(w.Sim.HARules()).To(BeEmpty())
	})
}

// All VMs of a NodePool are launched and deleted at the same time, while another user changes
// rules.
func TestLaunchHAConcurrently(t *testing.T) {
	testenv.With(testenv.Hosts(4), testenv.HA("9.2")).Test(t, func(w *testenv.Env, p *testenv.Process) {
		separate(w)
		w.AddFault(pvesim.Fault{
			Method: "PUT", Path: "/cluster/ha/rules/{rule}", Count: 2, Status: 500,
			Message: "update HA rules failed: detected modified configuration - file changed by other user? Try again.",
		})
		var claims []*karpv1.NodeClaim
		for n := range 4 {
			claims = append(claims, p.Planned(fmt.Sprint("pool-", n), w.NodeClass))
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
		all(func(claim *karpv1.NodeClaim) error { return p.Launch(claim, w.NodeClass) })
		w.Expect(w.Sim.HARules()).To(haveRule(w, claims...))
		p.Refresh()
		all(func(claim *karpv1.NodeClaim) error {
			for {
				if deleted, err := p.Instances.Deleter.Delete(w.Context(), claim); deleted || err != nil && !proxmox.IsTransient(err) {
					return err
				}
			}
		})
		w.ExpectNoOrphans()
	})
}

// twoHAHosts is a Cluster in which HA has rules.
var twoHAHosts = testenv.With(testenv.Hosts(2), testenv.HA("9.2"), testenv.NoPolling())

// launchSeparated launches two VMs in HA that a rule keeps on separate hosts, and returns the first.
func launchSeparated(w *testenv.Env, p *testenv.Process) *karpv1.NodeClaim {
	w.T.Helper()
	separate(w)
	first := p.Launched("first", w.NodeClass)
	p.Launched("second", w.NodeClass)
	p.Refresh()
	w.Expect(w.Sim.HARules()).To(HaveLen(1))
	return first
}

func TestDeleteVMUnderHA(t *testing.T) {
	t.Parallel()
	for _, version := range []string{"8.4", "9.2"} {
		for _, state := range []string{"started", "stopped", "disabled", "ignored"} {
			testenv.With(testenv.HA(version), testenv.NoPolling()).Subtest(t, version+"_"+state, func(w *testenv.Env, p *testenv.Process) {
				claim := p.Launched("pool-abc", w.NodeClass)
				w.Expect(w.Sim.SetHA(w.Intent(claim).VMID, state)).To(Succeed())
				p.DeleteAll(claim)
				w.Expect(w.Sim.HAResources()).To(BeEmpty(), "the HA resource is deleted with the VM")
			})
		}
	}
}

func TestDeleteHA(t *testing.T) {
	t.Parallel()
	// HA migrates the VM after it was listed.
	twoHAHosts.Subtest(t, "migrated", func(w *testenv.Env, p *testenv.Process) {
		claim, in := launchVM(w, p)
		p.Refresh()
		w.Expect(w.Sim.SetHA(in.VMID, "started")).To(Succeed())
		w.Expect(w.Sim.MigrateGuest(in.VMID, testenv.OtherHost(in.Host))).To(Succeed())
		p.Delete(claim)
		w.Expect(w.VMs()).To(BeEmpty())
		w.Expect(w.Sim.HAResources()).To(BeEmpty())
	})
	// The claims of VMs in HA do not exist.
	twoHAHosts.Subtest(t, "orphan", func(w *testenv.Env, p *testenv.Process) {
		launchSeparated(w, p)
		vms := listVMs(w, p)
		w.Expect(vms).To(HaveEach(HaveField("UnderHA()", true)))
		for _, vm := range vms {
			w.Expect(p.Instances.Deleter.DeleteOrphan(w.Context(), deletion.Orphan{VM: vm})).To(BeTrue())
		}
		w.Expect(w.Sim.HAResources()).To(BeEmpty())
		w.Expect(w.Sim.HARules()).To(BeEmpty())
	})
	// Another user's VM has the VMID of a deleted VM that was in HA.
	twoHAHosts.Subtest(t, "VMID_taken", func(w *testenv.Env, p *testenv.Process) {
		first := launchSeparated(w, p)
		vmid := w.Intent(first).VMID
		destroyInHA(w, first)
		w.CloneByHand("pve1", vmid, "foreign")
		w.Expect(w.Sim.SetHA(vmid, "ignored")).To(Succeed())
		p.Refresh()
		p.Delete(first)
		w.Expect(w.Sim.HAResources()).To(HaveKey(vmid))
		w.Expect(w.Sim.HARules()).To(BeEmpty(), "the other VM would be the only one")
	})
	// An administrator destroys a VM, which leaves it in a resource affinity rule with one other
	// resource. Proxmox refuses to remove it there, which does not block the deletion. The next VM
	// replaces the stale entry.
	twoHAHosts.Subtest(t, "last_in_rule", func(w *testenv.Env, p *testenv.Process) {
		const db = 101
		w.Expect(w.Sim.SetHA(db, "ignored")).To(Succeed())
		w.Sim.AddHARule("with-db", map[string]string{"type": "resource-affinity", "affinity": "positive", "resources": proxmox.HAResourceID(db)})
		w.NodeClass.Spec.HighAvailability = &v1alpha1.HighAvailability{Rules: []string{"with-db"}}
		claim, next := p.Launched("pool-abc", w.NodeClass), p.Planned("pool-next", w.NodeClass)
		destroyInHA(w, claim)
		expectInRule := func(claim *karpv1.NodeClaim) {
			w.Expect(w.Sim.HARules()).To(HaveKeyWithValue("with-db", ConsistOf(proxmox.HAResourceID(db), proxmox.HAResourceID(w.Intent(claim).VMID))))
		}
		expectInRule(claim)
		p.Refresh()
		w.Expect(p.Instances.Deleter.Delete(w.Context(), claim)).To(BeTrue())
		expectInRule(claim)
		p.MustLaunch(next, w.NodeClass)
		expectInRule(next)
	})
}
