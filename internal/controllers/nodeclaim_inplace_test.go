// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package controllers_test

import (
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

// modify changes the class.
func (v *updatedVM) modify(change func(*spec)) {
	v.T.Helper()
	testenv.Modify(v.Env, v.class, func(c *v1alpha1.ProxmoxNodeClass) { change(&c.Spec) })
}

// tryUpdate changes the class and reconciles the claim.
func (v *updatedVM) tryUpdate(change func(*spec)) error {
	v.T.Helper()
	v.modify(change)
	return v.reconcile()
}

func (v *updatedVM) reconcile() error {
	v.T.Helper()
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

// updated reports whether the claim shows that its VM is like the class.
func (v *updatedVM) updated() bool {
	applied := v.applied()
	return applied.Hash == v.class.InPlaceHash() && len(applied.Pending) == 0
}

// applied returns what the mark of the VM records as written.
func (v *updatedVM) applied() ownership.Applied {
	v.T.Helper()
	mark, ok := ownership.Read(v.config().Description())
	v.Expect(ok).To(BeTrue())
	v.Expect(mark.Applied).NotTo(BeNil())
	return *mark.Applied
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
	v.StartManager(func(kube client.Client) testenv.Registrar {
		return newVMUpdateController(v.Env, kube)
	})
	before := v.config()
	v.Expect(before.Network().NICs()[0].Firewall).To(BeFalse())
	v.modify(func(s *spec) {
		s.Tags, s.SecurityGroups = []string{"Web", "karpenter"}, []v1alpha1.SecurityGroup{group}
	})
	v.Eventually(v.updated).Should(BeTrue())
	after := v.config()
	v.Expect(after.Tags()).To(ConsistOf("karpenter", "web"))
	v.Expect(after.Network().NICs()[0].Firewall).To(BeTrue())
	v.Expect(after.Network().NICs()[0].MAC).To(Equal(before.Network().NICs()[0].MAC))
	v.Expect(after.Compute().Cores()).To(Equal(before.Compute().Cores()))
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
		messages       []string
	}{
		"resource_pool_forbidden": {setPool("new"), setPool("old"), []string{"Pool.Allocate", "/pool/"}},
		"no_interface":            {setGroups(v1alpha1.SecurityGroup{Name: testenv.SecurityGroup, Interface: "net7"}), setGroups(group), []string{"net7"}},
	} {
		testenv.RunSimulated(t, name, func(t *testing.T) {
			v := launchVM(testenv.New(t, resourcePools()), setPool("old"))
			err := v.tryUpdate(test.invalid)
			for _, message := range test.messages {
				v.Expect(err).To(MatchError(ContainSubstring(message)))
				v.Expect(v.Events.Messages("InPlaceUpdateFailed")).To(ConsistOf(ContainSubstring(message)))
			}
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

// A controller was killed during an update, and the class was changed back.
func TestUpdateInterrupted(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		v := launchVM(testenv.New(t), setGroups(group))
		v.setApplied(func(mark *ownership.Mark) { mark.Applied.Pending = []ownership.Part{ownership.PartGroups} })
		v.Expect(v.Client.SetFirewall(t.Context(), "pve1", v.vmid, nil)).To(Succeed())
		v.Expect(v.reconcile()).To(Succeed())
		v.Expect(v.updated()).To(BeTrue())
		v.Expect(v.Sim.FirewallGroups()[v.vmid]).To(ConsistOf(testenv.SecurityGroup))
		v.update(setGroups())
		v.Expect(v.Sim.FirewallGroups()[v.vmid]).To(BeEmpty())
		v.Expect(v.config().Network().NICs()[0].Firewall).To(BeFalse())
	})
}
