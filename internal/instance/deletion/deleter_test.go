// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package deletion_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

// expectBlocked checks that a delete is blocked.
func expectBlocked(w *testenv.Env, p *testenv.Process, claim *karpv1.NodeClaim, reason string) {
	w.T.Helper()
	deleted, err := p.Instances.Deleter.Delete(w.T.Context(), claim)
	var blocked *instance.BlockedError
	w.Expect(errors.As(err, &blocked)).To(BeTrue(), "%v", err)
	w.Expect(blocked.Reason).To(Equal(reason), blocked.Message)
	w.Expect(deleted).To(BeFalse())
}

func TestDeleteBeforeJoin(t *testing.T) {
	t.Parallel()
	w := testenv.NewFake(t)
	p := w.StartProcess()
	claim := p.Launched("pool-abc", w.NodeClass)
	p.Delete(claim)
	w.ExpectNoOrphans()
}

func TestDeleteDuringLaunch(t *testing.T) {
	t.Parallel()
	w := testenv.NewFake(t)
	p := w.StartProcess()
	claim := p.Planned("pool-abc", w.NodeClass)
	// Otherwise the launch could complete before the delete.
	w.AddFault(pvesim.Fault{Task: "qmstart", Hang: true})
	launched := make(chan error, 1)
	go func() { launched <- p.Launch(claim, w.NodeClass) }()
	w.Eventually(w.VMs).WithPolling(5 * time.Millisecond).ShouldNot(BeEmpty())
	p.Delete(claim)
	w.Expect(<-launched).To(MatchError(instance.ErrClaimBusy))
	w.ExpectNoOrphans()
}

func TestDeleteProtectedVM(t *testing.T) {
	t.Parallel()
	w := testenv.NewFake(t)
	p := w.StartProcess()
	claim := p.Launched("pool-abc", w.NodeClass)
	in := w.Intent(claim)
	c := w.Client
	w.Expect(c.UpdateVM(t.Context(), in.Host, in.VMID, proxmox.ConfigChange{Set: map[string]string{"protection": "1"}})).To(Succeed())
	_, err := p.Instances.Deleter.Delete(t.Context(), claim)
	var blocked *instance.BlockedError
	w.Expect(errors.As(err, &blocked)).To(BeTrue(), "%v", err)
	w.Expect(blocked.Message).To(ContainSubstring("--protection 0"))
	status, err := c.VMStatus(t.Context(), in.Host, in.VMID)
	w.Expect(err).NotTo(HaveOccurred())
	w.Expect(status.Running).To(BeTrue(), "it was not stopped")
	w.Expect(c.UpdateVM(t.Context(), in.Host, in.VMID, proxmox.ConfigChange{Set: map[string]string{"protection": "0"}})).To(Succeed())
	p.Delete(claim)
}

// If the task cannot be read, the clone may still run: the lock is not reported as stale.
func TestDeleteUnreadableCloneTask(t *testing.T) {
	t.Parallel()
	w := testenv.NewFake(t)
	w.NodeClass.Spec.BootDevice.FullClone = true
	p := w.StartProcess()
	claim := p.Planned("pool-abc", w.NodeClass)
	// While the upload is awaited as well, the launch reads the list of tasks.
	for _, path := range []string{"/nodes/*/tasks/*qmclone*/status", "/nodes/*/tasks"} {
		w.AddFault(pvesim.Fault{Method: "GET", Path: path, Status: 403, Message: "Permission check failed"})
	}
	var final *instance.LaunchError
	w.Expect(errors.As(p.Launch(claim, w.NodeClass), &final)).To(BeTrue())
	w.Expect(final.Reason).To(Equal(v1alpha1.EventPermissionMissing))
	w.Sim.ClearFaults()
	_, err := p.Instances.Deleter.Delete(t.Context(), w.Stored(claim))
	w.Expect(err).NotTo(HaveOccurred(), "the clone may still run")
	p.Delete(w.Stored(claim))
	w.ExpectNoOrphans()
}

// Full clones take minutes. Deletes have their own slots.
func TestDeleteDuringClones(t *testing.T) {
	t.Parallel()
	w := testenv.NewFake(t)
	p := w.StartProcess(testenv.Settings(func(s *instance.Settings) { s.TaskTimeout = time.Hour }))
	slots := 4
	deleted := p.Launched("pool-deleted", w.NodeClass)
	w.AddFault(pvesim.Fault{Task: "qmclone", Hang: true})
	ctx, end := context.WithCancel(t.Context())
	var launches sync.WaitGroup
	for n := range slots + 1 {
		claim := p.Planned(fmt.Sprintf("pool-%d", n), w.NodeClass)
		launches.Go(func() { _ = p.Instances.Launcher.Launch(ctx, claim, w.NodeClass) })
	}
	// One clone was that of the deleted VM.
	w.Eventually(func() int { return w.Sim.CountRequests("POST", "/nodes/{node}/qemu/{vmid}/clone") }).Should(Equal(1 + slots))
	p.Delete(deleted)
	end()
	launches.Wait()
}

