// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package instance_test

import (
	"context"
	"fmt"
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

// A user replaces the notes in the web interface. Without its mark the VM is not destroyed. It does not
// count as deleted if what is left of its identity names the claim.
func TestDeleteLostMark(t *testing.T) {
	t.Parallel()
	const uid, vmid = "5f1d4d7a-3f0a-4e0c-9d83-9f0c1f7a0b11", 30555
	otherUUID := proxmox.SMBIOS{UUID: "00000000-0000-4000-8000-000000000000", Serial: vmconfig.SMBIOSSerial("pool-abc", vmid)}
	for name, test := range map[string]struct {
		options map[string]string
		lost    bool
	}{
		"notes":  {nil, true},
		"name":   {map[string]string{"smbios1": ""}, true},
		"serial": {map[string]string{"name": "web", "smbios1": otherUUID.Encode()}, true},
		"UUID":   {map[string]string{"name": "web", "smbios1": proxmox.SMBIOS{UUID: uid}.Encode()}, true},
		"mark_of_another_claim": {
			map[string]string{"description": ownership.Mark{VMID: 20001, KubeCluster: "x", ClaimUID: "y"}.Notes("")}, true,
		},
		"nothing": {map[string]string{"name": "web", "smbios1": ""}, false},
	} {
		testenv.With(testenv.NoPolling(), testenv.Settings(func(s *instance.Settings) {
			s.VMIDs.From, s.VMIDs.To = vmid, vmid
		})).Subtest(t, name, func(w *testenv.Env, p *testenv.Process) {
			claim := p.Launched("pool-abc", w.NodeClass, func(claim *karpv1.NodeClaim) { claim.UID = uid })
			in := w.Intent(claim)
			w.Wait(w.Client.StopVM(w.Context(), in.Host, in.VMID))
			setOption(w, claim, "description", "web server")
			for option, value := range test.options {
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
			w.Expect(w.Running(claim)).To(BeTrue())

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
		claim, in := launchVM(w, p)
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

func TestDeleteInvisible(t *testing.T) {
	t.Parallel()
	// Another VM gets the VMID of a launch, and the token cannot read it.
	testenv.With(poolScoped).Subtest(t, "foreign_VM", func(w *testenv.Env, p *testenv.Process) {
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
	// Lists omit VMs that the token may not read. Such a VM is not deleted.
	testenv.With(poolScoped).Subtest(t, "own_VM", func(w *testenv.Env, p *testenv.Process) {
		admin := newAdmin(w)
		claim, in := launchVM(w, p)
		w.Expect(admin.MoveToPool(w.Context(), in.VMID, pvesim.PoolID, "")).To(Succeed())
		_, err := p.Instances.VMs.Get(w.Context(), in.ID())
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
		claim, in := launchVM(w, p)
		mark := ownership.Mark{VMID: in.VMID, KubeCluster: w.KubeCluster, ClaimUID: string(claim.UID)}.Comment()
		newer := strings.Replace(mark, `"v":1`, `"v":2,"later":["x"]`, 1)
		w.Expect(newer).NotTo(Equal(mark))
		setOption(w, claim, "description", newer)

		p = w.StartProcess(testenv.NoPolling())
		w.Expect(p.Instances.VMs.List()).To(ConsistOf(HaveField("Identity.ClaimUID", string(claim.UID))), "core deletes claims that are not listed")
		vm, err := p.Instances.VMs.Get(w.Context(), in.ID())
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

// interrupted is a client of which others change the VM after its identity was verified: when it was
// stopped, or before it is started.
type interrupted struct {
	proxmox.Client
	interrupt func()
}

func (c *interrupted) StopVM(ctx context.Context, host string, vmid int) (proxmox.UPID, error) {
	task, err := c.Client.StopVM(ctx, host, vmid)
	c.interrupt()
	return task, err
}

func (c *interrupted) RunningTasks(ctx context.Context, host, kind string) ([]proxmox.TaskStatus, error) {
	tasks, err := c.Client.RunningTasks(ctx, host, kind)
	c.interrupt()
	return tasks, err
}

// interrupt starts a process that is interrupted once.
func interrupt(w *testenv.Env, change func()) *testenv.Process {
	w.T.Helper()
	done := false
	w.Clients[testenv.Region] = &interrupted{w.Client, func() {
		if !done {
			done = true
			change()
		}
	}}
	return w.StartProcess(testenv.NoPolling())
}

// replaceVM destroys a VM and gives its VMID to another one.
func replaceVM(w *testenv.Env, in instance.Intent) {
	w.T.Helper()
	w.DestroyByHand(in.Host, in.VMID)
	w.CloneByHand(in.Host, in.VMID, "web")
}

// A VM that was changed or replaced between the check of its identity and its destruction is not destroyed.
func TestDeleteChangedMeanwhile(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		change func(w *testenv.Env, claim *karpv1.NodeClaim, in instance.Intent)
		// blocked is the reason of the event; empty if our VM does not exist any more.
		blocked string
	}{
		"replaced": {func(w *testenv.Env, _ *karpv1.NodeClaim, in instance.Intent) { replaceVM(w, in) }, ""},
		"template": {func(w *testenv.Env, _ *karpv1.NodeClaim, in instance.Intent) {
			w.Wait(w.Client.ConvertToTemplate(w.Context(), in.Host, in.VMID))
		}, ""},
		"notes_replaced": {func(w *testenv.Env, claim *karpv1.NodeClaim, _ instance.Intent) {
			setOption(w, claim, "description", "web server")
		}, v1alpha1.EventOwnershipMarkLost},
		"locked": {func(w *testenv.Env, _ *karpv1.NodeClaim, in instance.Intent) {
			w.Expect(w.Sim.SetConfigLock(in.VMID, "backup")).To(Succeed())
		}, v1alpha1.EventVMLocked},
		"protected": {func(w *testenv.Env, claim *karpv1.NodeClaim, _ instance.Intent) {
			setOption(w, claim, "protection", "1")
		}, v1alpha1.EventVMProtected},
		"volume_attached": {func(w *testenv.Env, claim *karpv1.NodeClaim, in instance.Intent) {
			setOption(w, claim, "unused0", fmt.Sprintf("local-lvm:vm-%d-pvc-1", in.VMID))
		}, v1alpha1.EventVolumeAttached},
	} {
		testenv.With(testenv.NoPolling()).Subtest(t, name, func(w *testenv.Env, p *testenv.Process) {
			claim, in := launchVM(w, p)
			p = interrupt(w, func() {
				w.Wait(w.Client.StopVM(w.Context(), in.Host, in.VMID)) // it waits for the stop
				test.change(w, claim, in)
			})
			if test.blocked == "" {
				p.Delete(claim)
			} else {
				expectBlocked(w, p, claim, test.blocked)
			}
			w.Expect(w.VMs()).To(HaveLen(1))
		})
	}
}

// A VM that got the VMID meanwhile is not started.
func TestPowerOnReplacedMeanwhile(t *testing.T) {
	testenv.With(testenv.NoPolling()).Test(t, func(w *testenv.Env, p *testenv.Process) {
		claim, in := launchVM(w, p)
		w.PowerOff(claim)
		p = interrupt(w, func() { replaceVM(w, in) })
		_, err := p.Instances.Power.PowerOn(w.Context(), claim)
		w.Expect(err).To(MatchError(ContainSubstring("is not the VM that was verified")))
		w.Expect(w.Running(claim)).To(BeFalse())
	})
}
