// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package instance_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

// intentOf reads what was decided for a claim.
func (w *world) intentOf(claim *karpv1.NodeClaim) instance.Intent {
	w.t.Helper()
	in, ok, err := instance.ReadIntent(claim)
	w.Expect(err).NotTo(HaveOccurred())
	w.Expect(ok).To(BeTrue())
	return in
}

// blockedAs expects that a delete waits, and why.
func (w *world) blockedAs(p *process, claim *karpv1.NodeClaim, reason string) {
	w.t.Helper()
	gone, err := p.Deleter.Delete(w.t.Context(), claim)
	var blocked *instance.BlockedError
	w.Expect(errors.As(err, &blocked)).To(BeTrue(), "%v", err)
	w.Expect(blocked.Reason).To(Equal(reason), blocked.Message)
	w.Expect(gone).To(BeFalse())
}

func TestADeleteWaitsForAnUnreachableHost(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	p := w.process()
	claim := w.launched(p, "pool-abc")
	host := w.intentOf(claim).Host
	w.Expect(w.sim.HostDown(host, "refused")).To(Succeed())
	w.blockedAs(p, claim, instance.BlockedHostUnreachable)
	w.Expect(w.sim.HostUp(host)).To(Succeed())
	w.deleted(p, claim)
	w.Eventually(w.ours).WithTimeout(10 * time.Second).Should(BeEmpty())
	w.expectNoBootDrives()
}

func TestADeleteWaitsForABackup(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	p := w.process()
	claim := w.launched(p, "pool-abc")
	vmid := w.intentOf(claim).VMID
	w.Expect(w.sim.SetConfigLock(vmid, "backup")).To(Succeed())
	w.blockedAs(p, claim, instance.BlockedLocked)
	w.Expect(w.sim.SetConfigLock(vmid, "")).To(Succeed())
	w.deleted(p, claim)
	w.expectNothingLeft()
}

func TestAGuestMayShutDownBeforeItGoes(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	p := w.process(with(func(s *instance.Settings) { s.ShutdownTimeout = time.Minute }))
	claim := w.launched(p, "pool-abc")
	w.sim.ResetRequests()
	w.deleted(p, claim)
	w.Expect(w.sim.CountRequests("POST", "/nodes/{node}/qemu/{vmid}/status/shutdown")).To(Equal(1))
	w.Expect(w.sim.CountRequests("POST", "/nodes/{node}/qemu/{vmid}/status/stop")).To(BeZero())
	w.expectNothingLeft()
}

func TestVolumesOfOtherOwnersStay(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1, func(s *pvesim.Scenario) {
		// A guest whose disk is attached to our VM stands for the CSI driver's volumes.
		s.Guests = append(s.Guests, pvesim.Guest{VMID: 9999, Name: "csi", Host: "pve1", Config: map[string]string{
			"memory": "16", "scsi0": "local-lvm:vm-9999-pvc-1,size=1G",
		}})
	})
	p := w.process()
	claim := w.launched(p, "pool-abc")
	in := w.intentOf(claim)
	c := w.client()
	w.Expect(c.UpdateVM(t.Context(), in.Host, in.VMID, proxmox.ConfigChange{Set: map[string]string{"scsi1": "local-lvm:vm-9999-pvc-1"}})).To(Succeed())
	w.deleted(p, claim)
	volumes, err := c.Volumes(t.Context(), "pve1", "local-lvm", "images")
	w.Expect(err).NotTo(HaveOccurred())
	w.Expect(volumes).To(ContainElement(HaveField("ID", "local-lvm:vm-9999-pvc-1")))
}

