// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package template_test

import (
	"slices"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
)

// newThinEnv returns an env whose templates are on local-lvm.
func newThinEnv(t *testing.T) *env {
	t.Helper()
	e := newEnv(t, 1)
	e.updateSpec(func(s *v1alpha1.ProxmoxTemplateSpec) { slices.Reverse(s.StorageIDs) })
	return e
}

// A template on an inactive storage is retained, and is deleted when the storage is active.
func TestDeleteWithInactiveStorage(t *testing.T) {
	t.Parallel()
	e := newThinEnv(t)
	p := e.process()
	vmid := p.reconcileUntilComplete().Zones[0].VMID
	e.Expect(e.sim.SetStorageActive("pve1", "local-lvm", false)).To(Succeed())
	e.Eventually(func(g Gomega) {
		g.Expect(p.Inventory().RefreshAll(t.Context())).To(Succeed())
		storage, known := p.Inventory().View().Storage(region, "pve1", "local-lvm")
		g.Expect(known).To(BeTrue())
		g.Expect(storage.Available).To(BeFalse())
	}).Should(Succeed())
	e.object = e.object.DeepCopy()
	e.object.DeletionTimestamp = new(metav1.Now())
	e.Expect(p.reconcile(t.Context(), "pve1")).To(Succeed())
	e.Expect(p.Cleanup(t.Context(), e.desired(), e.usage)).To(ConsistOf(And(
		ContainSubstring("template %d is retained", vmid), ContainSubstring("storage local-lvm is not active on host pve1"),
	)))
	e.Expect(e.sim.CountRequests("DELETE", "/nodes/{node}/qemu/{vmid}")).To(BeZero())

	e.Expect(e.sim.SetStorageActive("pve1", "local-lvm", true)).To(Succeed())
	p.deleteUntilGone()
	e.Expect(e.listObjects()).To(Equal(e.initial))
}

// If Proxmox cannot delete the disks of a template because their storage is locked, it
// destroys the template with warnings. The disks are deleted afterwards.
func TestDeleteLeakedDisks(t *testing.T) {
	t.Parallel()
	e := newThinEnv(t)
	p := e.process()
	p.reconcileUntilComplete()
	e.sim.ResetRequests()
	release, err := e.sim.HoldStorageLock(t.Context(), "pve1", "local-lvm")
	e.Expect(err).NotTo(HaveOccurred())
	go func() {
		defer release()
		// The lock is released after the destroy timed out.
		for t.Context().Err() == nil && e.sim.CountRequests("DELETE", "/nodes/{node}/storage/{storage}/content/{volume}") == 0 {
			time.Sleep(10 * time.Millisecond)
		}
	}()
	p.deleteUntilGone()
	e.Expect(e.listObjects()).To(Equal(e.initial))
	e.Expect(p.events.Messages(v1alpha1.EventTemplateDiskNotDeleted)).To(BeEmpty())
}

// A storage becomes inactive after the last poll. Events name the disks that remain.
func TestDeleteReportsLeakedDisks(t *testing.T) {
	t.Parallel()
	e := newThinEnv(t)
	p := e.process()
	vmid := p.reconcileUntilComplete().Zones[0].VMID
	e.Expect(e.sim.SetStorageActive("pve1", "local-lvm", false)).To(Succeed())
	e.object = e.object.DeepCopy()
	e.object.DeletionTimestamp = new(metav1.Now())
	e.Expect(p.reconcile(t.Context(), "pve1")).To(Succeed())
	e.Expect(p.events.Messages(v1alpha1.EventTemplateDiskNotDeleted)).To(ConsistOf(
		And(HavePrefix("pve1: template %d is destroyed", vmid), HaveSuffix("pvesm free local-lvm:base-%d-disk-0", vmid)),
		And(HavePrefix("pve1: template %d is destroyed", vmid), HaveSuffix("pvesm free local-lvm:vm-%d-cloudinit", vmid)),
	))
}
