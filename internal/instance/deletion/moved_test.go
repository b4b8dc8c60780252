// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package deletion_test

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

// A VM whose ownership mark was lost does not count as deleted if it was migrated since the last
// poll.
func TestDeleteLostMarkMigrated(t *testing.T) {
	t.Parallel()
	w := testenv.NewFake(t, testenv.Hosts(2))
	p := w.StartProcess(testenv.NoPolling())
	claim := p.Launched("pool-abc", w.NodeClass)
	in := w.Intent(claim)
	w.Expect(p.Inventory.RefreshAll(t.Context())).To(Succeed())
	w.Expect(w.Client.UpdateVM(t.Context(), in.Host, in.VMID, proxmox.ConfigChange{Set: map[string]string{"description": "web server"}})).To(Succeed())
	expectBlocked(w, p, claim, v1alpha1.EventOwnershipMarkLost)
	w.Expect(w.Sim.MigrateGuest(in.VMID, testenv.OtherHost(in.Host))).To(Succeed())
	deleted, err := p.Instances.Deleter.Delete(t.Context(), claim)
	w.Expect(err).NotTo(HaveOccurred())
	w.Expect(deleted).To(BeFalse())
	expectBlocked(w, p, claim, v1alpha1.EventOwnershipMarkLost)
}

// A VM is moved after its deletion was requested, and the controller does not see the end of its
// destroy. The first host is not needed anymore.
func TestDeleteMovedAfterRequest(t *testing.T) {
	t.Parallel()
	w := testenv.NewFake(t, testenv.Hosts(2))
	p := w.StartProcess()
	claim := p.Launched("pool-abc", w.NodeClass)
	in := w.Intent(claim)
	w.Expect(p.Instances.Deleter.CleanupBootDrive(t.Context(), claim)).To(Succeed())
	claim = deleting(w, claim)
	w.Expect(w.Sim.MigrateGuest(in.VMID, testenv.OtherHost(in.Host))).To(Succeed())
	w.Eventually(func() string {
		guest, _ := p.Inventory.View().Guest(in.Region, in.VMID)
		return guest.Host
	}).Should(Equal(testenv.OtherHost(in.Host)))
	p.Delete(claim)
	w.Expect(instance.RecordedHost(w.Stored(claim))).To(Equal(testenv.OtherHost(in.Host)))

	w.Expect(w.Sim.HostDown(in.Host, "refused")).To(Succeed())
	w.StartProcess().Delete(w.Stored(claim))
	w.Expect(w.VMs()).To(BeEmpty())
}

// A shutdown hangs with its host. Its task is not waited for if the VM is on another host.
func TestDeleteMovedDuringShutdown(t *testing.T) {
	t.Parallel()
	w := testenv.NewFake(t, testenv.Hosts(2))
	p := w.StartProcess(testenv.Settings(func(s *instance.Settings) { s.OperationTimeout = 8 * time.Second }))
	claim := p.Launched("pool-abc", w.NodeClass)
	in := w.Intent(claim)
	w.Expect(p.Instances.Deleter.CleanupBootDrive(t.Context(), claim)).To(Succeed())
	claim = w.Stored(claim)
	w.AddFault(pvesim.Fault{Task: "qmstop", Delay: pvesim.Duration(time.Hour), Count: 1})
	deleted, err := p.Instances.Deleter.Delete(t.Context(), claim)
	w.Expect(err).NotTo(HaveOccurred())
	w.Expect(deleted).To(BeFalse())
	w.Expect(w.Sim.MigrateGuest(in.VMID, testenv.OtherHost(in.Host))).To(Succeed())
	w.Expect(w.Sim.HostDown(in.Host, "refused")).To(Succeed())
	p.Delete(claim)
	w.Expect(w.VMs()).To(BeEmpty())
}

// An administrator who converts a VM to a template keeps it.
func TestDeleteConvertedToTemplate(t *testing.T) {
	t.Parallel()
	w := testenv.NewFake(t)
	p := w.StartProcess()
	claim := p.Launched("pool-abc", w.NodeClass)
	in := w.Intent(claim)
	w.Expect(w.Sim.PowerOffGuest(in.VMID)).To(Succeed())
	_, err := w.Client.ConvertToTemplate(t.Context(), in.Host, in.VMID)
	w.Expect(err).NotTo(HaveOccurred())
	w.Eventually(func(g Gomega) {
		cfg, err := w.Client.VMConfig(t.Context(), in.Host, in.VMID)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(cfg.IsTemplate()).To(BeTrue())
	}).Should(Succeed())
	p.Delete(claim)
	cfg, err := w.Client.VMConfig(t.Context(), in.Host, in.VMID)
	w.Expect(err).NotTo(HaveOccurred())
	w.Expect(cfg.IsTemplate()).To(BeTrue())
}

// Proxmox would destroy the VM and leave its EFI disk.
func TestDeleteWithInactiveStorageOfEFIDisk(t *testing.T) {
	t.Parallel()
	w := testenv.NewFake(t)
	p := w.StartProcess()
	claim := p.Launched("pool-abc", w.NodeClass)
	in := w.Intent(claim)
	w.Expect(w.Sim.PowerOffGuest(in.VMID)).To(Succeed())
	w.Expect(w.Client.UpdateVM(t.Context(), in.Host, in.VMID, proxmox.ConfigChange{Set: map[string]string{"efidisk0": "local:1,efitype=4m"}})).To(Succeed())
	setActive := func(active bool) {
		w.Expect(w.Sim.SetStorageActive(in.Host, "local", active)).To(Succeed())
		w.Eventually(func() bool {
			storage, _ := p.Inventory.View().Storage(in.Region, in.Host, "local")
			return storage.Available
		}).Should(Equal(active))
	}
	setActive(false)
	expectBlocked(w, p, deleting(w, claim), v1alpha1.EventDiskNotDeleted)
	w.Expect(w.VMs()).NotTo(BeEmpty())
	setActive(true)
	p.Delete(w.Stored(claim))
	w.ExpectNoOrphans()
}
