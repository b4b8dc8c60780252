// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package instance_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

func TestAClaimBecomesARunningVMAndGoesWithoutATrace(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	p := w.process()
	claim := w.launched(p, "pool-abc")

	in := w.intentOf(claim)
	w.Expect(claim.Annotations).To(HaveKey(v1alpha1.AnnotationLaunchCompleted))
	w.Expect(claim.Annotations[v1alpha1.AnnotationLaunchProgress]).To(ContainSubstring("Started"))

	cfg, err := w.client().VMConfig(t.Context(), in.Host, in.VMID)
	w.Expect(err).NotTo(HaveOccurred())
	w.Expect(cfg.Name()).To(Equal("pool-abc"))
	w.Expect(cfg.Cores()).To(Equal(2))
	w.Expect(cfg.MemoryMiB()).To(Equal(in.MemoryMiB))
	w.Expect(cfg.Tags()).To(ConsistOf("karpenter"))
	w.Expect(strings.ToLower(cfg.SMBIOS().UUID)).To(Equal(string(claim.UID)))
	disk, _ := cfg.BootDisk()
	w.Expect(disk.SizeBytes).To(BeNumerically(">=", in.DiskBytes))
	w.Expect(cfg.NICs()[0].MAC).To(Equal(in.MACs["net0"]))
	status, err := w.client().VMStatus(t.Context(), in.Host, in.VMID)
	w.Expect(err).NotTo(HaveOccurred())
	w.Expect(status.Running).To(BeTrue())

	w.Expect(p.inventory.Refresh(t.Context(), region)).To(Succeed())
	w.Eventually(p.VMs.List).WithTimeout(5 * time.Second).Should(ConsistOf(HaveField("VMID", in.VMID)))

	w.Expect(p.Deleter.CleanupBootDrive(t.Context(), claim)).To(Succeed())
	w.expectNoBootDrives()
	w.expectNoTokens()

	w.deleted(p, w.reread(claim))
	w.expectNothingLeft()
}

func TestALaunchThatNeverJoinedLeavesNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	p := w.process()
	claim := w.launched(p, "pool-abc")
	w.deleted(p, claim)
	w.expectNothingLeft()
}

func TestADeleteInTheMiddleOfALaunchWins(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	p := w.process()
	claim := w.planned(p, "pool-abc")
	launched := make(chan error, 1)
	go func() { launched <- p.Launcher.Launch(t.Context(), claim, w.class) }()
	w.Eventually(w.ours).WithTimeout(10 * time.Second).WithPolling(5 * time.Millisecond).ShouldNot(BeEmpty())
	w.deleted(p, claim)
	w.Expect(<-launched).To(MatchError(instance.ErrClaimBusy))
	w.expectNothingLeft()
}

func TestSomebodyElsesVMOnOurVMIDIsLeftAlone(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	p := w.process()
	claim := w.planned(p, "pool-abc")
	in := w.intentOf(claim)
	// Somebody is quicker with the same VMID.
	w.cloneByHand(in.Host, in.VMID, "theirs")
	err := p.Launcher.Launch(t.Context(), claim, w.class)
	var final *instance.LaunchError
	w.Expect(errors.As(err, &final)).To(BeTrue(), "%v", err)
	w.Expect(final.Reason).To(Equal(instance.ReasonVMIDTaken))

	w.deleted(p, claim)
	cfg, err := w.client().VMConfig(t.Context(), in.Host, in.VMID)
	w.Expect(err).NotTo(HaveOccurred())
	w.Expect(cfg.Name()).To(Equal("theirs"))
	w.expectNoBootDrives()
	w.expectNoTokens()
}

func TestACopyOfOurVMIsNotOurs(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	p := w.process()
	claim := w.launched(p, "pool-abc")
	in := w.intentOf(claim)
	c := w.client()
	cfg, err := c.VMConfig(t.Context(), in.Host, in.VMID)
	w.Expect(err).NotTo(HaveOccurred())
	// A copy keeps the notes; a restored backup keeps notes and UUID.
	w.cloneByHand(in.Host, 30000, "copy")
	w.Expect(c.UpdateVM(t.Context(), in.Host, 30000, proxmox.ConfigChange{Set: map[string]string{
		"description": cfg.Description(), "smbios1": cfg.SMBIOS().Encode(),
	}})).To(Succeed())
	w.Expect(p.inventory.Refresh(t.Context(), region)).To(Succeed())
	w.Consistently(func() []instance.VM {
		vms, err := p.VMs.List()
		w.Expect(err).NotTo(HaveOccurred())
		return vms
	}).WithTimeout(500 * time.Millisecond).ShouldNot(ContainElement(HaveField("VMID", 30000)))
	w.deleted(p, claim)
	_, err = c.VMConfig(t.Context(), in.Host, 30000)
	w.Expect(err).NotTo(HaveOccurred(), "the copy is still there")
}

