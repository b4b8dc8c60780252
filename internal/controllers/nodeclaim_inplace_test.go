// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package controllers_test

import (
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/nodeclaim/vmupdate"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/ownership"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

type spec = v1alpha1.ProxmoxNodeClassSpec

// updatedVM is a running VM, and its claim as core stores it.
type updatedVM struct {
	*testenv.Env
	class      *v1alpha1.ProxmoxNodeClass
	claim      *karpv1.NodeClaim
	vmid       int
	controller *vmupdate.Controller
}

// launchVM launches a VM of a class.
func launchVM(w *testenv.Env, changes ...func(*spec)) *updatedVM {
	w.T.Helper()
	class := w.Class(func(c *v1alpha1.ProxmoxNodeClass) {
		for _, change := range changes {
			change(&c.Spec)
		}
	})
	claim := w.Launched("a", class)
	return &updatedVM{w, class, claim, w.Intent(claim).VMID, newVMUpdateController(w, w.Kube)}
}

// tryUpdate changes the class and reconciles the claim.
func (v *updatedVM) tryUpdate(change func(*spec)) error {
	v.T.Helper()
	testenv.Modify(v.Env, v.class, func(c *v1alpha1.ProxmoxNodeClass) { change(&c.Spec) })
	v.Refresh() // until then, it is unknown what an earlier update wrote
	result, err := v.controller.Reconcile(v.T.Context(), testenv.Reload(v.Env, v.claim))
	v.Expect(result).To(BeZero())
	return err
}

func (v *updatedVM) update(change func(*spec)) {
	v.T.Helper()
	v.Expect(v.tryUpdate(change)).To(Succeed())
	v.Expect(v.updated()).To(BeTrue())
}

// updated reports whether the mark of the VM shows that it is like the class.
func (v *updatedVM) updated() bool {
	mark, _ := ownership.Read(v.config().Description())
	return mark.Applied.Hash == v.class.InPlaceHash() && len(mark.Applied.Pending) == 0
}

// setApplied changes what the mark of the VM records as written.
func (v *updatedVM) setApplied(change func(*ownership.Mark)) { setMark(v.Env, v.claim, change) }

// setMark changes the ownership mark of a claim's VM, which the controller then reads.
func setMark(w *testenv.Env, claim *karpv1.NodeClaim, change func(*ownership.Mark)) {
	w.T.Helper()
	in := w.Intent(claim)
	notes := w.VMConfig(in).Description()
	mark, ok := ownership.Read(notes)
	w.Expect(ok).To(BeTrue())
	change(&mark)
	w.Expect(w.Client.UpdateVM(w.T.Context(), in.Host, in.VMID, proxmox.ConfigChange{Set: map[string]string{"description": mark.Notes(notes)}})).To(Succeed())
	w.Inventory.InvalidateConfig(in.Region, in.VMID)
	w.Refresh()
}

func (v *updatedVM) config() proxmox.VMConfig { return v.VMConfig(v.Intent(v.claim)) }

func (v *updatedVM) resourcePool() string {
	v.T.Helper()
	v.Refresh()
	guest, ok := v.Inventory.View().Guest(testenv.Region, v.vmid)
	v.Expect(ok).To(BeTrue())
	return guest.Pool
}

// resourcePools adds resource pools, and privileges.
func resourcePools(privileges ...string) testenv.Option {
	return testenv.Scenario(func(s *pvesim.Scenario) {
		s.Pools = append(s.Pools, pvesim.Pool{ID: "old"}, pvesim.Pool{ID: "new"}, pvesim.Pool{ID: "admins"})
		s.Roles[0].Privileges = append(s.Roles[0].Privileges, privileges...)
	})
}

func setGroups(groups ...v1alpha1.SecurityGroup) func(*spec) {
	return func(s *spec) { s.SecurityGroups = groups }
}

func setPool(pool string) func(*spec) { return func(s *spec) { s.ResourcePool = pool } }

var group = v1alpha1.SecurityGroup{Name: testenv.SecurityGroup, Interface: "net0"}

func TestUpdateTagsAndSecurityGroups(t *testing.T) {
	t.Parallel()
	v := launchVM(testenv.NewWithAPIServer(t))
	v.StartManager(func(kube client.Client) testenv.Registrar { return newVMUpdateController(v.Env, kube) })
	before := v.config().Network().NICs()[0]
	v.Expect(before.Firewall).To(BeFalse())
	testenv.Modify(v.Env, v.class, func(c *v1alpha1.ProxmoxNodeClass) {
		c.Spec.Tags, c.Spec.SecurityGroups = []string{"Web", "karpenter"}, []v1alpha1.SecurityGroup{group}
	})
	v.Eventually(v.updated).Should(BeTrue())
	after := v.config()
	v.Expect(after.Tags()).To(ConsistOf("karpenter", "web"))
	v.Expect(after.Network().NICs()[0]).To(And(HaveField("Firewall", true), HaveField("MAC", before.MAC)))
	v.Expect(v.Running(v.claim)).To(BeTrue())
	v.Expect(v.Events.Reasons(v.claim)).To(BeEmpty())
}

func TestUpdateResourcePool(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		v := launchVM(testenv.New(t, resourcePools("Pool.Audit", "Pool.Allocate")), setPool("old"))
		v.Expect(v.resourcePool()).To(Equal("old"))
		for _, pool := range []string{"new", "", "old"} {
			v.update(setPool(pool))
			v.Expect(v.resourcePool()).To(Equal(pool))
		}
		v.Expect(v.Running(v.claim)).To(BeTrue())

		v.Expect(v.Client.MoveToPool(t.Context(), v.vmid, "old", "admins")).To(Succeed())
		v.Refresh()
		v.update(setPool("new"))
		v.Expect(v.resourcePool()).To(Equal("admins"), "it stays where an administrator moved it")
		v.Expect(v.Events.Reasons(v.claim)).To(BeEmpty())
	})
}

