// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package deletion_test

import (
	"testing"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
)

func TestDeleteOrphan(t *testing.T) {
	t.Parallel()
	w := testenv.NewFake(t)
	p := w.StartProcess()
	claim := p.Launched("pool-abc", w.NodeClass)
	w.Expect(w.Kube.Delete(t.Context(), claim)).To(Succeed())
	var vms []instance.VM
	w.Eventually(func() []instance.VM { vms, _ = p.Instances.VMs.List(); return vms }).Should(HaveLen(1))
	w.Eventually(func() (bool, error) { return p.Instances.Deleter.DeleteOrphan(t.Context(), vms[0]) }).Should(BeTrue())
	w.ExpectNoOrphans()
}

// The VM is destroyed without its disk, and is not listed any more. The disk is deleted
// when the storage is active.
func TestDeleteOrphanWithInactiveStorage(t *testing.T) {
	t.Parallel()
	w := testenv.NewFake(t)
	p := w.StartProcess(testenv.NoPolling())
	claim := p.Launched("pool-abc", w.NodeClass)
	host := w.Intent(claim).Host
	w.Expect(p.Inventory.RefreshAll(t.Context())).To(Succeed())
	vms, err := p.Instances.VMs.List()
	w.Expect(err).NotTo(HaveOccurred())
	w.Expect(w.Sim.SetStorageActive(host, "local-lvm", false)).To(Succeed())
	deleted, err := p.Instances.Deleter.DeleteOrphan(t.Context(), vms[0])
	w.Expect(err).To(MatchError(ContainSubstring("local-lvm:vm-%d-disk-0", vms[0].VMID)))
	w.Expect(deleted).To(BeFalse())
	w.ExpectNoBootDrives()
	w.ExpectNoTokens()
	w.Expect(p.Instances.Deleter.UnfinishedOrphans()).To(HaveLen(1))

	w.Expect(w.Sim.SetStorageActive(host, "local-lvm", true)).To(Succeed())
	w.Expect(p.Inventory.RefreshAll(t.Context())).To(Succeed())
	w.Expect(p.Instances.Deleter.DeleteOrphan(t.Context(), vms[0])).To(BeTrue())
	w.Expect(p.Instances.Deleter.UnfinishedOrphans()).To(BeEmpty())
	w.ExpectNoOrphans()
}

func TestDeleteOrphanWithoutBootDrive(t *testing.T) {
	t.Parallel()
	w := testenv.NewFake(t)
	p := w.StartProcess(testenv.NoPolling())
	claim := p.Launched("pool-abc", w.NodeClass)
	w.Expect(p.Instances.Deleter.CleanupBootDrive(t.Context(), claim)).To(Succeed())
	w.Expect(p.Inventory.RefreshAll(t.Context())).To(Succeed())
	vms, err := p.Instances.VMs.List()
	w.Expect(err).NotTo(HaveOccurred())
	w.Eventually(func() (bool, error) {
		w.Sim.ResetRequests()
		return p.Instances.Deleter.DeleteOrphan(t.Context(), vms[0])
	}).Should(BeTrue())
	w.Expect(w.Sim.CountRequests("GET", "/nodes/{node}/qemu/{vmid}/config")).To(Equal(1))
	w.ExpectNoOrphans()
}

func TestListBootDrives(t *testing.T) {
	t.Parallel()
	w := testenv.NewFake(t, testenv.Hosts(2))
	p := w.StartProcess()
	claim := p.Launched("pool-abc", w.NodeClass)
	drives, err := p.Instances.Deleter.ListBootDrives(t.Context())
	w.Expect(err).NotTo(HaveOccurred())
	w.Expect(drives).To(ConsistOf(HaveField("ClaimUID", string(claim.UID))))
	others, err := w.StartProcess(testenv.KubeCluster("ffffffff-0000-4000-8000-000000000002")).Instances.Deleter.ListBootDrives(t.Context())
	w.Expect(err).NotTo(HaveOccurred())
	w.Expect(others).To(BeEmpty())
	p.Delete(claim)
}