func TestAnotherKubernetesClustersVMsAreInvisible(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	mine, theirs := w.process(), w.process(inCluster("another-kubernetes-cluster"))
	claim := w.launched(mine, "pool-abc")
	w.Expect(theirs.inventory.Refresh(t.Context(), region)).To(Succeed())
	w.Eventually(func() error { return mine.inventory.Refresh(t.Context(), region) }).Should(Succeed())
	w.Eventually(mine.VMs.List).WithTimeout(5 * time.Second).Should(HaveLen(1))
	w.Expect(theirs.VMs.List()).To(BeEmpty())
	gone, err := theirs.Deleter.Delete(t.Context(), claim)
	w.Expect(err).NotTo(HaveOccurred())
	w.Expect(gone).To(BeTrue(), "for them it does not exist")
	w.Expect(w.ours()).To(HaveLen(1), "and it is still there")
}

func TestAProtectedVMIsNotRemovedAgainstItsAdminsWill(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	p := w.process()
	claim := w.launched(p, "pool-abc")
	in := w.intentOf(claim)
	c := w.client()
	w.Expect(c.UpdateVM(t.Context(), in.Host, in.VMID, proxmox.ConfigChange{Set: map[string]string{"protection": "1"}})).To(Succeed())
	_, err := p.Deleter.Delete(t.Context(), claim)
	var blocked *instance.BlockedError
	w.Expect(errors.As(err, &blocked)).To(BeTrue(), "%v", err)
	w.Expect(blocked.Message).To(ContainSubstring("--protection 0"))
	status, err := c.VMStatus(t.Context(), in.Host, in.VMID)
	w.Expect(err).NotTo(HaveOccurred())
	w.Expect(status.Running).To(BeTrue(), "it was not even stopped")
	w.Expect(c.UpdateVM(t.Context(), in.Host, in.VMID, proxmox.ConfigChange{Set: map[string]string{"protection": "0"}})).To(Succeed())
	w.deleted(p, claim)
}

func TestAStartThatCannotSucceedSaysWhy(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1, func(s *pvesim.Scenario) {
		for i := range s.Guests {
			if s.Guests[i].VMID == 9000 {
				s.Guests[i].Config["net0"] = "virtio=BC:24:11:00:00:01,bridge=vmbr7"
			}
		}
	})
	p := w.process()
	claim := w.planned(p, "pool-abc")
	err := p.Launcher.Launch(t.Context(), claim, w.class)
	var final *instance.LaunchError
	w.Expect(errors.As(err, &final)).To(BeTrue(), "%v", err)
	w.Expect(final.Reason).To(Equal(instance.ReasonStart))
	w.Expect(final.Error()).To(ContainSubstring("bridge 'vmbr7' does not exist"))
	w.deleted(p, claim)
	w.expectNothingLeft()
}

func TestABurstFitsOrIsRefusedWithReasons(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	p := w.process()
	launched := 0
	var refusal error
	for i := range 40 {
		_, err := p.Planner.Plan(t.Context(), w.claim(fmt.Sprintf("pool-%d", i)), w.class, nil)
		if err != nil {
			refusal = err
			break
		}
		launched++
	}
	// Two hosts of 16 CPUs, of which a guest has two each.
	w.Expect(launched).To(Equal(14))
	var noRoom *instance.InsufficientCapacityError
	w.Expect(errors.As(refusal, &noRoom)).To(BeTrue())
	w.Expect(refusal.Error()).To(And(ContainSubstring("pve1"), ContainSubstring("pve2"), ContainSubstring("CPU")))
}