func TestUpdateFailed(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		invalid, valid func(*spec)
		message        string
	}{
		"resource_pool_forbidden": {setPool("new"), setPool("old"), "Pool.Allocate.* /pool/"},
		"no_interface":            {setGroups(v1alpha1.SecurityGroup{Name: testenv.SecurityGroup, Interface: "net7"}), setGroups(group), "net7"},
	} {
		testenv.RunSimulated(t, name, func(t *testing.T) {
			v := launchVM(testenv.New(t, resourcePools()), setPool("old"))
			v.Expect(v.tryUpdate(test.invalid)).To(MatchError(MatchRegexp(test.message)))
			v.Expect(v.Events.Messages("InPlaceUpdateFailed")).To(ConsistOf(MatchRegexp(test.message)))
			v.Expect(v.updated()).To(BeFalse())
			v.update(test.valid)
			v.Expect(v.config().Network().NICs()[0].Firewall).To(Equal(len(v.class.Spec.SecurityGroups) > 0))
		})
	}
}

func TestUpdateNotNeeded(t *testing.T) {
	t.Parallel()
	outdated := func(mark *ownership.Mark) { mark.Applied.Hash = "another" }
	for name, change := range map[string]func(*updatedVM){
		"unchanged":      func(*updatedVM) {},
		"other_provider": func(v *updatedVM) { v.setApplied(func(mark *ownership.Mark) { mark.Applied = nil }) },
		"other_VM":       func(v *updatedVM) { v.setApplied(func(mark *ownership.Mark) { outdated(mark); mark.VMID++ }) },
		"during_launch": func(v *updatedVM) {
			v.setApplied(outdated)
			v.Restart(true)
			v.controller = newVMUpdateController(v.Env, v.Kube)
		},
		"deleting": func(v *updatedVM) {
			v.setApplied(outdated)
			v.claim.DeletionTimestamp = new(metav1.Now())
		},
		"missing_class": func(v *updatedVM) {
			v.setApplied(outdated)
			v.Expect(v.Kube.Delete(v.T.Context(), v.class)).To(Succeed())
		},
	} {
		testenv.RunSimulated(t, name, func(t *testing.T) {
			v := launchVM(testenv.New(t, testenv.NoPolling()))
			change(v)
			v.Sim.ResetRequests()
			v.Expect(v.controller.Reconcile(t.Context(), v.claim)).To(BeZero())
			v.Expect(v.Sim.Requests()).To(BeEmpty())
		})
	}
}

func setHA(ha *v1alpha1.HighAvailability) func(*spec) {
	return func(s *spec) { s.HighAvailability = ha }
}

func setTags(tags ...string) func(*spec) { return func(s *spec) { s.Tags = tags } }

// resource returns the settings of the VM in HA; nil without HA.
func (v *updatedVM) resource() map[string]string { return v.Sim.HAResources()[v.vmid] }

func TestUpdateHA(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		v := launchVM(testenv.New(t, testenv.Hosts(2), testenv.HA("9.2")))
		other := v.Intent(v.Launched("other", v.class)).VMID
		v.Expect(v.Sim.SetHA(other, "ignored")).To(Succeed())
		for _, rule := range []string{"rack1", "rack2"} {
			v.Sim.AddHARule(rule, map[string]string{"type": "node-affinity", "nodes": "pve1,pve2", "resources": proxmox.HAResourceID(other)})
		}
		v.update(setHA(&v1alpha1.HighAvailability{Rules: []string{"rack1"}}))
		v.Expect(v.resource()).To(And(HaveKeyWithValue("state", "started"), HaveKeyWithValue("max_restart", "1")))
		v.Expect(v.Sim.HARules()["rack1"]).To(ContainElement(proxmox.HAResourceID(v.vmid)))
		v.update(setHA(&v1alpha1.HighAvailability{MaxRestart: new(int32(4)), Rules: []string{"rack2"}}))
		v.Expect(v.resource()).To(HaveKeyWithValue("max_restart", "4"))
		v.Expect(v.Sim.HARules()).To(And(
			HaveKeyWithValue("rack1", []string{proxmox.HAResourceID(other)}), HaveKeyWithValue("rack2", ContainElement(proxmox.HAResourceID(v.vmid)))))
		v.update(setHA(nil))
		v.Expect(v.resource()).To(BeNil())
		v.Expect(v.Sim.HARules()["rack2"]).To(Equal([]string{proxmox.HAResourceID(other)}))
		v.Expect(v.Running(v.claim)).To(BeTrue())
		v.Expect(v.Sim.HAResources()).To(HaveKey(other), "another user added it")
	})
}

