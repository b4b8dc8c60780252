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
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance/deletion"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

// listVMs returns the VMs of a new Snapshot.
func listVMs(w *testenv.Env, p *testenv.Process) []instance.VM {
	w.T.Helper()
	p.Refresh()
	vms, err := p.Instances.VMs.List()
	w.Expect(err).NotTo(HaveOccurred())
	return vms
}

func TestDeleteOrphan(t *testing.T) {
	t.Parallel()
	for name, initialized := range map[string]bool{"with_boot_drive": false, "without_boot_drive": true} {
		testenv.With(testenv.NoPolling()).Subtest(t, name, func(w *testenv.Env, p *testenv.Process) {
			claim := p.Launched("pool-abc", w.NodeClass)
			if initialized {
				w.Expect(p.Instances.Deleter.CleanupBootDrive(w.Context(), claim)).To(Succeed())
			}
			w.Expect(w.Kube.Delete(w.Context(), claim)).To(Succeed())
			vms := listVMs(w, p)
			w.Sim.ResetRequests()
			w.Expect(p.Instances.Deleter.DeleteOrphan(w.Context(), deletion.Orphan{VM: vms[0]})).To(BeTrue())
			w.Expect(w.Sim.CountRequests("GET", "/nodes/{node}/qemu/{vmid}/config")).To(Equal(2), "its identity is read again before it is destroyed")
			w.ExpectNoOrphans()
		})
	}
}