// If Proxmox cannot delete a disk, it destroys the VM with a warning.
func TestDeleteLeakedDisk(t *testing.T) {
	t.Parallel()
	w := testenv.NewFake(t, testenv.ShortLockTimeouts())
	p := w.StartProcess()
	// If the lock is released later than the last retry, the next Delete deletes the disk.
	claim := deleting(w, p.Launched("pool-abc", w.NodeClass))
	host := w.Intent(claim).Host
	release, err := w.Sim.HoldStorageLock(t.Context(), host, "local-lvm")
	w.Expect(err).NotTo(HaveOccurred())
	go func() {
		defer release()
		// The lock is released after Proxmox timed out.
		w.Eventually(func() int { return w.Sim.CountRequests("DELETE", "/nodes/{node}/storage/{storage}/content/{volume}") }).
			Should(BeNumerically(">", 0))
	}()
	p.Delete(claim)
	w.ExpectNoOrphans()
}

// A disk on a storage that is inactive is deleted when the storage is back, also by
// another process.
func TestDeleteWithInactiveStorage(t *testing.T) {
	t.Parallel()
	w := testenv.NewFake(t)
	p := w.StartProcess()
	claim := p.Launched("pool-abc", w.NodeClass)
	host := w.Intent(claim).Host
	claim.Finalizers = []string{karpv1.TerminationFinalizer}
	w.Expect(w.Kube.Update(t.Context(), claim)).To(Succeed())
	w.Expect(w.Kube.Delete(t.Context(), claim)).To(Succeed())
	w.Expect(w.Kube.Get(t.Context(), client.ObjectKeyFromObject(claim), claim)).To(Succeed())
	w.Expect(w.Sim.SetStorageActive(host, "local-lvm", false)).To(Succeed())
	expectBlocked(w, p, claim, v1alpha1.EventDiskNotDeleted)
	p = w.StartProcess()
	expectBlocked(w, p, claim, v1alpha1.EventDiskNotDeleted)
	w.Expect(w.Sim.SetStorageActive(host, "local-lvm", true)).To(Succeed())
	p.Delete(claim)
	w.ExpectNoOrphans()
}

func TestDeleteUnreachableHost(t *testing.T) {
	t.Parallel()
	w := testenv.NewFake(t, testenv.Hosts(2))
	p := w.StartProcess()
	claim := p.Launched("pool-abc", w.NodeClass)
	host := w.Intent(claim).Host
	w.Expect(w.Sim.HostDown(host, "refused")).To(Succeed())
	expectBlocked(w, p, claim, v1alpha1.EventHostUnreachable)
	w.Expect(w.Sim.HostUp(host)).To(Succeed())
	p.Delete(claim)
	w.Eventually(w.VMs).Should(BeEmpty())
	w.ExpectNoBootDrives()
}

// After a restart, the recorded clone of a claim is canceled.
func TestDeleteRecordedClone(t *testing.T) {
	t.Parallel()
	w := testenv.NewFake(t)
	before := w.StartProcess(testenv.Settings(func(s *instance.Settings) { s.CloneRecordAfter = 0 }))
	claim := before.Planned("pool-abc", w.NodeClass)
	w.AddFault(pvesim.Fault{Task: "qmclone", Hang: true})
	ctx, cancel := context.WithCancel(t.Context())
	launched := make(chan error, 1)
	go func() { launched <- before.Instances.Launcher.Launch(ctx, claim, w.NodeClass) }()
	w.Eventually(func() map[string]string { return w.Stored(claim).Annotations }).Should(HaveKey(v1alpha1.AnnotationLaunchTask))
	cancel()
	w.Expect(<-launched).To(HaveOccurred())
	w.StartProcess().Delete(w.Stored(claim))
	w.ExpectNoOrphans()
	w.Expect(w.Sim.CountRequests("DELETE", "/nodes/{node}/tasks/{upid}")).To(Equal(1))
}

// A launch whose clone was not recorded, and whose host was then recorded as asleep, has a VM.
func TestDeleteListedWhileHostWakes(t *testing.T) {
	t.Parallel()
	w := testenv.NewFake(t)
	claim := w.StartProcess().Launched("pool-abc", w.NodeClass)
	w.Expect(instance.Annotate(t.Context(), w.Kube, claim, map[string]string{
		v1alpha1.AnnotationLaunchProgress: `{"phase":"HostWaking","timeline":{"Planned":0,"HostWaking":1}}`,
	})).To(Succeed())
	w.StartProcess().Delete(w.Stored(claim))
	w.ExpectNoOrphans()
}

