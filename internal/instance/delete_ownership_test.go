// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package instance_test

import (
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance/deletion"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/ownership"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/vmconfig"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

// A user replaces the notes in the web interface. Without its mark the VM is not
// destroyed, and does not count as deleted.
func TestDeleteLostMark(t *testing.T) {
	testenv.With(testenv.NoPolling()).Test(t, func(w *testenv.Env, p *testenv.Process) {
		claim := p.Launched("pool-abc", w.NodeClass)
		in := w.Intent(claim)
		before := w.VMConfig(in).Description()
		setOption(w, claim, "description", "web server")

		p = w.StartProcess(testenv.NoPolling())
		w.Expect(p.Instances.VMs.MayExist(claim)).To(BeTrue())
		_, err := p.Instances.VMs.Get(w.Context(), v1alpha1.ProviderID{Region: in.Region, VMID: in.VMID})
		w.Expect(err).To(And(HaveOccurred(), Not(MatchError(proxmox.ErrNotFound))))
		expectBlocked(w, p, claim, v1alpha1.EventOwnershipMarkLost, ContainSubstring("append this line"), ContainSubstring("<!-- karpenter.proxmox.sinextra.dev {"))
		w.Expect(w.Running(claim)).To(BeTrue())
		setOption(w, claim, "description", before)
		p.DeleteAll(claim)
	})
}

// What is left of a VM's identity names the claim: it does not count as deleted.
func TestDeleteLostMarkPartly(t *testing.T) {
	t.Parallel()
	smbios := func(smbios proxmox.SMBIOS) string { return smbios.Encode() }
	for name, test := range map[string]struct {
		options func(claim *karpv1.NodeClaim, vmid int) map[string]string
		lost    bool
	}{
		"name": {func(*karpv1.NodeClaim, int) map[string]string { return map[string]string{"smbios1": ""} }, true},
		"serial": {func(claim *karpv1.NodeClaim, vmid int) map[string]string {
			return map[string]string{"name": "web", "smbios1": smbios(proxmox.SMBIOS{UUID: "00000000-0000-4000-8000-000000000000", Serial: vmconfig.SMBIOSSerial(claim.Name, vmid)})}
		}, true},
		"UUID": {func(claim *karpv1.NodeClaim, _ int) map[string]string {
			return map[string]string{"name": "web", "smbios1": smbios(proxmox.SMBIOS{UUID: string(claim.UID)})}
		}, true},
		"mark_of_another_claim": {func(*karpv1.NodeClaim, int) map[string]string {
			return map[string]string{"description": ownership.Mark{VMID: 20001, KubeCluster: "x", ClaimUID: "y"}.Notes("")}
		}, true},
		"nothing": {func(*karpv1.NodeClaim, int) map[string]string { return map[string]string{"name": "web", "smbios1": ""} }, false},
	} {
		testenv.With(testenv.NoPolling()).Subtest(t, name, func(w *testenv.Env, p *testenv.Process) {
			claim := p.Launched("pool-abc", w.NodeClass)
			in := w.Intent(claim)
			w.Wait(w.Client.StopVM(w.Context(), in.Host, in.VMID))
			setOption(w, claim, "description", "web server")
			for option, value := range test.options(claim, in.VMID) {
				setOption(w, claim, option, value)
			}
			w.SetTrue(claim, karpv1.ConditionTypeRegistered)
			time.Sleep(time.Minute)
			p = w.StartProcess(testenv.NoPolling())
			_, err := p.Instances.VMs.Get(w.Context(), in.ID())
			w.Expect(p.Instances.VMs.MayExist(claim)).To(Equal(test.lost))
			if !test.lost {
				w.Expect(err).To(MatchError(proxmox.ErrNotFound))
				w.Expect(p.Instances.Deleter.Delete(w.Context(), claim)).To(BeTrue())
				return
			}
			w.Expect(err).To(And(HaveOccurred(), Not(MatchError(proxmox.ErrNotFound))))
			expectBlocked(w, p, claim, v1alpha1.EventOwnershipMarkLost)
		})
	}
}

// The line to append is the last known mark. Without one, it is rebuilt from the configuration.
func TestLostMarkOfMachine(t *testing.T) {
	t.Parallel()
	for name, restarted := range map[string]bool{"known": false, "rebuilt": true} {
		onFast.Subtest(t, name, func(w *testenv.Env, p *testenv.Process) {
			claim := launchMachine(w, p)
			in := w.Intent(claim)
			before, _ := ownership.Read(w.VMConfig(in).Description())
			w.Expect(before).To(And(HaveField("Machine", "db-1"), HaveField("Retained", ConsistOf("data"))))
			p.Refresh()
			setOption(w, claim, "description", "database\n\nDo not touch.")
			if restarted {
				p = w.StartProcess(testenv.NoPolling())
			} else {
				setOption(w, claim, "tags", "x") // it is read again
				p.Refresh()
				p.Refresh()
			}
			deleted, err := p.Instances.Deleter.Delete(w.Context(), claim)
			w.Expect(deleted).To(BeFalse())
			w.Expect(err).To(And(testenv.HaveReason(v1alpha1.EventOwnershipMarkLost), MatchError(ContainSubstring("append"))))
			mark, ok := ownership.Read(err.Error())
			w.Expect(ok).To(BeTrue())
			if restarted {
				before.Source, before.Boot, before.Applied = nil, nil, nil // the VM is neither updated in place, nor does it drift
			}
			w.Expect(mark).To(Equal(before))
			w.Expect(strings.Contains(err.Error(), "rebuilt")).To(Equal(restarted))

			setOption(w, claim, "description", "database\n"+mark.Comment())
			p.Delete(claim)
			w.Expect(w.VMs()).To(BeEmpty())
			w.Expect(w.Volumes(in.Host, "fast", "images")).To(ConsistOf(HaveField("ID", in.Retained["data"])))
		})
	}
}

// A VM whose ownership mark was lost does not count as deleted if it was migrated since the last
// poll.
func TestDeleteLostMarkMigrated(t *testing.T) {
	testenv.With(testenv.Hosts(2), testenv.NoPolling()).Test(t, func(w *testenv.Env, p *testenv.Process) {
		claim := p.Launched("pool-abc", w.NodeClass)
		in := w.Intent(claim)
		p.Refresh()
		setOption(w, claim, "description", "web server")
		expectBlocked(w, p, claim, v1alpha1.EventOwnershipMarkLost)
		w.Expect(w.Sim.MigrateGuest(in.VMID, testenv.OtherHost(in.Host))).To(Succeed())
		w.Expect(p.Instances.Deleter.Delete(w.Context(), claim)).To(BeFalse())
		expectBlocked(w, p, claim, v1alpha1.EventOwnershipMarkLost)
	})
}

// poolScoped gives the token privileges on a resource pool only, and root a token.
var poolScoped = testenv.Scenario(pvesim.PoolScoped, func(s *pvesim.Scenario) {
	for i := range s.Users {
		if s.Users[i].ID == "root@pam" {
			s.Users[i].Tokens = []pvesim.Token{{ID: "admin", Secret: "secret"}}
		}
	}
})

// newAdmin uses the resource pool, and returns the client of an administrator.
func newAdmin(w *testenv.Env) proxmox.Client {
	w.T.Helper()
	w.NodeClass.Spec.ResourcePool = pvesim.PoolID
	w.Create(w.NodeClass.DeepCopy())
	config := testenv.ClusterConfig(w.Sim, testenv.Region)
	config.TokenID, config.TokenSecret = "root@pam!admin", "secret"
	return testenv.NewClient(w.T, w.Sim, config)
}

// Another VM gets the VMID of a launch, and the token cannot read it.
func TestDeleteInvisibleForeignVM(t *testing.T) {
	testenv.With(poolScoped).Test(t, func(w *testenv.Env, p *testenv.Process) {
		admin := newAdmin(w)
		claim := p.Planned("pool-abc", w.NodeClass)
		vmid := w.Intent(claim).VMID
		task, err := admin.CloneVM(w.Context(), proxmox.CloneRequest{Host: "pve1", TemplateID: 9000, VMID: vmid, Name: "theirs"})
		w.Expect(err).NotTo(HaveOccurred())
		w.Expect(proxmox.WaitTask(w.Context(), admin, task, proxmox.WaitOptions{})).To(HaveField("Succeeded()", true))

		next := w.StartProcess()
		w.Expect(next.Launch(claim, w.NodeClass)).To(testenv.HaveReason(v1alpha1.EventVMIDTaken))
		next.Delete(w.Stored(claim))
		w.StartProcess().Delete(w.Stored(claim))
		w.Expect(admin.VMConfig(w.Context(), "pve1", vmid)).To(HaveField("Options", HaveKeyWithValue("name", "theirs")))
	})
}

// Lists omit VMs that the token may not read. Such a VM is not deleted.
func TestDeleteInvisibleVM(t *testing.T) {
	testenv.With(poolScoped).Test(t, func(w *testenv.Env, p *testenv.Process) {
		admin := newAdmin(w)
		claim := p.Launched("pool-abc", w.NodeClass)
		in := w.Intent(claim)
		w.Expect(admin.MoveToPool(w.Context(), in.VMID, pvesim.PoolID, "")).To(Succeed())
		_, err := p.Instances.VMs.Get(w.Context(), v1alpha1.ProviderID{Region: in.Region, VMID: in.VMID})
		w.Expect(err).To(And(HaveOccurred(), Not(MatchError(proxmox.ErrNotFound))))
		w.Eventually(func() error {
			deleted, err := p.Instances.Deleter.Delete(w.Context(), claim)
			w.Expect(deleted).To(BeFalse())
			return err
		}).Should(testenv.HaveReason(v1alpha1.EventVMNotVisible))
		w.Expect(admin.MoveToPool(w.Context(), in.VMID, "", pvesim.PoolID)).To(Succeed())
		p.Delete(claim)
	})
}

// Another process knows nothing of a VM that was never configured: it finds what was created for it.
func TestDeleteUnknownPlan(t *testing.T) {
	testenv.With(testenv.Hosts(2)).Test(t, func(w *testenv.Env, p *testenv.Process) {
		other, claim := p.Launched("pool-other", w.NodeClass), p.Planned("pool-abc", w.NodeClass)
		w.AddFault(pvesim.Fault{Method: "PUT", Path: "/nodes/*/qemu/*/config", Status: 500, Message: "busy", Count: 1})
		w.Expect(p.Launch(claim, w.NodeClass)).NotTo(Succeed())
		w.Expect(append(w.BootDrives("pve1"), w.BootDrives("pve2")...)).To(HaveLen(2))
		w.StartProcess().Delete(w.Stored(claim))
		w.Expect(w.VMs()).To(ConsistOf(HaveField("VMID", w.Intent(other).VMID)))
		w.Expect(append(w.BootDrives("pve1"), w.BootDrives("pve2")...)).To(ConsistOf(ContainSubstring(string(other.UID))))
		p.DeleteAll(other)
	})
}

// Another process deletes a Claim during its clone. The template is unknown to it, so it waits for a
// clone that may be that of another Claim, and cancels one whose log names the VM.
func TestDeleteUnknownPlanDuringClone(t *testing.T) {
	t.Parallel()
	for name, copying := range map[string]bool{"waits_for_its_storage": false, "copies": true} {
		testenv.With(testenv.Hosts(2)).Subtest(t, name, func(w *testenv.Env, p *testenv.Process) {
			claim := p.Planned("pool-abc", w.NodeClass)
			in := w.Intent(claim)
			p = w.StartProcess()
			if !copying {
				w.AddFault(pvesim.Fault{Task: "qmclone", Hang: true})
			}
			mark := ownership.Mark{VMID: in.VMID, KubeCluster: w.KubeCluster, ClaimUID: string(claim.UID)}
			task, err := w.Client.CloneVM(w.Context(), proxmox.CloneRequest{
				Host: "pve1", TemplateID: 9000, VMID: in.VMID, Name: claim.Name, Description: mark.Notes(""), Full: true, Storage: "local-lvm",
			})
			w.Expect(err).NotTo(HaveOccurred())
			canceled := func() bool {
				_, err := p.Instances.Deleter.Delete(w.Context(), claim)
				w.Expect(err).NotTo(HaveOccurred())
				return w.Sim.CountRequests("DELETE", "/nodes/{node}/tasks/{upid}") > 0
			}
			if copying {
				w.Eventually(canceled).Should(BeTrue())
			} else {
				w.Clock.Sleep(time.Minute)
				w.Expect(canceled()).To(BeFalse())
				w.Expect(w.Client.CancelTask(w.Context(), task)).To(Succeed(), "as an administrator does")
			}
			p.DeleteAll(claim)
		})
	}
}

// A newer release has written the mark of a VM, and was downgraded.
func TestDeleteNewerMark(t *testing.T) {
	testenv.With(testenv.NoPolling()).Test(t, func(w *testenv.Env, p *testenv.Process) {
		claim := p.Launched("pool-abc", w.NodeClass)
		in := w.Intent(claim)
		mark := ownership.Mark{VMID: in.VMID, KubeCluster: w.KubeCluster, ClaimUID: string(claim.UID)}.Comment()
		newer := strings.Replace(mark, `"v":1`, `"v":2,"later":["x"]`, 1)
		w.Expect(newer).NotTo(Equal(mark))
		setOption(w, claim, "description", newer)

		p = w.StartProcess(testenv.NoPolling())
		w.Expect(p.Instances.VMs.List()).To(ConsistOf(HaveField("Identity.ClaimUID", string(claim.UID))), "core deletes claims that are not listed")
		vm, err := p.Instances.VMs.Get(w.Context(), v1alpha1.ProviderID{Region: in.Region, VMID: in.VMID})
		w.Expect(err).NotTo(HaveOccurred())
		w.Expect(vm.ClaimUID).To(Equal(string(claim.UID)))

		expectBlocked(w, p, claim, v1alpha1.EventCreatedByNewerController)
		deleted, err := p.Instances.Deleter.DeleteOrphan(w.Context(), deletion.Orphan{VM: vm})
		w.Expect(deleted).To(BeFalse())
		w.Expect(err).To(MatchError(ContainSubstring(instance.ErrNewerVersion.Error())))
		w.Expect(p.Instances.Updater.UpdateInPlace(w.Context(), claim, w.NodeClass)).To(MatchError(instance.ErrNewerVersion))
		w.Expect(p.Instances.Power.Reboot(w.Context(), claim, "op-1")).To(MatchError(instance.ErrNewerVersion))
		_, err = p.Instances.Power.PowerOn(w.Context(), claim)
		w.Expect(err).To(MatchError(instance.ErrNewerVersion))
		// An unfinished launch does not report the VMID as taken.
		p = w.StartProcess()
		w.Expect(p.Launch(claim, w.NodeClass)).To(MatchError(instance.ErrNewerVersion))
		w.Expect(w.Running(claim)).To(BeTrue())

		setOption(w, claim, "description", mark) // after an upgrade
		p.DeleteAll(claim)
	})
}