func TestDeleteInactiveStorage(t *testing.T) {
	t.Parallel()
	// The VM is destroyed without its disk, and is not listed any more. The disk is deleted
	// when the storage is active.
	testenv.With(testenv.NoPolling()).Subtest(t, "orphan", func(w *testenv.Env, p *testenv.Process) {
		host := w.Intent(p.Launched("pool-abc", w.NodeClass)).Host
		vms := listVMs(w, p)
		w.Expect(w.Sim.SetStorageActive(host, "local-lvm", false)).To(Succeed())
		deleted, err := p.Instances.Deleter.DeleteOrphan(w.Context(), deletion.Orphan{VM: vms[0]})
		w.Expect(err).To(MatchError(ContainSubstring("local-lvm:vm-%d-disk-0", vms[0].VMID)))
		w.Expect(deleted).To(BeFalse())
		w.ExpectNoBootDrives()
		w.ExpectNoTokens()
		w.Expect(p.Instances.Deleter.UnfinishedOrphans()).To(HaveLen(1))

		w.Expect(w.Sim.SetStorageActive(host, "local-lvm", true)).To(Succeed())
		p.Refresh()
		w.Expect(p.Instances.Deleter.DeleteOrphan(w.Context(), deletion.Orphan{VM: vms[0]})).To(BeTrue())
		w.Expect(p.Instances.Deleter.UnfinishedOrphans()).To(BeEmpty())
		w.ExpectNoOrphans()
	})
	// A disk on a storage that is inactive is deleted when the storage is back, also by
	// another process.
	testenv.With(testenv.NoPolling()).Subtest(t, "restarted", func(w *testenv.Env, p *testenv.Process) {
		claim := deleting(w, p.Launched("pool-abc", w.NodeClass))
		in := w.Intent(claim)
		setStorageActive(w, in, "local-lvm", false)
		expectBlocked(w, p, claim, v1alpha1.EventDiskNotDeleted)
		p = w.StartProcess(testenv.NoPolling())
		expectBlocked(w, p, claim, v1alpha1.EventDiskNotDeleted)
		setStorageActive(w, in, "local-lvm", true)
		p.DeleteAll(claim)
	})
	// Proxmox would destroy the VM and leave its EFI disk.
	testenv.With(testenv.NoPolling()).Subtest(t, "EFI_disk", func(w *testenv.Env, p *testenv.Process) {
		claim, in := launchVM(w, p)
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
	// If Proxmox cannot delete a disk, it destroys the VM with a warning.
	testenv.With().Subtest(t, "locked", func(w *testenv.Env, p *testenv.Process) {
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

// The host of a VM failed before its boot drive was deleted, and HA moved the VM to another host,
// which can delete the boot drive if its storage is shared. Otherwise it is deleted when the host is
// back: garbage collection finds that of a deleted VM. The join token is revoked in any case.
func TestDeleteBootDriveOfFailedHost(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		storage string
		delete  bool // otherwise the Node has joined
	}{
		"deleted_shared": {"nas", true}, "deleted_local": {"local", true}, "joined_shared": {"nas", false}, "joined_local": {"local", false},
	} {
		testenv.With(testenv.Hosts(2), testenv.NoPolling(), testenv.Scenario(func(s *pvesim.Scenario) {
			s.Storages = append(s.Storages, pvesim.Storage{ID: "nas", Type: "nfs", Content: []string{"iso"}, Shared: true, Size: pvesim.TiB})
		})).Subtest(t, name, func(w *testenv.Env, p *testenv.Process) {
			w.NodeClass.Spec.MetadataOptions.Storage = test.storage
			claim := p.Launched("pool-abc", w.NodeClass)
			in, deleter := w.Intent(claim), p.Instances.Deleter
			drives := func(host string) []proxmox.Volume { return w.Volumes(host, test.storage, "iso") }
			w.Expect(drives(in.Host)).To(HaveLen(1))
			w.Expect(p.Tokens()).To(HaveLen(1))
			w.Expect(w.Sim.HostDown(in.Host, "refused")).To(Succeed())
			w.Expect(w.Sim.MigrateGuest(in.VMID, testenv.OtherHost(in.Host))).To(Succeed())
			p.Refresh()

			if test.delete {
				p.Delete(claim)
				w.Expect(w.VMs()).To(BeEmpty())
			} else if err := deleter.CleanupBootDrive(w.Context(), claim); test.storage == "local" {
				w.Expect(err).To(MatchError(proxmox.ErrHostUnreachable))
			} else {
				w.Expect(err).NotTo(HaveOccurred())
			}
			w.ExpectNoTokens()
			if test.storage == "nas" {
				w.Expect(drives(testenv.OtherHost(in.Host))).To(BeEmpty())
				return
			}
			w.Expect(w.Sim.HostUp(in.Host)).To(Succeed())
			w.Clock.Advance(5 * time.Minute)
			p.Refresh()
			if test.delete {
				found, err := deleter.ListBootDrives(w.Context())
				w.Expect(err).NotTo(HaveOccurred())
				w.Expect(found).To(ConsistOf(And(HaveField("ClaimUID", string(claim.UID)), HaveField("Host", in.Host))))
				w.Expect(deleter.DeleteBootDrive(w.Context(), found[0])).To(Succeed())
			} else {
				w.Expect(deleter.CleanupBootDrive(w.Context(), claim)).To(Succeed())
			}
			w.Expect(drives(in.Host)).To(BeEmpty())
		})
	}
}

// A host that responds is used, even if the last poll shows it as offline.
func TestCleanupBootDriveOfReturnedHost(t *testing.T) {
	testenv.With(testenv.Hosts(2), testenv.NoPolling()).Test(t, func(w *testenv.Env, p *testenv.Process) {
		claim := p.Launched("pool-abc", w.NodeClass)
		host := w.Intent(claim).Host
		w.Expect(w.Sim.HostDown(host, "refused")).To(Succeed())
		p.Refresh()
		w.Expect(w.Sim.HostUp(host)).To(Succeed())
		w.Expect(p.Instances.Deleter.CleanupBootDrive(w.Context(), claim)).To(Succeed())
		w.ExpectNoBootDrives()
	})
}

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

func TestDeleteFailedClone(t *testing.T) {
	t.Parallel()
	// A storage becomes inactive during a clone. Proxmox cannot delete the disk of the failed
	// clone. Another user's disk with the same VMID is kept.
	slowClones.Subtest(t, "inactive_storage", func(w *testenv.Env, p *testenv.Process) {
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
	// A user deletes the disk that a failed clone left, and creates a VM with the same VMID. Its
	// disk has the same name.
	slowClones.Subtest(t, "reused_VMID", func(w *testenv.Env, p *testenv.Process) {
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