func TestPassingTroublesDoNotEndALaunch(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]pvesim.Fault{
		"no worker for the clone":     {Method: "POST", Path: "/nodes/{node}/qemu/{vmid}/clone", Count: 2, Status: 500, Message: "got no worker upid - start worker failed"},
		"a storage lock in the clone": {Task: "qmclone", Count: 1, Fail: "clone failed: can't lock file '/var/lock/pve-manager/pve-storage-local-lvm' - got timeout"},
		"a lock in the config write":  {Method: "PUT", Path: "/nodes/{node}/qemu/{vmid}/config", Count: 1, Status: 500, Message: "can't lock file '/var/lock/qemu-server/lock-20001.conf' - got timeout"},
		"a broken answer to start":    {Method: "POST", Path: "/nodes/{node}/qemu/{vmid}/status/start", Count: 1, DropAfter: true},
		"596 on the upload":           {Method: "POST", Path: "/nodes/{node}/storage/{storage}/upload", Count: 1, Status: 596, Message: "Broken pipe"},
		"no quorum for a moment":      {Method: "POST", Path: "/nodes/{node}/qemu/{vmid}/clone", Count: 1, Status: 500, Message: "cluster not ready - no quorum?"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, 1)
			p := w.process()
			claim := w.planned(p, "pool-abc")
			_, err := w.sim.AddFault(fault)
			w.Expect(err).NotTo(HaveOccurred())
			// As the launch controller does: call again, unless it is final.
			w.Eventually(func() error {
				err := p.Launcher.Launch(t.Context(), w.reread(claim), w.class)
				if final, ok := errors.AsType[*instance.LaunchError](err); ok {
					return StopTrying(fmt.Sprintf("final: %s", final.Reason)).Wrap(err)
				}
				return err
			}).WithTimeout(20 * time.Second).WithPolling(50 * time.Millisecond).Should(Succeed())
			w.Expect(w.ours()).To(HaveLen(1))
			w.deleted(p, w.reread(claim))
			w.expectNothingLeft()
		})
	}
}

func TestFinalTroublesEndALaunchWithTheirReason(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		fault  pvesim.Fault
		reason string
		says   string
	}{
		"storage full": {
			pvesim.Fault{Task: "qmclone", Fail: "clone failed: lvcreate 'pve/vm-1-disk-0' error: No space left on device"}, instance.ReasonStorageFull, "No space left",
		},
		"a privilege is missing": {
			pvesim.Fault{Method: "PUT", Path: "/nodes/{node}/qemu/{vmid}/config", Status: 403, Message: "Permission check failed (/vms/1, VM.Config.CPU)"}, instance.ReasonPermission, "VM.Config.CPU",
		},
		"the template is gone": {
			pvesim.Fault{Method: "POST", Path: "/nodes/{node}/qemu/{vmid}/clone", Status: 500, Message: "unable to find configuration file for VM 9000 on node 'pve1'"}, instance.ReasonClone, "9000",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, 1)
			p := w.process()
			claim := w.planned(p, "pool-abc")
			_, err := w.sim.AddFault(test.fault)
			w.Expect(err).NotTo(HaveOccurred())
			err = p.Launcher.Launch(t.Context(), claim, w.class)
			var final *instance.LaunchError
			w.Expect(errors.As(err, &final)).To(BeTrue(), "%v", err)
			w.Expect(final.Reason).To(Equal(test.reason), final.Error())
			w.Expect(final.Error()).To(ContainSubstring(test.says))
			w.sim.ClearFaults()
			w.deleted(p, w.reread(claim))
			w.expectNothingLeft()
		})
	}
}

func TestAVMFollowsItsClassInPlace(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1, func(s *pvesim.Scenario) {
		s.SecurityGroups = append(s.SecurityGroups, pvesim.SecurityGroup{Name: "web"})
	})
	p := w.process()
	claim := w.launched(p, "pool-abc")
	in := w.intentOf(claim)
	w.class.Spec.Tags = []string{"Web", "k8s"}
	w.class.Spec.SecurityGroups = []v1alpha1.SecurityGroup{{Name: "web", Interface: "net0"}}
	w.Expect(p.Updater.UpdateInPlace(t.Context(), claim, w.class)).To(Succeed())
	cfg, err := w.client().VMConfig(t.Context(), in.Host, in.VMID)
	w.Expect(err).NotTo(HaveOccurred())
	w.Expect(cfg.Tags()).To(ConsistOf("k8s", "web"))
	w.Expect(cfg.NICs()[0].Firewall).To(BeTrue())
	w.Expect(w.reread(claim).Annotations).To(HaveKeyWithValue(v1alpha1.AnnotationInPlaceUpdateHash, w.class.InPlaceHash()))
	owns, why := p.VMs.Get(t.Context(), v1alpha1.ProviderID{Region: in.Region, VMID: in.VMID})
	w.Expect(why).NotTo(HaveOccurred())
	w.Expect(owns.ClaimUID).To(Equal(string(claim.UID)), "it is still ours")
	w.deleted(p, claim)
}

func TestAnOrphanGoesWithAllThatItHas(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	p := w.process()
	claim := w.launched(p, "pool-abc")
	w.Expect(w.kube.Delete(t.Context(), claim)).To(Succeed())
	var vms []instance.VM
	w.Eventually(func() []instance.VM { vms, _ = p.VMs.List(); return vms }).WithTimeout(5 * time.Second).Should(HaveLen(1))
	w.Eventually(func() (bool, error) { return p.Deleter.DeleteOrphan(t.Context(), vms[0]) }).WithTimeout(20 * time.Second).Should(BeTrue())
	w.expectNothingLeft()
}

