// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package inplace_test

import (
	"testing"

	. "github.com/onsi/gomega"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/nodeclaim/inplace"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

// running returns a claim as core stores it, with the hash of Create.
func running(w *testenv.Env, class *v1alpha1.ProxmoxNodeClass) *karpv1.NodeClaim {
	w.T.Helper()
	return w.Launched("a", class, func(c *karpv1.NodeClaim) {
		c.Annotations = map[string]string{v1alpha1.AnnotationInPlaceUpdateHash: class.InPlaceHash()}
	})
}

func config(w *testenv.Env, claim *karpv1.NodeClaim) proxmox.VMConfig {
	w.T.Helper()
	cfg, err := w.Client.VMConfig(w.T.Context(), "pve1", w.Intent(claim).VMID)
	w.Expect(err).NotTo(HaveOccurred())
	return cfg
}

func TestUpdateTagsAndSecurityGroups(t *testing.T) {
	t.Parallel()
	w := testenv.New(t)
	w.StartManager(func(kube client.Client) testenv.Registrar {
		return inplace.NewController(kube, w.Instances.Updater, w.Events)
	})
	class := w.Class()
	claim := running(w, class)
	before := config(w, claim)
	w.Expect(before.Network().NICs()[0].Firewall).To(BeFalse())

	testenv.Modify(w, class, func(c *v1alpha1.ProxmoxNodeClass) {
		c.Spec.Tags = []string{"Web", "karpenter"}
		c.Spec.SecurityGroups = []v1alpha1.SecurityGroup{{Name: "kubernetes", Interface: "net0"}}
	})
	w.Eventually(func() string {
		return testenv.Reload(w, claim).Annotations[v1alpha1.AnnotationInPlaceUpdateHash]
	}).Should(Equal(class.InPlaceHash()))
	after := config(w, claim)
	w.Expect(after.Tags()).To(ConsistOf("karpenter", "web"))
	w.Expect(after.Network().NICs()[0].Firewall).To(BeTrue())
	w.Expect(after.Network().NICs()[0].MAC).To(Equal(before.Network().NICs()[0].MAC))
	w.Expect(after.Compute().Cores()).To(Equal(before.Compute().Cores()))
	w.Expect(w.Running(claim)).To(BeTrue())
	w.Expect(w.Events.Reasons(claim)).To(BeEmpty())
}

func TestUpdateResourcePool(t *testing.T) {
	t.Parallel()
	w := testenv.New(t, testenv.Scenario(func(s *pvesim.Scenario) {
		s.Pools = append(s.Pools, pvesim.Pool{ID: "old"}, pvesim.Pool{ID: "new"}, pvesim.Pool{ID: "admins"})
		s.Roles[0].Privileges = append(s.Roles[0].Privileges, "Pool.Audit", "Pool.Allocate")
	}))
	class := w.Class(func(c *v1alpha1.ProxmoxNodeClass) { c.Spec.ResourcePool = "old" })
	claim := running(w, class)
	c := inplace.NewController(w.Kube, w.Instances.Updater, w.Events)
	pool := func() string {
		w.Refresh()
		guest, ok := w.Inventory.View().Guest(testenv.Region, w.Intent(claim).VMID)
		w.Expect(ok).To(BeTrue())
		return guest.Pool
	}
	change := func(pool string) {
		testenv.Reload(w, class).Spec.ResourcePool = pool
		w.Expect(w.Kube.Update(t.Context(), class)).To(Succeed())
		_, err := c.Reconcile(t.Context(), testenv.Reload(w, claim))
		w.Expect(err).NotTo(HaveOccurred())
		w.Expect(testenv.Reload(w, claim).Annotations[v1alpha1.AnnotationInPlaceUpdateHash]).To(Equal(class.InPlaceHash()))
	}
	w.Expect(pool()).To(Equal("old"))
	change("new")
	w.Expect(pool()).To(Equal("new"))
	change("")
	w.Expect(pool()).To(BeEmpty())
	change("old")
	w.Expect(pool()).To(Equal("old"))
	w.Expect(w.Running(claim)).To(BeTrue())

	w.Expect(w.Client.MoveToPool(t.Context(), w.Intent(claim).VMID, "old", "admins")).To(Succeed())
	w.Refresh()
	change("new")
	w.Expect(pool()).To(Equal("admins"), "it stays where an administrator moved it")
	w.Expect(w.Events.Reasons(claim)).To(BeEmpty())
}

func TestUpdateResourcePoolForbidden(t *testing.T) {
	t.Parallel()
	w := testenv.New(t, testenv.Scenario(func(s *pvesim.Scenario) {
		s.Pools = append(s.Pools, pvesim.Pool{ID: "old"}, pvesim.Pool{ID: "new"})
	}))
	class := w.Class(func(c *v1alpha1.ProxmoxNodeClass) { c.Spec.ResourcePool = "old" })
	claim := running(w, class)
	testenv.Reload(w, class).Spec.ResourcePool = "new"
	w.Expect(w.Kube.Update(t.Context(), class)).To(Succeed())
	_, err := inplace.NewController(w.Kube, w.Instances.Updater, w.Events).Reconcile(t.Context(), testenv.Reload(w, claim))
	w.Expect(err).To(MatchError(ContainSubstring("Pool.Allocate")))
	w.Expect(w.Events.Messages("InPlaceUpdateFailed")).To(ConsistOf(And(ContainSubstring("Pool.Allocate"), ContainSubstring("/pool/"))))
	w.Expect(testenv.Reload(w, claim).Annotations[v1alpha1.AnnotationInPlaceUpdateHash]).NotTo(Equal(class.InPlaceHash()))
}

func TestUpdateUnchangedNodeClass(t *testing.T) {
	t.Parallel()
	w := testenv.New(t, testenv.NoPolling())
	class := w.Class()
	claim := running(w, class)
	w.Sim.ResetRequests()
	_, err := inplace.NewController(w.Kube, w.Instances.Updater, w.Events).Reconcile(t.Context(), claim)
	w.Expect(err).NotTo(HaveOccurred())
	w.Expect(w.Sim.Requests()).To(BeEmpty())
}

func TestUpdateDuringLaunch(t *testing.T) {
	t.Parallel()
	w := testenv.New(t, testenv.NoPolling())
	class := w.Class()
	claim := w.Planned("a", class)
	w.Annotate(claim, map[string]string{v1alpha1.AnnotationInPlaceUpdateHash: "another"})
	w.Sim.ResetRequests()
	_, err := inplace.NewController(w.Kube, w.Instances.Updater, w.Events).Reconcile(t.Context(), claim)
	w.Expect(err).NotTo(HaveOccurred())
	w.Expect(w.Sim.Requests()).To(BeEmpty())
}

func TestUpdateRetry(t *testing.T) {
	t.Parallel()
	w := testenv.New(t)
	class := w.Class()
	claim := running(w, class)
	c := inplace.NewController(w.Kube, w.Instances.Updater, w.Events)
	change := func(group v1alpha1.SecurityGroup) error {
		testenv.Reload(w, class).Spec.SecurityGroups = []v1alpha1.SecurityGroup{group}
		w.Expect(w.Kube.Update(t.Context(), class)).To(Succeed())
		_, err := c.Reconcile(t.Context(), testenv.Reload(w, claim))
		return err
	}
	w.Expect(change(v1alpha1.SecurityGroup{Name: "kubernetes", Interface: "net7"})).To(MatchError(ContainSubstring("net7")))
	w.Expect(w.Events.Messages("InPlaceUpdateFailed")).To(ConsistOf(ContainSubstring("net7")))
	w.Expect(testenv.Reload(w, claim).Annotations[v1alpha1.AnnotationInPlaceUpdateHash]).NotTo(Equal(class.InPlaceHash()))
	w.Expect(change(v1alpha1.SecurityGroup{Name: "kubernetes", Interface: "net0"})).To(Succeed())
	w.Expect(config(w, claim).Network().NICs()[0].Firewall).To(BeTrue())
}

func TestUpdateMissingNodeClass(t *testing.T) {
	t.Parallel()
	w := testenv.New(t)
	class := w.Class()
	claim := running(w, class)
	w.Annotate(claim, map[string]string{v1alpha1.AnnotationInPlaceUpdateHash: "another"})
	w.Expect(w.Kube.Delete(t.Context(), class)).To(Succeed())
	_, err := inplace.NewController(w.Kube, w.Instances.Updater, w.Events).Reconcile(t.Context(), claim)
	w.Expect(err).NotTo(HaveOccurred())
	w.Expect(config(w, claim).Tags()).To(ConsistOf("karpenter"))
}

// An older release launched the VM and did not record its security groups.
func TestUpdateSecurityGroupsUpgrade(t *testing.T) {
	t.Parallel()
	w := testenv.New(t)
	class := w.Class(func(c *v1alpha1.ProxmoxNodeClass) {
		c.Spec.SecurityGroups = []v1alpha1.SecurityGroup{{Name: "kubernetes", Interface: "net0"}}
	})
	claim := running(w, class)
	c := inplace.NewController(w.Kube, w.Instances.Updater, w.Events)
	var err error
	// The second one is that of a launch whose class was changed and changed back.
	for _, recorded := range []string{"", "updating"} {
		w.Annotate(claim, map[string]string{v1alpha1.AnnotationSecurityGroups: recorded})
		_, err = c.Reconcile(t.Context(), testenv.Reload(w, claim))
		w.Expect(err).NotTo(HaveOccurred())
		w.Expect(testenv.Reload(w, claim).Annotations).To(HaveKeyWithValue(v1alpha1.AnnotationSecurityGroups, `[{"name":"kubernetes","interface":"net0"}]`))
	}
	testenv.Modify(w, class, func(c *v1alpha1.ProxmoxNodeClass) { c.Spec.SecurityGroups = nil })
	_, err = c.Reconcile(t.Context(), claim)
	w.Expect(err).NotTo(HaveOccurred())
	w.Expect(w.Sim.FirewallGroups()[w.Intent(claim).VMID]).To(BeEmpty())
	w.Expect(config(w, claim).Network().NICs()[0].Firewall).To(BeFalse())
}