// cloneByHand is what an admin does, with another token's or root's hands.
func (w *world) cloneByHand(host string, vmid int, name string) {
	w.t.Helper()
	c := w.client()
	task, err := c.CloneVM(w.t.Context(), proxmox.CloneRequest{Host: host, TemplateID: 9000, VMID: vmid, Name: name})
	w.Expect(err).NotTo(HaveOccurred())
	status, err := proxmox.WaitTask(w.t.Context(), c, task, proxmox.WaitOptions{})
	w.Expect(err).NotTo(HaveOccurred())
	w.Expect(status.Err()).NotTo(HaveOccurred())
}

func TestAClassMayAskForFullClones(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	p := w.process()
	w.Expect(w.intentOf(w.launched(p, "linked")).Full).To(BeFalse())
	w.class.Spec.BootDevice.FullClone = true
	claim := w.launched(p, "full")
	in := w.intentOf(claim)
	w.Expect(in.Full).To(BeTrue())
	w.Expect(in.Storage).To(Equal("local-lvm"))
	cfg, err := w.client().VMConfig(t.Context(), in.Host, in.VMID)
	w.Expect(err).NotTo(HaveOccurred())
	disk, _ := cfg.BootDisk()
	w.Expect(disk.VolumeID).To(HavePrefix("local-lvm:vm-"))
	w.deleted(p, claim)
}

// Where disks are known to grow quickly, the VM is started meanwhile.
func TestADiskThatDoesNotGrowWhileItsVMStartsIsGrownAfterwards(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		fault pvesim.Fault
		tries int
	}{
		"slow":   {pvesim.Fault{Task: "resize", Delay: pvesim.Duration(5 * time.Second), Count: 1}, 1},
		"locked": {pvesim.Fault{Task: "resize", Fail: "can't lock file '/var/lock/qemu-server/lock-20001.conf' - got timeout", Count: 1}, 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, 1)
			p := w.process(frozen)
			w.deleted(p, w.launched(p, "teacher"))
			_, err := w.sim.AddFault(c.fault)
			w.Expect(err).NotTo(HaveOccurred())
			claim := w.planned(p, "pool-abc")
			for try := 1; try < c.tries; try++ {
				err := p.Launcher.Launch(t.Context(), claim, w.class)
				w.Expect(err).To(MatchError(proxmox.ErrLocked))
				w.Expect(err).NotTo(BeAssignableToTypeOf(&instance.LaunchError{}))
			}
			w.Expect(p.Launcher.Launch(t.Context(), claim, w.class)).To(Succeed())
			w.Expect(w.sim.Faults()[0].Hits).To(Equal(1))
			in := w.intentOf(claim)
			cfg, err := w.client().VMConfig(t.Context(), in.Host, in.VMID)
			w.Expect(err).NotTo(HaveOccurred())
			disk, _ := cfg.BootDisk()
			w.Expect(disk.SizeBytes).To(Equal(in.DiskBytes))
			status, err := w.client().VMStatus(t.Context(), in.Host, in.VMID)
			w.Expect(err).NotTo(HaveOccurred())
			w.Expect(status.Running).To(BeTrue())
			w.deleted(p, w.reread(claim))
		})
	}
}

func TestACloneThatTakesTooLongIsRefusedNextTime(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	p := w.process(with(func(s *instance.Settings) { s.TaskTimeout, s.TooSlowClone = 300*time.Millisecond, 300*time.Millisecond }))
	claim := w.planned(p, "pool-abc")
	_, err := w.sim.AddFault(pvesim.Fault{Task: "qmclone", Hang: true})
	w.Expect(err).NotTo(HaveOccurred())
	err = p.Launcher.Launch(t.Context(), claim, w.class)
	var final *instance.LaunchError
	w.Expect(errors.As(err, &final)).To(BeTrue(), "%v", err)
	w.Expect(final.Reason).To(Equal(instance.ReasonSlowClone))
	w.Expect(p.CloneTimes.Get(region, "pve1", "local-lvm")).To(BeNumerically(">", 300*time.Millisecond))
	w.deleted(p, w.reread(claim))
	w.expectNothingLeft()

	refusal, warning := p.CloneTimes.Evaluate(region, "pve1", "local-lvm")
	w.Expect(refusal).To(ContainSubstring("a clone takes about"))
	w.Expect(warning).To(BeEmpty())
	refusal, warning = p.CloneTimes.Evaluate(region, "pve1", "another")
	w.Expect(refusal+warning).To(BeEmpty(), "nobody knows")
}