func TestDeleteDuringBackup(t *testing.T) {
	t.Parallel()
	w := testenv.NewFake(t)
	p := w.StartProcess()
	claim := p.Launched("pool-abc", w.NodeClass)
	vmid := w.Intent(claim).VMID
	w.Expect(w.Sim.SetConfigLock(vmid, "backup")).To(Succeed())
	expectBlocked(w, p, claim, v1alpha1.EventVMLocked)
	w.Expect(w.Sim.SetConfigLock(vmid, "")).To(Succeed())
	p.Delete(claim)
	w.ExpectNoOrphans()
}

func TestDeleteKeepsForeignVolumes(t *testing.T) {
	t.Parallel()
	w := testenv.NewFake(t, testenv.Scenario(func(s *pvesim.Scenario) {
		// The disk of this guest, attached to our VM, is like a volume of the CSI driver.
		s.Guests = append(s.Guests, pvesim.Guest{VMID: 9999, Name: "csi", Host: "pve1", Config: map[string]string{
			"memory": "16", "scsi0": "local-lvm:vm-9999-pvc-1,size=1G",
		}})
	}))
	p := w.StartProcess()
	claim := p.Launched("pool-abc", w.NodeClass)
	in := w.Intent(claim)
	c := w.Client
	w.Expect(c.UpdateVM(t.Context(), in.Host, in.VMID, proxmox.ConfigChange{Set: map[string]string{"scsi1": "local-lvm:vm-9999-pvc-1"}})).To(Succeed())
	p.Delete(claim)
	volumes, err := c.Volumes(t.Context(), "pve1", "local-lvm", "images")
	w.Expect(err).NotTo(HaveOccurred())
	w.Expect(volumes).To(ContainElement(HaveField("ID", "local-lvm:vm-9999-pvc-1")))
}

// Proxmox deletes a volume of the configuration that has the VM's VMID in its name, also
// if it belongs to the CSI driver, and also after it was detached.
func TestDeleteBlockedByVolume(t *testing.T) {
	t.Parallel()
	const vmid, volume = 30555, "local-lvm:vm-30555-pvc-1"
	w := testenv.NewFake(t, testenv.Scenario(func(s *pvesim.Scenario) {
		s.Guests = append(s.Guests, pvesim.Guest{VMID: 9998, Name: "csi", Host: "pve1", Config: map[string]string{
			"memory": "16", "scsi0": volume + ",size=1G",
		}})
	}))
	p := w.StartProcess(testenv.Settings(func(s *instance.Settings) { s.VMIDs.From, s.VMIDs.To = vmid, vmid }))
	claim := p.Launched("pool-abc", w.NodeClass)
	c := w.Client
	expectKept := func() {
		expectBlocked(w, p, claim, v1alpha1.EventVolumeAttached)
		w.Expect(c.Volumes(t.Context(), "pve1", "local-lvm", "images")).To(ContainElement(HaveField("ID", volume)))
		w.Expect(c.VMStatus(t.Context(), "pve1", vmid)).To(HaveField("Running", true), "it was not stopped")
	}
	w.Expect(c.UpdateVM(t.Context(), "pve1", vmid, proxmox.ConfigChange{Set: map[string]string{"scsi1": volume}})).To(Succeed())
	expectKept()
	w.Expect(c.UpdateVM(t.Context(), "pve1", vmid, proxmox.ConfigChange{Delete: []string{"scsi1"}})).To(Succeed())
	w.Expect(c.VMConfig(t.Context(), "pve1", vmid)).To(HaveField("Options", HaveKeyWithValue("unused0", volume)))
	expectKept()
}

func TestDeleteRemovedHost(t *testing.T) {
	t.Parallel()
	w := testenv.NewFake(t)
	p := w.StartProcess()
	claim := p.Launched("pool-abc", w.NodeClass)
	// The intent has a Host that the Cluster does not have, and the VM does not exist.
	in := w.Intent(claim)
	p.Delete(claim)
	in.Host, in.TemplateHost = "pve7", "pve7"
	claim.Annotations[v1alpha1.AnnotationLaunchIntent] = in.Encode()
	p.Delete(claim)
}