func TestAnOrphanWithoutBootDriveIsReadOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	p := w.process(frozen)
	claim := w.launched(p, "pool-abc")
	w.Expect(p.Deleter.CleanupBootDrive(t.Context(), claim)).To(Succeed())
	w.Expect(p.inventory.RefreshAll(t.Context())).To(Succeed())
	vms, err := p.VMs.List()
	w.Expect(err).NotTo(HaveOccurred())
	w.sim.ResetRequests()
	w.Eventually(func() (bool, error) { return p.Deleter.DeleteOrphan(t.Context(), vms[0]) }).WithTimeout(20 * time.Second).Should(BeTrue())
	w.Expect(w.sim.CountRequests("GET", "/nodes/{node}/qemu/{vmid}/config")).To(Equal(1))
	w.expectNothingLeft()
}

func TestBootDrivesOfThisKubernetesClusterAreFound(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	p := w.process()
	claim := w.launched(p, "pool-abc")
	drives, err := p.Deleter.ListBootDrives(t.Context())
	w.Expect(err).NotTo(HaveOccurred())
	w.Expect(drives).To(ConsistOf(HaveField("ClaimUID", string(claim.UID))))
	others, err := w.process(inCluster("ffffffff-0000-4000-8000-000000000002")).Deleter.ListBootDrives(t.Context())
	w.Expect(err).NotTo(HaveOccurred())
	w.Expect(others).To(BeEmpty())
	w.deleted(p, claim)
}

func TestAStoppedVMIsStartedAndARebootHappensOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	p := w.process()
	claim := w.launched(p, "pool-abc")
	started, err := p.Power.PowerOn(t.Context(), claim)
	w.Expect(err).NotTo(HaveOccurred())
	w.Expect(started).To(BeFalse(), "it runs already")
	w.Expect(w.sim.PowerOffGuest(w.intentOf(claim).VMID)).To(Succeed())
	w.Eventually(func() (bool, error) { return p.Power.PowerOn(t.Context(), claim) }).WithTimeout(10 * time.Second).Should(BeTrue())

	w.sim.ResetRequests()
	w.Expect(p.Power.Reboot(t.Context(), claim, "op-1")).To(Succeed())
	w.Expect(p.Power.Reboot(t.Context(), w.reread(claim), "op-1")).To(Succeed())
	w.Expect(w.sim.CountRequests("POST", "/nodes/{node}/qemu/{vmid}/status/reset")).To(Equal(1))
	w.deleted(p, w.reread(claim))
}

func TestAVMThatIsGoneIsGoneOnlyWithProof(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	p := w.process()
	claim := w.launched(p, "pool-abc")
	in := w.intentOf(claim)
	id := v1alpha1.ProviderID{Region: in.Region, VMID: in.VMID}
	_, err := p.VMs.Get(t.Context(), id)
	w.Expect(err).NotTo(HaveOccurred())
	// A Cluster that does not answer proves nothing.
	_, err = w.sim.AddFault(pvesim.Fault{Path: "/cluster/resources", Status: 596, Message: "Connection timed out"})
	w.Expect(err).NotTo(HaveOccurred())
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	_, err = p.VMs.Get(ctx, id)
	w.Expect(err).To(HaveOccurred())
	w.Expect(errors.Is(err, proxmox.ErrNotFound)).To(BeFalse(), "%v", err)
	w.sim.ClearFaults()
	w.deleted(p, claim)
	_, err = p.VMs.Get(t.Context(), id)
	w.Expect(err).To(MatchError(proxmox.ErrNotFound))
}

func TestAHostThatLeftItsClusterIsNotWaitedForForEver(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	p := w.process()
	claim := w.launched(p, "pool-abc")
	// The claim says pve7, which the Cluster does not know, and no VM of that id is anywhere.
	in := w.intentOf(claim)
	w.deleted(p, claim)
	in.Host, in.TemplateHost = "pve7", "pve7"
	claim.Annotations[v1alpha1.AnnotationLaunchIntent] = in.Encode()
	w.deleted(p, claim)
}

