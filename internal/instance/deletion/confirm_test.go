// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package deletion_test

import (
	"errors"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/ownership"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

// A user replaces the notes in the web interface. Without its mark the VM is not
// destroyed, and does not count as deleted.
func TestDeleteLostMark(t *testing.T) {
	t.Parallel()
	w := testenv.NewFake(t)
	claim := w.StartProcess().Launched("pool-abc", w.NodeClass)
	in := w.Intent(claim)
	c := w.Client
	before, err := c.VMConfig(t.Context(), in.Host, in.VMID)
	w.Expect(err).NotTo(HaveOccurred())
	w.Expect(c.UpdateVM(t.Context(), in.Host, in.VMID, proxmox.ConfigChange{Set: map[string]string{"description": "web server"}})).To(Succeed())

	p := w.StartProcess()
	w.Eventually(func() bool {
		guest, ok := p.Inventory.View().Guest(in.Region, in.VMID)
		return ok && guest.Config != nil
	}).Should(BeTrue())
	w.Expect(p.Instances.VMs.MayExist(claim)).To(BeTrue())
	_, err = p.Instances.VMs.Get(t.Context(), v1alpha1.ProviderID{Region: in.Region, VMID: in.VMID})
	w.Expect(err).To(HaveOccurred())
	w.Expect(errors.Is(err, proxmox.ErrNotFound)).To(BeFalse(), "%v", err)
	expectBlocked(w, p, claim, v1alpha1.EventOwnershipMarkLost)
	status, err := c.VMStatus(t.Context(), in.Host, in.VMID)
	w.Expect(err).NotTo(HaveOccurred())
	w.Expect(status.Running).To(BeTrue())

	// The message contains the line to add.
	_, err = p.Instances.Deleter.Delete(t.Context(), claim)
	w.Expect(err.Error()).To(ContainSubstring("<!-- karpenter.proxmox.sinextra.dev {"))
	w.Expect(c.UpdateVM(t.Context(), in.Host, in.VMID, proxmox.ConfigChange{Set: map[string]string{"description": before.Description()}})).To(Succeed())
	p.Delete(claim)
	w.ExpectNoOrphans()
}

// newPoolEnv returns an Env whose token has privileges on a resource pool only, and the
// client of an administrator.
func newPoolEnv(t *testing.T) (*testenv.Env, proxmox.Client) {
	t.Helper()
	w := testenv.NewFake(t, testenv.Scenario(pvesim.PoolScoped, func(s *pvesim.Scenario) {
		for i := range s.Users {
			if s.Users[i].ID == "root@pam" {
				s.Users[i].Tokens = []pvesim.Token{{ID: "admin", Secret: "secret"}}
			}
		}
	}))
	admin := testenv.NewClient(t, proxmox.ClusterConfig{
		Region: testenv.Region, URLs: []string{w.Sim.URL()}, CA: string(w.Sim.CAPEM()), TokenID: "root@pam!admin", TokenSecret: "secret",
	}, proxmox.Options{})
	w.NodeClass.Spec.ResourcePool = pvesim.PoolID
	return w, admin
}

// Another VM gets the VMID of a launch, and the token cannot read it.
func TestDeleteInvisibleForeignVM(t *testing.T) {
	t.Parallel()
	w, admin := newPoolEnv(t)
	p := w.StartProcess()
	claim := p.Planned("pool-abc", w.NodeClass)
	vmid := w.Intent(claim).VMID
	task, err := admin.CloneVM(t.Context(), proxmox.CloneRequest{Host: "pve1", TemplateID: 9000, VMID: vmid, Name: "theirs"})
	w.Expect(err).NotTo(HaveOccurred())
	_, err = proxmox.WaitTask(t.Context(), admin, task, proxmox.WaitOptions{})
	w.Expect(err).NotTo(HaveOccurred())

	next := w.StartProcess()
	err = next.Launch(claim, w.NodeClass)
	final, ok := errors.AsType[*instance.LaunchError](err)
	w.Expect(ok).To(BeTrue(), "%v", err)
	w.Expect(final.Reason).To(Equal(v1alpha1.EventVMIDTaken), "%v", err)
	next.Delete(w.Stored(claim))
	w.StartProcess().Delete(w.Stored(claim))
	foreign, err := admin.VMConfig(t.Context(), "pve1", vmid)
	w.Expect(err).NotTo(HaveOccurred())
	w.Expect(foreign.Options).To(HaveKeyWithValue("name", "theirs"))
}

// Lists omit VMs that the token may not read. Such a VM is not deleted.
func TestDeleteInvisibleVM(t *testing.T) {
	t.Parallel()
	w, admin := newPoolEnv(t)
	p := w.StartProcess()
	claim := p.Launched("pool-abc", w.NodeClass)
	in := w.Intent(claim)
	w.Expect(admin.MoveToPool(t.Context(), in.VMID, pvesim.PoolID, "")).To(Succeed())
	_, err := p.Instances.VMs.Get(t.Context(), v1alpha1.ProviderID{Region: in.Region, VMID: in.VMID})
	w.Expect(err).To(HaveOccurred())
	w.Expect(errors.Is(err, proxmox.ErrNotFound)).To(BeFalse(), "%v", err)
	w.Eventually(func() string {
		deleted, err := p.Instances.Deleter.Delete(t.Context(), claim)
		w.Expect(deleted).To(BeFalse())
		if blocked, ok := errors.AsType[*instance.BlockedError](err); ok {
			return blocked.Reason
		}
		return ""
	}).Should(Equal(v1alpha1.EventVMNotVisible))
	w.Expect(admin.MoveToPool(t.Context(), in.VMID, "", pvesim.PoolID)).To(Succeed())
	p.Delete(claim)
}

// Without the intent, the boot drive is found on its storage and deleted with the VM.
func TestDeleteUnreadableIntent(t *testing.T) {
	t.Parallel()
	for name, overwrite := range map[string]func(annotations map[string]string){
		"invalid":       func(a map[string]string) { a[v1alpha1.AnnotationLaunchIntent] = "{" },
		"newer_version": func(a map[string]string) { a[v1alpha1.AnnotationLaunchIntent] = testenv.NewerIntent },
		"removed":       func(a map[string]string) { delete(a, v1alpha1.AnnotationLaunchIntent) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := testenv.NewFake(t, testenv.Hosts(2))
			p := w.StartProcess()
			other, claim := p.Launched("pool-other", w.NodeClass), p.Launched("pool-abc", w.NodeClass)
			overwrite(claim.Annotations)
			p.Delete(claim)
			w.Expect(w.VMs()).To(ConsistOf(HaveField("VMID", w.Intent(other).VMID)))
			w.Expect(append(w.BootDrives("pve1"), w.BootDrives("pve2")...)).To(ConsistOf(ContainSubstring(string(other.UID))))
			p.Delete(other)
			w.ExpectNoOrphans()
		})
	}
}

