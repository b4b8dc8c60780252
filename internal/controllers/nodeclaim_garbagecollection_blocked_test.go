// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package controllers_test

import (
	"slices"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
)

// An orphan that must not be deleted is reported with the reason, and deleted when it may be.
func TestBlockedOrphan(t *testing.T) {
	garbageCollectionSimulated(t, testenv.With(), func(c *collector) {
		orphan := c.orphan(c.Launched("orphan", c.Class()))
		in := c.Intent(orphan)
		protect := func(value string) {
			c.Expect(c.Client.UpdateVM(c.Context(), in.Host, in.VMID, proxmox.ConfigChange{Set: map[string]string{"protection": value}})).To(Succeed())
		}
		run := func() {
			for range 3 {
				c.run()
				c.Clock.Advance(grace)
			}
		}
		protect("1")
		run()
		c.Expect(c.Events.Reasons(orphan)).To(HaveEach(v1alpha1.EventVMProtected))
		c.Expect(c.Events.Emitted(v1alpha1.EventVMProtected)).To(ConsistOf(And(ContainSubstring("its NodeClaim does not exist"), ContainSubstring("--protection 0"))))
		protect("0")
		c.Expect(c.Sim.SetConfigLock(in.VMID, "backup")).To(Succeed())
		run()
		c.Expect(c.Events.Emitted(v1alpha1.EventVMLocked)).To(ConsistOf(ContainSubstring("locked (backup)")))
		c.Expect(c.VMs()).To(HaveLen(1))

		c.Expect(c.Sim.SetConfigLock(in.VMID, "")).To(Succeed())
		c.runUntilEmpty(c.vms)
		c.Expect(slices.Compact(c.Events.Reasons(orphan))).To(Equal([]string{v1alpha1.EventVMProtected, v1alpha1.EventVMLocked, "OrphanedVMDeleted"}))
	})
}

// A storage becomes inactive before the VM of an orphan is destroyed. Proxmox then leaves
// the disk and does not list the VM any more.
func TestOrphanWithRemainingDisk(t *testing.T) {
	garbageCollectionSimulated(t, testenv.With(), func(c *collector) {
		orphan := c.orphan(c.Launched("orphan", c.Class()))
		in := c.Intent(orphan)
		c.run()
		c.Clock.Advance(grace + time.Second)
		c.Refresh()
		c.Expect(c.Sim.SetStorageActive(in.Host, in.Storage, false)).To(Succeed())
		c.Expect(c.controller.Reconcile(c.Context())).Error().NotTo(HaveOccurred())
		c.Expect(c.VMs()).To(BeEmpty())
		c.Expect(c.Events.Messages(v1alpha1.EventDiskNotDeleted)).To(ConsistOf(ContainSubstring("local-lvm:vm-%d-disk-0", in.VMID)))

		c.Expect(c.Sim.SetStorageActive(in.Host, in.Storage, true)).To(Succeed())
		c.run()
		c.Expect(c.Disks(in.Host, in.VMID)).To(BeEmpty())
		c.Expect(c.Events.Reasons(orphan)).To(Equal([]string{v1alpha1.EventDiskNotDeleted, "OrphanedVMDeleted"}))
	})
}
