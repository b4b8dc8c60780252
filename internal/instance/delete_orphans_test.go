// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package instance_test

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"

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

// A clone or destroy that was killed leaves a lock that only root can remove.
func TestDeleteOrphanLocked(t *testing.T) {
	t.Parallel()
	for lock, command := range map[string]string{"clone": "qm unlock", "destroyed": "--skiplock 1"} {
		testenv.With(testenv.NoPolling()).Subtest(t, lock, func(w *testenv.Env, p *testenv.Process) {
			claim := p.Launched("pool-abc", w.NodeClass)
			orphan := listVMs(w, p)[0]
			w.Expect(w.Sim.SetConfigLock(orphan.VMID, lock)).To(Succeed())
			deleted, err := p.Instances.Deleter.DeleteOrphan(w.Context(), deletion.Orphan{VM: orphan})
			w.Expect(err).To(And(testenv.HaveReason(v1alpha1.EventVMLocked), MatchError(ContainSubstring(command))))
			w.Expect(deleted).To(BeFalse())
			w.Expect(w.Running(claim)).To(BeTrue(), "it was not stopped")
			w.Expect(w.Sim.SetConfigLock(orphan.VMID, "")).To(Succeed())
			w.Expect(p.Instances.Deleter.DeleteOrphan(w.Context(), deletion.Orphan{VM: orphan})).To(BeTrue())
			w.ExpectNoOrphans()
		})
	}
}

// The VM is destroyed without its disk, and is not listed any more. The disk is deleted
// when the storage is active.
func TestDeleteOrphanWithInactiveStorage(t *testing.T) {
	testenv.With(testenv.NoPolling()).Test(t, func(w *testenv.Env, p *testenv.Process) {
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
}

func TestListBootDrives(t *testing.T) {
	testenv.With(testenv.Hosts(2)).Test(t, func(w *testenv.Env, p *testenv.Process) {
		claim := p.Launched("pool-abc", w.NodeClass)
		w.Expect(p.Instances.Deleter.ListBootDrives(w.Context())).To(ConsistOf(HaveField("ClaimUID", string(claim.UID))))
		other := w.StartProcess(testenv.KubeCluster("ffffffff-0000-4000-8000-000000000002"))
		w.Expect(other.Instances.Deleter.ListBootDrives(w.Context())).To(BeEmpty())
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
			drives := func(host string) []proxmox.Volume {
				volumes, err := w.Client.Volumes(w.Context(), host, test.storage, "iso")
				w.Expect(err).NotTo(HaveOccurred())
				return volumes
			}
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