// A clone or a destroy that died with its host leaves a lock that only root can
// take away: the delete waits, and says with which command.
func TestADeleteNamesTheWayOutOfADeadLock(t *testing.T) {
	t.Parallel()
	for lock, command := range map[string]string{"clone": "qm unlock", "destroyed": "--skiplock"} {
		t.Run(lock, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, 1)
			p := w.process()
			claim := w.launched(p, "pool-abc")
			vmid := w.intentOf(claim).VMID
			w.Expect(w.sim.SetConfigLock(vmid, lock)).To(Succeed())
			w.blockedAs(p, claim, instance.BlockedLocked)
			_, err := p.Deleter.Delete(t.Context(), claim)
			w.Expect(err).To(MatchError(And(ContainSubstring(command), ContainSubstring(fmt.Sprint(vmid)))))
			w.Expect(w.sim.SetConfigLock(vmid, "")).To(Succeed())
			w.deleted(p, claim)
			w.expectNothingLeft()
		})
	}
}

func TestAVMThatAnAdminPutUnderHAIsRemovedWithItsHAEntry(t *testing.T) {
	t.Parallel()
	for _, version := range []string{"8.4", "9.2"} {
		for _, state := range []string{"started", "stopped", "disabled", "ignored"} {
			t.Run(version+" "+state, func(t *testing.T) {
				t.Parallel()
				w := newWorld(t, 2, func(s *pvesim.Scenario) { s.Version = version })
				p := w.process()
				claim := w.launched(p, "pool-abc")
				vmid := w.intentOf(claim).VMID
				w.Expect(w.sim.SetHA(vmid, state)).To(Succeed())
				w.deleted(p, claim)
				w.Expect(w.ours()).To(BeEmpty())
				_, left := w.sim.HAState(vmid)
				w.Expect(left).To(BeFalse(), "the HA entry goes with the VM")
				w.expectNoTokens()
			})
		}
	}
}

// HA moves a VM between two looks: what was read on its old Host is not found there.
func TestAVMThatHAMovedWhileItIsRemovedIsRemovedAllTheSame(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	p := w.process(frozen)
	claim := w.launched(p, "pool-abc")
	in := w.intentOf(claim)
	other := map[string]string{"pve1": "pve2", "pve2": "pve1"}[in.Host]
	w.Expect(p.inventory.RefreshAll(t.Context())).To(Succeed())
	w.Expect(w.sim.SetHA(in.VMID, "started")).To(Succeed())
	w.Expect(w.sim.MigrateGuest(in.VMID, other)).To(Succeed())
	w.deleted(p, claim)
	w.Expect(w.ours()).To(BeEmpty())
	_, left := w.sim.HAState(in.VMID)
	w.Expect(left).To(BeFalse())
}

func TestAnInterfaceLeavesTheFirewallWithItsLastGroup(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1, func(s *pvesim.Scenario) {
		s.SecurityGroups = append(s.SecurityGroups, pvesim.SecurityGroup{Name: "web"})
		for i, guest := range s.Guests {
			if guest.VMID == 9000 {
				s.Guests[i].Config["net1"] = "virtio=BC:24:11:00:77:01,bridge=vmbr0"
				s.Guests[i].Config["net2"] = "virtio=BC:24:11:00:77:02,bridge=vmbr0,firewall=1"
			}
		}
	})
	w.class.Spec.SecurityGroups = []v1alpha1.SecurityGroup{
		{Name: "kubernetes", Interface: "net0"}, {Name: "kubernetes", Interface: "net0"}, {Name: "web", Interface: "net1"}, {Name: "web", Interface: "net2"},
	}
	p := w.process()
	claim := w.launched(p, "default-a")
	firewalled := func() map[string]bool {
		in, _, err := instance.ReadIntent(claim)
		w.Expect(err).NotTo(HaveOccurred())
		cfg, err := w.client().VMConfig(t.Context(), in.Host, in.VMID)
		w.Expect(err).NotTo(HaveOccurred())
		out := map[string]bool{}
		for _, nic := range cfg.NICs() {
			out[nic.Slot] = nic.Firewall
		}
		return out
	}
	w.Expect(firewalled()).To(Equal(map[string]bool{"net0": true, "net1": true, "net2": true}))
	w.class.Spec.SecurityGroups = w.class.Spec.SecurityGroups[:1]
	w.Expect(p.Updater.UpdateInPlace(t.Context(), claim, w.class)).To(Succeed())
	w.Expect(firewalled()).To(Equal(map[string]bool{"net0": true, "net1": false, "net2": true}), "net2 is so by its template")
	w.class.Spec.SecurityGroups = []v1alpha1.SecurityGroup{{Name: "web", Interface: "net1"}}
	w.Expect(p.Updater.UpdateInPlace(t.Context(), claim, w.class)).To(Succeed())
	w.Expect(firewalled()).To(Equal(map[string]bool{"net0": false, "net1": true, "net2": true}))
}