// The class removes a resource affinity rule that has one other resource. Proxmox refuses to
// remove the VM there, which does not block the update. With a further resource, the VM is
// removed.
func TestUpdateHALastInRule(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		const db, cache = "vm:101", "vm:102"
		w := testenv.New(t, testenv.Hosts(2), testenv.HA("9.2"))
		setRule := func(ids ...string) {
			w.Sim.AddHARule("with-db", map[string]string{"type": "resource-affinity", "affinity": "positive", "resources": strings.Join(ids, ",")})
		}
		w.Expect(w.Sim.SetHA(101, "ignored")).To(Succeed())
		w.Expect(w.Sim.SetHA(102, "ignored")).To(Succeed())
		setRule(db)
		v := launchVM(w, setHA(&v1alpha1.HighAvailability{Rules: []string{"with-db"}}))
		vm := proxmox.HAResourceID(v.vmid)
		w.Expect(w.Sim.HARules()).To(HaveKeyWithValue("with-db", []string{db, vm}))
		v.update(setHA(&v1alpha1.HighAvailability{}))
		w.Expect(w.Sim.HARules()).To(HaveKeyWithValue("with-db", []string{db, vm}))
		w.Expect(v.resource()).NotTo(BeNil())

		setRule(db, cache, vm)
		v.update(setHA(&v1alpha1.HighAvailability{MaxRestart: new(int32(2))}))
		w.Expect(w.Sim.HARules()).To(HaveKeyWithValue("with-db", []string{db, cache}))
	})
}

// A group of 8.4 is removed.
func TestUpdateHAGroup(t *testing.T) {
	testenv.With(testenv.HA("8.4")).Test(t, func(w *testenv.Env, _ *testenv.Process) {
		w.Sim.AddHAGroup("rack1", "pve1")
		v := launchVM(w, setHA(&v1alpha1.HighAvailability{Group: "rack1"}))
		v.update(func(s *spec) { s.HighAvailability.Group = "" })
		v.Expect(v.resource()).To(And(Not(HaveKey("group")), HaveKeyWithValue("state", "started")))
	})
}

// An administrator added the VM to HA, and the class has no HA: other changes need no
// privilege for HA.
func TestUpdateVMInHA(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		v := launchVM(testenv.New(t))
		v.Expect(v.Sim.SetHA(v.vmid, "started")).To(Succeed())
		v.update(setTags("web"))
		v.Expect(v.config().Tags()).To(ConsistOf("web"))
		v.Expect(v.resource()).NotTo(BeNil())
	})
}

// A change of tags does not revert the state that an administrator requested in HA.
func TestUpdateKeepsHAState(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		v := launchVM(testenv.New(t, testenv.HA("9.2")), setHA(&v1alpha1.HighAvailability{}))
		v.Expect(v.resource()).To(HaveKeyWithValue("state", "started"))
		v.Expect(v.Sim.SetHA(v.vmid, "ignored")).To(Succeed())
		v.AddFault(pvesim.Fault{Method: "PUT", Path: "/nodes/*/qemu/*/config", Status: 500, Message: "busy", Count: 1})
		v.Expect(v.tryUpdate(setTags("web"))).To(MatchError(ContainSubstring("busy")))
		v.update(setTags("web"))
		v.Expect(v.config().Tags()).To(ConsistOf("web"))
		v.Expect(v.resource()).To(HaveKeyWithValue("state", "ignored"))
	})
}

// A change that failed is reverted completely when the class is changed back.
func TestUpdateHARevert(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		set := func(pool string, ha v1alpha1.HighAvailability) func(*spec) {
			return func(s *spec) { s.ResourcePool, s.HighAvailability = pool, &ha }
		}
		v := launchVM(testenv.New(t, testenv.HA("9.2"), resourcePools("Pool.Audit", "Pool.Allocate")), set("old", v1alpha1.HighAvailability{}))
		before := v.resource()
		failing := set("new", v1alpha1.HighAvailability{MaxRestart: new(int32(5)), Rules: []string{"typo"}})
		v.Expect(v.tryUpdate(failing)).To(MatchError(ContainSubstring("typo")))
		v.Expect(v.resource()).To(HaveKeyWithValue("max_restart", "5"))
		v.Expect(v.resourcePool()).To(Equal("new"))
		v.update(set("old", v1alpha1.HighAvailability{}))
		v.Expect(v.resource()).To(Equal(before))
		v.Expect(v.resourcePool()).To(Equal("old"))
	})
}
