// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package instance_test

import (
	"fmt"
	"net/url"
	"strconv"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

// deleting returns a claim that is being deleted.
func deleting(w *testenv.Env, claim *karpv1.NodeClaim) *karpv1.NodeClaim {
	w.T.Helper()
	testenv.Modify(w, claim, func(claim *karpv1.NodeClaim) { claim.Finalizers = []string{karpv1.TerminationFinalizer} })
	w.Expect(w.Kube.Delete(w.Context(), claim)).To(Succeed())
	return testenv.Reload(w, claim)
}

// setStorageActive makes a storage of a claim's host active or inactive.
func setStorageActive(w *testenv.Env, in instance.Intent, storage string, active bool) {
	w.T.Helper()
	w.Expect(w.Sim.SetStorageActive(in.Host, storage, active)).To(Succeed())
}

// If Proxmox cannot delete a disk, it destroys the VM with a warning.
func TestDeleteLeakedDisk(t *testing.T) {
	testenv.With().Test(t, func(w *testenv.Env, p *testenv.Process) {
		// If the lock is released later than the last retry, the next Delete deletes the disk.
		claim := deleting(w, p.Launched("pool-abc", w.NodeClass))
		release, err := w.Sim.HoldStorageLock(w.Context(), w.Intent(claim).Host, "local-lvm")
		w.Expect(err).NotTo(HaveOccurred())
		go func() {
			defer release()
			// The lock is released after Proxmox timed out.
			w.Eventually(func() int { return w.Sim.CountRequests("DELETE", "/nodes/{node}/storage/{storage}/content/{volume}") }).
				Should(BeNumerically(">", 0))
		}()
		p.DeleteAll(claim)
	})
}

// A disk on a storage that is inactive is deleted when the storage is back, also by
// another process.
func TestDeleteWithInactiveStorage(t *testing.T) {
	testenv.With(testenv.NoPolling()).Test(t, func(w *testenv.Env, p *testenv.Process) {
		claim := deleting(w, p.Launched("pool-abc", w.NodeClass))
		in := w.Intent(claim)
		setStorageActive(w, in, "local-lvm", false)
		expectBlocked(w, p, claim, v1alpha1.EventDiskNotDeleted)
		p = w.StartProcess(testenv.NoPolling())
		expectBlocked(w, p, claim, v1alpha1.EventDiskNotDeleted)
		setStorageActive(w, in, "local-lvm", true)
		p.DeleteAll(claim)
	})
}

// Proxmox would destroy the VM and leave its EFI disk.
func TestDeleteWithInactiveStorageOfEFIDisk(t *testing.T) {
	testenv.With(testenv.NoPolling()).Test(t, func(w *testenv.Env, p *testenv.Process) {
		claim := p.Launched("pool-abc", w.NodeClass)
		in := w.Intent(claim)
		w.Expect(w.Sim.PowerOffGuest(in.VMID)).To(Succeed())
		setOption(w, claim, "efidisk0", "local:1,efitype=4m")
		for _, active := range []bool{false, true} {
			setStorageActive(w, in, "local", active)
			w.Clock.Advance(time.Minute)
			p.Refresh()
			if !active {
				expectBlocked(w, p, deleting(w, claim), v1alpha1.EventDiskNotDeleted)
				w.Expect(w.VMs()).NotTo(BeEmpty())
			}
		}
		p.DeleteAll(claim)
	})
}

// A launch failed after the clone, and the disk of its VM cannot be deleted at first.
func TestDeleteFailedLaunchWithInactiveStorage(t *testing.T) {
	testenv.With(testenv.NoPolling()).Test(t, func(w *testenv.Env, p *testenv.Process) {
		claim := p.Planned("pool-abc", w.NodeClass)
		in := w.Intent(claim)
		w.AddFault(pvesim.Fault{Method: "POST", Path: "/nodes/*/qemu/*/config", Status: 403, Message: "Permission check failed"})
		w.AddFault(pvesim.Fault{Method: "PUT", Path: "/nodes/*/qemu/*/config", Status: 403, Message: "Permission check failed"})
		w.Expect(p.Launch(claim, w.NodeClass)).To(testenv.HaveReason(v1alpha1.EventPermissionMissing))
		w.Sim.ClearFaults()
		claim = deleting(w, claim)
		p.Refresh() // which shows the VM and an active storage
		setStorageActive(w, in, in.Storage, false)
		w.Eventually(func() error { _, err := p.Instances.Deleter.Delete(w.Context(), claim); return err }).
			Should(MatchError(ContainSubstring("local-lvm:vm-%d-disk-0", in.VMID)))
		w.Expect(w.VMs()).To(BeEmpty())
		setStorageActive(w, in, in.Storage, true)
		p.DeleteAll(claim)
	})
}

// slowClones makes a full clone take twelve minutes, for which a launch waits.
var slowClones = testenv.With(testenv.NoPolling(), testenv.Scenario(func(s *pvesim.Scenario) {
	s.Latency = map[string]string{"lvmthin": "hdd-dir"}
	s.Guests[0].Config["scsi0"] = "local-lvm:base-9000-disk-0,size=87G"
}), testenv.Settings(func(s *instance.Settings) { s.TaskTimeout, s.CloneRefuseAfter = time.Hour, time.Hour }))

// failClone makes the storage of a full clone inactive when the clone has created a disk.
func failClone(w *testenv.Env, p *testenv.Process, claim *karpv1.NodeClaim, disk string) {
	w.T.Helper()
	in := w.Intent(claim)
	launched := make(chan error, 1)
	go func() { launched <- p.Launch(claim, w.NodeClass) }()
	w.Eventually(func() []string { return w.Disks(in.Host, in.VMID) }).Should(ContainElement(HaveSuffix(disk)))
	setStorageActive(w, in, in.Storage, false)
	w.Expect(<-launched).To(testenv.HaveReason(v1alpha1.EventCloneFailed))
}

// A storage becomes inactive during a clone. Proxmox cannot delete the disk of the failed
// clone. Another user's disk with the same VMID is kept.
func TestDeleteFailedCloneWithInactiveStorage(t *testing.T) {
	slowClones.Test(t, func(w *testenv.Env, p *testenv.Process) {
		w.NodeClass.Spec.BootDevice.FullClone = true
		claim := p.Planned("pool-abc", w.NodeClass)
		in := w.Intent(claim)
		form := url.Values{"vmid": {strconv.Itoa(in.VMID)}, "filename": {fmt.Sprintf("vm-%d-disk-0", in.VMID)}, "size": {"4G"}}
		w.PostToProxmox(fmt.Sprintf("/nodes/%s/storage/%s/content", in.Host, in.Storage), form)
		failClone(w, p, claim, "-disk-1")

		claim = deleting(w, claim)
		expectBlocked(w, p, claim, v1alpha1.EventDiskNotDeleted)
		p = w.StartProcess(testenv.NoPolling())
		expectBlocked(w, p, claim, v1alpha1.EventDiskNotDeleted)
		setStorageActive(w, in, in.Storage, true)
		p.Delete(claim)
		w.Expect(w.Disks(in.Host, in.VMID)).To(ConsistOf(HaveSuffix("-disk-0")))
		w.ExpectNoBootDrives()
	})
}

// A user deletes the disk that a failed clone left, and creates a VM with the same VMID. Its
// disk has the same name.
func TestDeleteFailedCloneWithReusedVMID(t *testing.T) {
	slowClones.Test(t, func(w *testenv.Env, p *testenv.Process) {
		w.NodeClass.Spec.BootDevice.FullClone = true
		claim := p.Planned("pool-abc", w.NodeClass)
		in := w.Intent(claim)
		failClone(w, p, claim, "-disk-0")
		setStorageActive(w, in, in.Storage, true)
		for _, left := range w.Disks(in.Host, in.VMID) {
			w.Wait(w.Client.DeleteVolume(w.Context(), in.Host, left))
		}
		w.Wait(w.Client.CloneVM(w.Context(), proxmox.CloneRequest{
			Host: in.TemplateHost, Target: in.Host, TemplateID: in.TemplateID, VMID: in.VMID, Name: "theirs", Full: true, Storage: in.Storage,
		}))
		theirs := w.Disks(in.Host, in.VMID)
		w.Expect(theirs).To(ContainElement(HaveSuffix("-disk-0")))

		p.Delete(deleting(w, claim))
		w.Expect(w.Disks(in.Host, in.VMID)).To(Equal(theirs))
	})
}