// A Claim whose clone never began is deleted although the host of its template is down.
func TestDeleteTemplateHostDown(t *testing.T) {
	t.Parallel()
	w := testenv.NewFake(t, testenv.Hosts(3))
	p := w.StartProcess()
	claim := p.Launched("pool-abc", w.NodeClass)
	in := w.Intent(claim)
	p.Delete(claim)
	in.TemplateHost = "pve3"
	if in.Host == "pve3" {
		in.TemplateHost = "pve2"
	}
	claim.Annotations[v1alpha1.AnnotationLaunchIntent] = in.Encode()
	delete(claim.Annotations, v1alpha1.AnnotationLaunchCompleted)
	claim.DeletionTimestamp = new(metav1.Now())
	w.Expect(w.Sim.HostDown(in.TemplateHost, "refused")).To(Succeed())
	w.StartProcess().Delete(claim)
}

// A container with the VMID of a Claim is not its VM.
func TestDeleteVMIDOfContainer(t *testing.T) {
	t.Parallel()
	const container = 20150
	w := testenv.NewFake(t, testenv.Scenario(func(s *pvesim.Scenario) {
		s.Guests = append(s.Guests, pvesim.Guest{VMID: container, Host: "pve1", Type: "lxc", Config: map[string]string{"memory": "512"}})
	}))
	p := w.StartProcess()
	claim := p.Launched("pool-abc", w.NodeClass)
	in := w.Intent(claim)
	p.Delete(claim)
	in.VMID = container
	claim.Annotations[v1alpha1.AnnotationLaunchIntent] = in.Encode()
	claim.Annotations[v1alpha1.AnnotationLaunchCompleted] = time.Now().Add(-time.Hour).Format(time.RFC3339)
	claim.Status.ProviderID = v1alpha1.ProviderID{Region: in.Region, VMID: container}.String()
	_, err := p.Instances.VMs.Get(t.Context(), v1alpha1.ProviderID{Region: in.Region, VMID: container})
	w.Expect(err).To(MatchError(proxmox.ErrNotFound))
	w.Expect(p.Instances.VMs.MayExist(claim)).To(BeFalse())
	p.Delete(claim)
	w.Expect(w.Sim.Guests()).To(ContainElement(HaveField("VMID", container)))
}

// A clone or destroy that was killed leaves a lock that only root can remove. The error
// contains the command.
func TestDeleteStaleLock(t *testing.T) {
	t.Parallel()
	for lock, command := range map[string]string{"clone": "qm unlock", "destroyed": "--skiplock"} {
		t.Run(lock, func(t *testing.T) {
			t.Parallel()
			w := testenv.NewFake(t)
			p := w.StartProcess()
			claim := p.Launched("pool-abc", w.NodeClass)
			vmid := w.Intent(claim).VMID
			w.Expect(w.Sim.SetConfigLock(vmid, lock)).To(Succeed())
			expectBlocked(w, p, claim, v1alpha1.EventVMLocked)
			_, err := p.Instances.Deleter.Delete(t.Context(), claim)
			w.Expect(err).To(MatchError(And(ContainSubstring(command), ContainSubstring(fmt.Sprint(vmid)))))
			w.Expect(w.Sim.SetConfigLock(vmid, "")).To(Succeed())
			p.Delete(claim)
			w.ExpectNoOrphans()
		})
	}
}

func TestDeleteVMUnderHA(t *testing.T) {
	t.Parallel()
	for _, version := range []string{"8.4", "9.2"} {
		for _, state := range []string{"started", "stopped", "disabled", "ignored"} {
			t.Run(version+"_"+state, func(t *testing.T) {
				t.Parallel()
				w := testenv.NewFake(t, testenv.Hosts(2), testenv.Scenario(func(s *pvesim.Scenario) { s.Version = version }))
				p := w.StartProcess()
				claim := p.Launched("pool-abc", w.NodeClass)
				vmid := w.Intent(claim).VMID
				w.Expect(w.Sim.SetHA(vmid, state)).To(Succeed())
				p.Delete(claim)
				w.Expect(w.VMs()).To(BeEmpty())
				_, left := w.Sim.HAState(vmid)
				w.Expect(left).To(BeFalse(), "the HA resource is deleted with the VM")
				w.ExpectNoTokens()
			})
		}
	}
}

// HA migrates the VM after it was listed.
func TestDeleteMigratedByHA(t *testing.T) {
	t.Parallel()
	w := testenv.NewFake(t, testenv.Hosts(2))
	p := w.StartProcess(testenv.NoPolling())
	claim := p.Launched("pool-abc", w.NodeClass)
	in := w.Intent(claim)
	other := testenv.OtherHost(in.Host)
	w.Expect(p.Inventory.RefreshAll(t.Context())).To(Succeed())
	w.Expect(w.Sim.SetHA(in.VMID, "started")).To(Succeed())
	w.Expect(w.Sim.MigrateGuest(in.VMID, other)).To(Succeed())
	p.Delete(claim)
	w.Expect(w.VMs()).To(BeEmpty())
	_, left := w.Sim.HAState(in.VMID)
	w.Expect(left).To(BeFalse())
}