// The Host of the launch is offline, but the VM was migrated and deleted.
func TestDeleteMigratedVM(t *testing.T) {
	t.Parallel()
	w := testenv.NewFake(t, testenv.Hosts(2))
	p := w.StartProcess()
	claim := p.Launched("pool-abc", w.NodeClass)
	in := w.Intent(claim)
	w.Expect(p.Instances.Deleter.CleanupBootDrive(t.Context(), claim)).To(Succeed())
	claim = w.Stored(claim)
	other := testenv.OtherHost(in.Host)
	w.Expect(w.Sim.MigrateGuest(in.VMID, other)).To(Succeed())
	w.Eventually(func() bool {
		guest, ok := p.Inventory.View().Guest(in.Region, in.VMID)
		return ok && guest.Host == other
	}).Should(BeTrue())
	vm, err := p.Instances.VMs.Get(t.Context(), v1alpha1.ProviderID{Region: in.Region, VMID: in.VMID})
	w.Expect(err).NotTo(HaveOccurred())
	w.Expect(vm.Host).To(Equal(other), "the VM is found on its new host")
	moved, err := p.Instances.VMs.RecordHost(t.Context(), claim, vm)
	w.Expect(err).NotTo(HaveOccurred())
	w.Expect(moved).To(BeTrue())
	_, since := instance.MigratedSince(w.Stored(claim))
	w.Expect(since).To(BeTrue())

	w.Expect(w.Sim.HostDown(in.Host, "refused")).To(Succeed())
	p.Delete(claim)
	w.StartProcess().Delete(claim)
	w.Expect(w.VMs()).To(BeEmpty())
}

// writeNewerMark replaces a VM's mark by that of a newer release.
func writeNewerMark(w *testenv.Env, claim *karpv1.NodeClaim, host string, vmid int) {
	w.T.Helper()
	cfg, err := w.Client.VMConfig(w.T.Context(), host, vmid)
	w.Expect(err).NotTo(HaveOccurred())
	mark := ownership.Mark{VMID: vmid, KubeCluster: w.KubeCluster, ClaimUID: string(claim.UID)}.Comment()
	newer := strings.Replace(mark, `"v":1`, `"v":2,"later":["x"]`, 1)
	w.Expect(newer).NotTo(Equal(mark))
	w.Expect(w.Client.UpdateVM(w.T.Context(), host, vmid, proxmox.ConfigChange{Set: map[string]string{"description": newer}, Digest: cfg.Digest})).To(Succeed())
}

