// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package inplace_test

import (
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/nodeclaim/inplace"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

func TestUpdateHA(t *testing.T) {
	t.Parallel()
	w := testenv.New(t, testenv.Hosts(2), testenv.HA("9.2"))
	class := w.Class()
	other := w.Intent(w.Launched("other", class)).VMID
	claim := running(w, class)
	vmid := w.Intent(claim).VMID
	w.Expect(w.Sim.SetHA(other, "ignored")).To(Succeed())
	for _, rule := range []string{"rack1", "rack2"} {
		w.Sim.AddHARule(rule, map[string]string{"type": "node-affinity", "nodes": "pve1,pve2", "resources": proxmox.HAResourceID(other)})
	}
	c := inplace.NewController(w.Kube, w.Instances.Updater, w.Events)
	change := func(ha *v1alpha1.HighAvailability) map[string]string {
		t.Helper()
		testenv.Modify(w, class, func(c *v1alpha1.ProxmoxNodeClass) { c.Spec.HighAvailability = ha })
		_, err := c.Reconcile(t.Context(), testenv.Reload(w, claim))
		w.Expect(err).NotTo(HaveOccurred())
		w.Expect(testenv.Reload(w, claim).Annotations[v1alpha1.AnnotationInPlaceUpdateHash]).To(Equal(class.InPlaceHash()))
		return w.Sim.HAResources()[vmid]
	}
	w.Expect(change(&v1alpha1.HighAvailability{Rules: []string{"rack1"}})).To(And(HaveKeyWithValue("state", "started"), HaveKeyWithValue("max_restart", "1")))
	w.Expect(w.Sim.HARules()["rack1"]).To(ContainElement(proxmox.HAResourceID(vmid)))
	w.Expect(change(&v1alpha1.HighAvailability{MaxRestart: new(int32(4)), Rules: []string{"rack2"}})).To(HaveKeyWithValue("max_restart", "4"))
	w.Expect(w.Sim.HARules()).To(And(
		HaveKeyWithValue("rack1", []string{proxmox.HAResourceID(other)}), HaveKeyWithValue("rack2", ContainElement(proxmox.HAResourceID(vmid)))))
	w.Expect(change(nil)).To(BeNil())
	w.Expect(w.Sim.HARules()["rack2"]).To(Equal([]string{proxmox.HAResourceID(other)}))
	w.Expect(w.Running(claim)).To(BeTrue())
	w.Expect(w.Sim.HAResources()).To(HaveKey(other), "another user added it")
}

// The class removes a resource affinity rule that has one other resource. Proxmox refuses to
// remove the VM there, which does not block the update. With a further resource, the VM is
// removed.
func TestUpdateHALastInRule(t *testing.T) {
	t.Parallel()
	const db, cache = 101, 102
	w := testenv.New(t, testenv.Hosts(2), testenv.HA("9.2"))
	setRule := func(vmids ...int) {
		var ids []string
		for _, vmid := range vmids {
			ids = append(ids, proxmox.HAResourceID(vmid))
		}
		w.Sim.AddHARule("with-db", map[string]string{"type": "resource-affinity", "affinity": "positive", "resources": strings.Join(ids, ",")})
	}
	for _, vmid := range []int{db, cache} {
		w.Expect(w.Sim.SetHA(vmid, "ignored")).To(Succeed())
	}
	setRule(db)
	class := w.Class(func(c *v1alpha1.ProxmoxNodeClass) {
		c.Spec.HighAvailability = &v1alpha1.HighAvailability{Rules: []string{"with-db"}}
	})
	claim := running(w, class)
	vmid := w.Intent(claim).VMID
	joined := []string{proxmox.HAResourceID(db), proxmox.HAResourceID(vmid)}
	w.Expect(w.Sim.HARules()).To(HaveKeyWithValue("with-db", joined))
	c := inplace.NewController(w.Kube, w.Instances.Updater, w.Events)
	update := func(ha *v1alpha1.HighAvailability) []string {
		t.Helper()
		testenv.Modify(w, class, func(c *v1alpha1.ProxmoxNodeClass) { c.Spec.HighAvailability = ha })
		_, err := c.Reconcile(t.Context(), testenv.Reload(w, claim))
		w.Expect(err).NotTo(HaveOccurred())
		w.Expect(testenv.Reload(w, claim).Annotations[v1alpha1.AnnotationInPlaceUpdateHash]).To(Equal(class.InPlaceHash()))
		return w.Sim.HARules()["with-db"]
	}
	w.Expect(update(&v1alpha1.HighAvailability{})).To(Equal(joined))
	w.Expect(w.Sim.HAResources()).To(HaveKey(vmid))

	setRule(db, cache, vmid)
	w.Expect(update(&v1alpha1.HighAvailability{MaxRestart: new(int32(2))})).To(Equal([]string{proxmox.HAResourceID(db), proxmox.HAResourceID(cache)}))
}

// A group of 8.4 is removed.
func TestUpdateHAGroup(t *testing.T) {
	t.Parallel()
	w := testenv.New(t, testenv.HA("8.4"))
	w.Sim.AddHAGroup("rack1", "pve1")
	class := w.Class(func(c *v1alpha1.ProxmoxNodeClass) {
		c.Spec.HighAvailability = &v1alpha1.HighAvailability{Group: "rack1"}
	})
	claim := running(w, class)
	testenv.Modify(w, class, func(c *v1alpha1.ProxmoxNodeClass) { c.Spec.HighAvailability.Group = "" })
	_, err := inplace.NewController(w.Kube, w.Instances.Updater, w.Events).Reconcile(t.Context(), testenv.Reload(w, claim))
	w.Expect(err).NotTo(HaveOccurred())
	w.Expect(w.Sim.HAResources()[w.Intent(claim).VMID]).To(And(Not(HaveKey("group")), HaveKeyWithValue("state", "started")))
}

// An administrator added the VM to HA, and the class has no HA: other changes need no
// privilege for HA.
func TestUpdateVMInHA(t *testing.T) {
	t.Parallel()
	w := testenv.New(t)
	class := w.Class()
	claim := running(w, class)
	w.Expect(w.Sim.SetHA(w.Intent(claim).VMID, "started")).To(Succeed())
	testenv.Modify(w, class, func(c *v1alpha1.ProxmoxNodeClass) { c.Spec.Tags = []string{"web"} })
	_, err := inplace.NewController(w.Kube, w.Instances.Updater, w.Events).Reconcile(t.Context(), testenv.Reload(w, claim))
	w.Expect(err).NotTo(HaveOccurred())
	w.Expect(config(w, claim).Tags()).To(ConsistOf("web"))
	w.Expect(w.Sim.HAResources()).To(HaveLen(1))
}

// A change of tags does not revert the state that an administrator requested in HA.
func TestUpdateKeepsHAState(t *testing.T) {
	t.Parallel()
	w := testenv.New(t, testenv.HA("9.2"))
	class := w.Class(func(c *v1alpha1.ProxmoxNodeClass) { c.Spec.HighAvailability = &v1alpha1.HighAvailability{} })
	claim := running(w, class)
	vmid := w.Intent(claim).VMID
	w.Expect(w.Sim.HAResources()[vmid]).To(HaveKeyWithValue("state", "started"))
	w.Expect(w.Sim.SetHA(vmid, "ignored")).To(Succeed())
	testenv.Modify(w, class, func(c *v1alpha1.ProxmoxNodeClass) { c.Spec.Tags = []string{"web"} })
	c := inplace.NewController(w.Kube, w.Instances.Updater, w.Events)
	testenv.AddFault(t, w.Sim, pvesim.Fault{Method: "PUT", Path: "/nodes/*/qemu/*/config", Status: 500, Message: "busy", Count: 1})
	_, err := c.Reconcile(t.Context(), testenv.Reload(w, claim))
	w.Expect(err).To(MatchError(ContainSubstring("busy")))
	_, err = c.Reconcile(t.Context(), testenv.Reload(w, claim))
	w.Expect(err).NotTo(HaveOccurred())
	w.Expect(config(w, claim).Tags()).To(ConsistOf("web"))
	w.Expect(w.Sim.HAResources()[vmid]).To(HaveKeyWithValue("state", "ignored"))
}

// A change that failed is reverted completely when the class is changed back.
func TestUpdateHARevert(t *testing.T) {
	t.Parallel()
	w := testenv.New(t, testenv.HA("9.2"), testenv.Scenario(func(s *pvesim.Scenario) {
		s.Pools = append(s.Pools, pvesim.Pool{ID: "old"}, pvesim.Pool{ID: "new"})
		s.Roles[0].Privileges = append(s.Roles[0].Privileges, "Pool.Audit", "Pool.Allocate")
	}))
	class := w.Class(func(c *v1alpha1.ProxmoxNodeClass) {
		c.Spec.HighAvailability, c.Spec.ResourcePool = &v1alpha1.HighAvailability{}, "old"
	})
	claim := running(w, class)
	vmid := w.Intent(claim).VMID
	before := w.Sim.HAResources()[vmid]
	pool := func() string {
		w.Refresh()
		guest, _ := w.Inventory.View().Guest(testenv.Region, vmid)
		return guest.Pool
	}
	c := inplace.NewController(w.Kube, w.Instances.Updater, w.Events)
	testenv.Modify(w, class, func(c *v1alpha1.ProxmoxNodeClass) {
		c.Spec.HighAvailability, c.Spec.ResourcePool = &v1alpha1.HighAvailability{MaxRestart: new(int32(5)), Rules: []string{"typo"}}, "new"
	})
	_, err := c.Reconcile(t.Context(), testenv.Reload(w, claim))
	w.Expect(err).To(MatchError(ContainSubstring("typo")))
	w.Expect(w.Sim.HAResources()[vmid]).To(HaveKeyWithValue("max_restart", "5"))
	w.Expect(pool()).To(Equal("new"))
	testenv.Modify(w, class, func(c *v1alpha1.ProxmoxNodeClass) {
		c.Spec.HighAvailability, c.Spec.ResourcePool = &v1alpha1.HighAvailability{}, "old"
	})
	_, err = c.Reconcile(t.Context(), testenv.Reload(w, claim))
	w.Expect(err).NotTo(HaveOccurred())
	w.Expect(w.Sim.HAResources()[vmid]).To(Equal(before))
	w.Expect(pool()).To(Equal("old"))
}
