// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package controllers_test

import (
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

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
		const db, cache = 101, 102
		w := testenv.New(t, testenv.Hosts(2), testenv.HA("9.2"))
		ids := func(vmids ...int) (out []string) {
			for _, vmid := range vmids {
				out = append(out, proxmox.HAResourceID(vmid))
			}
			return out
		}
		setRule := func(vmids ...int) {
			w.Sim.AddHARule("with-db", map[string]string{"type": "resource-affinity", "affinity": "positive", "resources": strings.Join(ids(vmids...), ",")})
		}
		for _, vmid := range []int{db, cache} {
			w.Expect(w.Sim.SetHA(vmid, "ignored")).To(Succeed())
		}
		setRule(db)
		v := launchVM(w, setHA(&v1alpha1.HighAvailability{Rules: []string{"with-db"}}))
		w.Expect(w.Sim.HARules()).To(HaveKeyWithValue("with-db", ids(db, v.vmid)))
		v.update(setHA(&v1alpha1.HighAvailability{}))
		w.Expect(w.Sim.HARules()).To(HaveKeyWithValue("with-db", ids(db, v.vmid)))
		w.Expect(v.resource()).NotTo(BeNil())

		setRule(db, cache, v.vmid)
		v.update(setHA(&v1alpha1.HighAvailability{MaxRestart: new(int32(2))}))
		w.Expect(w.Sim.HARules()).To(HaveKeyWithValue("with-db", ids(db, cache)))
	})
}

// A group of 8.4 is removed.
func TestUpdateHAGroup(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w := testenv.New(t, testenv.HA("8.4"))
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
		v.Expect(v.reconcile()).To(Succeed())
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
