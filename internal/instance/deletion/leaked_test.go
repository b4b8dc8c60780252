// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package deletion_test

import (
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"sigs.k8s.io/controller-runtime/pkg/client"
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
	claim = w.Stored(claim)
	claim.Finalizers = []string{karpv1.TerminationFinalizer}
	w.Expect(w.Kube.Update(w.T.Context(), claim)).To(Succeed())
	w.Expect(w.Kube.Delete(w.T.Context(), claim)).To(Succeed())
	w.Expect(w.Kube.Get(w.T.Context(), client.ObjectKeyFromObject(claim), claim)).To(Succeed())
	return claim
}

// allocate creates the disk vm-VMID-disk-0 by hand.
func allocate(w *testenv.Env, host, storage string, vmid int) {
	w.T.Helper()
	form := url.Values{"vmid": {strconv.Itoa(vmid)}, "filename": {fmt.Sprintf("vm-%d-disk-0", vmid)}, "size": {"4G"}}
	w.PostToProxmox(fmt.Sprintf("/nodes/%s/storage/%s/content", host, storage), form)
}

// slowCopy makes a full clone take twelve minutes, which are 15 seconds of real time.
func slowCopy(s *pvesim.Scenario) {
	s.Latency = map[string]string{"lvmthin": "hdd-dir"}
	s.Guests[0].Config["scsi0"] = "local-lvm:base-9000-disk-0,size=87G"
}

// A launch failed after the clone, and the disk of its VM cannot be deleted at first.
func TestDeleteFailedLaunchWithInactiveStorage(t *testing.T) {
	t.Parallel()
	w := testenv.NewFake(t)
	p := w.StartProcess(testenv.NoPolling())
	claim := p.Planned("pool-abc", w.NodeClass)
	in := w.Intent(claim)
	w.AddFault(pvesim.Fault{Method: "POST", Path: "/nodes/*/qemu/*/config", Status: 403, Message: "Permission check failed"})
	w.AddFault(pvesim.Fault{Method: "PUT", Path: "/nodes/*/qemu/*/config", Status: 403, Message: "Permission check failed"})
	var final *instance.LaunchError
	w.Expect(errors.As(p.Launch(claim, w.NodeClass), &final)).To(BeTrue())
	w.Sim.ClearFaults()
	claim = deleting(w, claim)
	// The last poll saw the VM and an active storage.
	w.Eventually(func() bool {
		p.Refresh()
		_, listed := p.Inventory.View().Guest(in.Region, in.VMID)
		return listed
	}).Should(BeTrue())
	w.Expect(w.Sim.SetStorageActive(in.Host, in.Storage, false)).To(Succeed())
	w.Eventually(func() error { _, err := p.Instances.Deleter.Delete(t.Context(), claim); return err }).
		Should(MatchError(ContainSubstring("local-lvm:vm-%d-disk-0", in.VMID)))
	w.Expect(w.VMs()).To(BeEmpty())

	w.Expect(w.Sim.SetStorageActive(in.Host, in.Storage, true)).To(Succeed())
	p.Delete(claim)
	w.Expect(w.Disks(in.Host, in.VMID)).To(BeEmpty())
}

// A storage becomes inactive during a clone. Proxmox cannot delete the disk of the failed
// clone. Another user's disk with the same VMID is kept.
func TestDeleteFailedCloneWithInactiveStorage(t *testing.T) {
	t.Parallel()
	w := testenv.NewFake(t, testenv.Scenario(slowCopy))
	w.NodeClass.Spec.BootDevice.FullClone = true
	p := w.StartProcess(testenv.NoPolling(), testenv.Settings(func(s *instance.Settings) { s.TaskTimeout = time.Minute }))
	claim := p.Planned("pool-abc", w.NodeClass)
	in := w.Intent(claim)
	foreign := fmt.Sprintf("%s:vm-%d-disk-0", in.Storage, in.VMID)
	allocate(w, in.Host, in.Storage, in.VMID)
	launched := make(chan error, 1)
	go func() { launched <- p.Launch(claim, w.NodeClass) }()
	w.Eventually(func() []string { return w.Disks(in.Host, in.VMID) }).Should(ContainElement(HaveSuffix("-disk-1")))
	w.Expect(w.Sim.SetStorageActive(in.Host, in.Storage, false)).To(Succeed())
	var final *instance.LaunchError
	w.Expect(errors.As(<-launched, &final)).To(BeTrue())
	w.Expect(final.Reason).To(Equal(v1alpha1.EventCloneFailed))

	claim = deleting(w, claim)
	expectBlocked(w, p, claim, v1alpha1.EventDiskNotDeleted)
	p = w.StartProcess(testenv.NoPolling())
	expectBlocked(w, p, claim, v1alpha1.EventDiskNotDeleted)
	w.Expect(w.Sim.SetStorageActive(in.Host, in.Storage, true)).To(Succeed())
	p.Delete(claim)
	w.Expect(w.Disks(in.Host, in.VMID)).To(ConsistOf(foreign))
	w.ExpectNoBootDrives()
}

// A user deletes the disk that a failed clone left, and creates a VM with the same VMID. Its
// disk has the same name.
func TestDeleteFailedCloneWithReusedVMID(t *testing.T) {
	t.Parallel()
	w := testenv.NewFake(t, testenv.Scenario(slowCopy))
	w.NodeClass.Spec.BootDevice.FullClone = true
	p := w.StartProcess(testenv.NoPolling(), testenv.Settings(func(s *instance.Settings) { s.TaskTimeout = time.Minute }))
	claim := p.Planned("pool-abc", w.NodeClass)
	in := w.Intent(claim)
	launched := make(chan error, 1)
	go func() { launched <- p.Launch(claim, w.NodeClass) }()
	w.Eventually(func() []string { return w.Disks(in.Host, in.VMID) }).Should(ContainElement(HaveSuffix("-disk-0")))
	w.Expect(w.Sim.SetStorageActive(in.Host, in.Storage, false)).To(Succeed())
	w.Expect(<-launched).To(HaveOccurred())
	w.Expect(w.Sim.SetStorageActive(in.Host, in.Storage, true)).To(Succeed())
	disk := fmt.Sprintf("%s:vm-%d-disk-0", in.Storage, in.VMID)
	user := w.Client
	wait := func(task proxmox.UPID, err error) {
		w.T.Helper()
		w.Expect(err).NotTo(HaveOccurred())
		status, err := proxmox.WaitTask(t.Context(), user, task, proxmox.WaitOptions{})
		w.Expect(err).NotTo(HaveOccurred())
		w.Expect(status.Succeeded()).To(BeTrue(), "%v", status)
	}
	for _, left := range w.Disks(in.Host, in.VMID) {
		wait(user.DeleteVolume(t.Context(), in.Host, left))
	}
	wait(user.CloneVM(t.Context(), proxmox.CloneRequest{Host: in.TemplateHost, Target: in.Host, TemplateID: in.TemplateID, VMID: in.VMID, Name: "theirs", Full: true, Storage: in.Storage}))
	theirs := w.Disks(in.Host, in.VMID)
	w.Expect(theirs).To(ContainElement(disk))

	p.Delete(deleting(w, claim))
	w.Expect(w.Disks(in.Host, in.VMID)).To(Equal(theirs))
}