// Without a readable intent the template is unknown, so Delete waits for all clones.
func TestDeleteUnreadableIntentDuringClone(t *testing.T) {
	t.Parallel()
	for name, intent := range map[string]string{"newer_release": testenv.NewerIntent, "invalid": "oops"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := testenv.NewFake(t, testenv.Hosts(2))
			p := w.StartProcess()
			claim := w.ClaimWithIntent("pool-abc", intent)
			_, err := w.Sim.AddFault(pvesim.Fault{Task: "qmclone", Hang: true})
			w.Expect(err).NotTo(HaveOccurred())
			mark := ownership.Mark{VMID: 20123, KubeCluster: w.KubeCluster, ClaimUID: string(claim.UID)}
			task, err := w.Client.CloneVM(t.Context(), proxmox.CloneRequest{Host: "pve1", TemplateID: 9000, VMID: 20123, Name: claim.Name, Description: mark.Notes("")})
			w.Expect(err).NotTo(HaveOccurred())
			for range 3 {
				deleted, err := p.Instances.Deleter.Delete(t.Context(), claim)
				w.Expect(err).NotTo(HaveOccurred())
				w.Expect(deleted).To(BeFalse(), "the VM does not exist yet")
			}
			// An administrator cancels it. Otherwise the mark of the VM would identify it.
			w.Expect(w.Client.CancelTask(t.Context(), task)).To(Succeed())
			p.Delete(claim)
			w.ExpectNoOrphans()
		})
	}
}

func TestDeleteNewerMark(t *testing.T) {
	t.Parallel()
	w := testenv.NewFake(t)
	claim := w.StartProcess().Launched("pool-abc", w.NodeClass)
	in := w.Intent(claim)
	writeNewerMark(w, claim, in.Host, in.VMID)
	p := w.StartProcess() // after a downgrade

	vms, err := p.Instances.VMs.List()
	w.Expect(err).NotTo(HaveOccurred())
	w.Expect(vms).To(ConsistOf(HaveField("Identity.ClaimUID", string(claim.UID))), "core deletes claims that are not listed")
	vm, err := p.Instances.VMs.Get(t.Context(), v1alpha1.ProviderID{Region: in.Region, VMID: in.VMID})
	w.Expect(err).NotTo(HaveOccurred())
	w.Expect(vm.ClaimUID).To(Equal(string(claim.UID)))

	expectBlocked(w, p, claim, v1alpha1.EventCreatedByNewerController)
	deleted, err := p.Instances.Deleter.DeleteOrphan(t.Context(), vm)
	w.Expect(deleted).To(BeFalse())
	w.Expect(err).To(MatchError(ContainSubstring(instance.ErrNewerVersion.Error())))
	w.Expect(p.Instances.Updater.UpdateInPlace(t.Context(), claim, w.NodeClass)).To(MatchError(instance.ErrNewerVersion))
	w.Expect(p.Instances.Power.Reboot(t.Context(), claim, "op-1")).To(MatchError(instance.ErrNewerVersion))
	_, err = p.Instances.Power.PowerOn(t.Context(), claim)
	w.Expect(err).To(MatchError(instance.ErrNewerVersion))
	// An unfinished launch does not report the VMID as taken.
	delete(claim.Annotations, v1alpha1.AnnotationLaunchCompleted)
	w.Expect(p.Launch(claim, w.NodeClass)).To(MatchError(instance.ErrNewerVersion))
	status, err := w.Client.VMStatus(t.Context(), in.Host, in.VMID)
	w.Expect(err).NotTo(HaveOccurred())
	w.Expect(status.Running).To(BeTrue())

	// After an upgrade the mark is readable again.
	id := instance.Identity{Region: in.Region, VMID: in.VMID, ClaimUID: string(claim.UID), KubeCluster: w.KubeCluster}
	w.Expect(w.Client.UpdateVM(t.Context(), in.Host, in.VMID, proxmox.ConfigChange{Set: map[string]string{
		"description": instance.Description(id, instance.Notes{Claim: claim.Name}, nil, nil),
	}})).To(Succeed())
	p.Delete(claim)
	w.Eventually(w.VMs).Should(BeEmpty())
}
