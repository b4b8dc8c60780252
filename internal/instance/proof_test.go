// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package instance_test

import (
	"errors"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instancetype"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/placement"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

// Somebody replaces the notes in the web interface. The VM is not destroyed without
// its mark, and not taken for gone either.
func TestAVMWhoseNotesWereReplacedIsNeitherGoneNorDestroyed(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	claim := w.launched(w.process(), "pool-abc")
	in := w.intentOf(claim)
	c := w.client()
	before, err := c.VMConfig(t.Context(), in.Host, in.VMID)
	w.Expect(err).NotTo(HaveOccurred())
	w.Expect(c.UpdateVM(t.Context(), in.Host, in.VMID, proxmox.ConfigChange{Set: map[string]string{"description": "web server of Bob"}})).To(Succeed())

	p := w.process()
	w.Eventually(func() bool {
		guest, ok := p.inventory.View().Guest(in.Region, in.VMID)
		return ok && guest.Config != nil
	}).WithTimeout(10 * time.Second).Should(BeTrue())
	w.Expect(p.VMs.MayExist(claim)).To(BeTrue())
	_, err = p.VMs.Get(t.Context(), v1alpha1.ProviderID{Region: in.Region, VMID: in.VMID})
	w.Expect(err).To(HaveOccurred())
	w.Expect(errors.Is(err, proxmox.ErrNotFound)).To(BeFalse(), "%v", err)
	w.blockedAs(p, claim, instance.BlockedMarkLost)
	status, err := c.VMStatus(t.Context(), in.Host, in.VMID)
	w.Expect(err).NotTo(HaveOccurred())
	w.Expect(status.Running).To(BeTrue())

	// The message says what to put back.
	_, err = p.Deleter.Delete(t.Context(), claim)
	w.Expect(err.Error()).To(ContainSubstring("<!-- karpenter.proxmox.sinextra.dev {"))
	w.Expect(c.UpdateVM(t.Context(), in.Host, in.VMID, proxmox.ConfigChange{Set: map[string]string{"description": before.Description()}})).To(Succeed())
	w.deleted(p, claim)
	w.expectNothingLeft()
}

// inPool is a world whose token has rights on a pool only, and somebody who sees all.
func inPool(t *testing.T) (*world, proxmox.Client) {
	t.Helper()
	w := newWorld(t, 1, pvesim.PoolScoped, func(s *pvesim.Scenario) {
		for i := range s.Users {
			if s.Users[i].ID == "root@pam" {
				s.Users[i].Tokens = []pvesim.Token{{ID: "admin", Secret: "secret"}}
			}
		}
	})
	admin, err := proxmox.New(proxmox.ClusterConfig{
		Region: region, URLs: []string{w.sim.URL()}, CA: string(w.sim.CAPEM()), TokenID: "root@pam!admin", TokenSecret: "secret",
	}, proxmox.Options{})
	w.Expect(err).NotTo(HaveOccurred())
	w.class.Spec.ResourcePool = pvesim.PoolID
	return w, admin
}

// Somebody else's VM takes the VMID of a launch, and the token cannot see it.
func TestAHiddenVMOfSomebodyElseHoldsNoClaim(t *testing.T) {
	t.Parallel()
	w, admin := inPool(t)
	p := w.process()
	claim := w.planned(p, "pool-abc")
	vmid := w.intentOf(claim).VMID
	task, err := admin.CloneVM(t.Context(), proxmox.CloneRequest{Host: "pve1", TemplateID: 9000, VMID: vmid, Name: "theirs"})
	w.Expect(err).NotTo(HaveOccurred())
	_, err = proxmox.WaitTask(t.Context(), admin, task, proxmox.WaitOptions{})
	w.Expect(err).NotTo(HaveOccurred())

	next := w.process()
	err = next.Launcher.Launch(t.Context(), claim, w.class)
	final, ok := errors.AsType[*instance.LaunchError](err)
	w.Expect(ok).To(BeTrue(), "%v", err)
	w.Expect(final.Reason).To(Equal(instance.ReasonVMIDTaken), "%v", err)
	w.deleted(next, w.reread(claim))
	w.deleted(w.process(), w.reread(claim))
	theirs, err := admin.VMConfig(t.Context(), "pve1", vmid)
	w.Expect(err).NotTo(HaveOccurred())
	w.Expect(theirs.Options).To(HaveKeyWithValue("name", "theirs"))
}

// A list is filtered silently by what the token may see. A VM that it no longer sees
// is not gone.
func TestAVMThatTheTokenCannotSeeIsNotGone(t *testing.T) {
	t.Parallel()
	w, admin := inPool(t)
	p := w.process()
	claim := w.launched(p, "pool-abc")
	in := w.intentOf(claim)
	w.Expect(admin.MoveToPool(t.Context(), in.VMID, pvesim.PoolID, "")).To(Succeed())
	_, err := p.VMs.Get(t.Context(), v1alpha1.ProviderID{Region: in.Region, VMID: in.VMID})
	w.Expect(err).To(HaveOccurred())
	w.Expect(errors.Is(err, proxmox.ErrNotFound)).To(BeFalse(), "%v", err)
	w.Eventually(func() string {
		gone, err := p.Deleter.Delete(t.Context(), claim)
		w.Expect(gone).To(BeFalse())
		if blocked, ok := errors.AsType[*instance.BlockedError](err); ok {
			return blocked.Reason
		}
		return ""
	}).WithTimeout(10 * time.Second).Should(Equal(instance.BlockedNotVisible))
	w.Expect(admin.MoveToPool(t.Context(), in.VMID, "", pvesim.PoolID)).To(Succeed())
	w.deleted(p, claim)
}

// An annotation that cannot be read does not keep a VM from being removed.
func TestAClaimWithAnUnreadableIntentCanBeDeleted(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	p := w.process()
	claim := w.launched(p, "pool-abc")
	claim.Annotations[v1alpha1.AnnotationLaunchIntent] = "{"
	w.deleted(p, claim)
	w.Expect(w.ours()).To(BeEmpty())
}

// The launch Host says nothing about a VM that was migrated and is gone.
func TestADeleteDoesNotAskTheHostThatTheVMHasLeft(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	p := w.process()
	claim := w.launched(p, "pool-abc")
	in := w.intentOf(claim)
	w.Expect(p.Deleter.CleanupBootDrive(t.Context(), claim)).To(Succeed())
	claim = w.reread(claim)
	other := map[string]string{"pve1": "pve2", "pve2": "pve1"}[in.Host]
	w.Expect(w.sim.MigrateGuest(in.VMID, other)).To(Succeed())
	w.Eventually(func() bool {
		guest, ok := p.inventory.View().Guest(in.Region, in.VMID)
		return ok && guest.Host == other
	}).WithTimeout(10 * time.Second).Should(BeTrue())
	vm, err := p.VMs.Get(t.Context(), v1alpha1.ProviderID{Region: in.Region, VMID: in.VMID})
	w.Expect(err).NotTo(HaveOccurred())
	w.Expect(vm.Host).To(Equal(other), "a migrated VM is found where it is")
	moved, err := p.VMs.RecordHost(t.Context(), claim, vm)
	w.Expect(err).NotTo(HaveOccurred())
	w.Expect(moved).To(BeTrue())
	_, since := instance.MigratedSince(w.reread(claim))
	w.Expect(since).To(BeTrue())

	w.Expect(w.sim.HostDown(in.Host, "refused")).To(Succeed())
	w.deleted(p, claim)
	w.deleted(w.process(), claim)
	w.Expect(w.ours()).To(BeEmpty())
}

// A static pool's claim is parked also while its hosts are avoided: core would make a
// refused one anew at once.
func TestAStaticPoolWaitsWhileItsHostsAreAvoided(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	p := w.process()
	p.types.MarkUnavailable(instancetype.Offerings{Zone: placement.Zone{Region: region, Host: "pve1"}}, "no bridge", time.Hour)
	claim := w.claim("pool-abc")
	_, err := p.Planner.Plan(t.Context(), claim, w.class, nil)
	w.Expect(err).To(HaveOccurred())
	_, err = p.Planner.Park(t.Context(), claim, w.class, nil)
	w.Expect(err).NotTo(HaveOccurred())
	err = p.Launcher.Launch(t.Context(), w.reread(claim), w.class)
	w.Expect(err).To(MatchError(instance.ErrParked))
	w.Expect(err.Error()).To(ContainSubstring("no bridge"))
}

// A pool's VMs count after a restart as before it.
func TestARestartRemembersThePoolsVMs(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	p := w.process()
	claim := w.launched(p, "pool-abc")
	in := w.intentOf(claim)
	next := w.process()
	next.Planner.RestoreReservation(claim)
	w.Expect(next.inventory.View().NodePoolVMs(in.Region, in.Host, "pool")).To(Equal(1))
	next.Planner.Release(string(claim.UID))
	w.Expect(next.inventory.View().NodePoolVMs(in.Region, in.Host, "pool")).To(BeZero())
	w.deleted(p, claim)
}

// Without free VMIDs a region has no room, and is not offered for a while.
func TestARegionWithoutVMIDsIsNotOffered(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	p := w.process(with(func(s *instance.Settings) { s.VMIDs = placement.Range{From: 20000, To: 20001} }))
	w.planned(p, "pool-a")
	w.planned(p, "pool-b")
	_, err := p.Planner.Plan(t.Context(), w.claim("pool-c"), w.class, nil)
	w.Expect(err).To(MatchError(placement.ErrRangeFull))
	for _, it := range p.types.List(w.class) {
		w.Expect(it.Offerings.Available()).To(BeEmpty(), it.Name)
	}
}
