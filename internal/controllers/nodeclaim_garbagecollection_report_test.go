// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package controllers_test

import (
	"fmt"
	"net/url"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/nodeclaim/garbagecollection"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
)

// reportOnly is like in the controller, which must not list join tokens.
func reportOnly(d *garbagecollection.Deps) {
	d.Rules.Policy, d.Tokens = garbagecollection.PolicyReport, nil
}

func TestPolicyReport(t *testing.T) {
	garbageCollectionSimulated(t, testenv.With(), func(c *collector) {
		orphan := c.orphan(c.Launched("orphan", c.Class()))
		c.start(reportOnly)
		c.runAfterGrace()
		c.Expect(c.VMs()).To(HaveLen(1))
		c.Expect(c.Tokens()).To(HaveLen(1))
		c.Expect(c.Events.Messages("OrphanedVM")).To(ConsistOf(ContainSubstring("qm destroy")))
		c.Expect(c.Events.Reasons(orphan)).To(Equal([]string{"OrphanedVM"}))
		c.Expect(testenv.Metric(c.T, c.registry, orphans)).To(HaveKeyWithValue("vm", 1.0))
		c.Expect(testenv.Metric(c.T, c.registry, deleted)).To(BeEmpty())

		// An administrator deletes it.
		c.Delete(orphan)
		c.run()
		c.Expect(testenv.Metric(c.T, c.registry, orphans)).To(HaveKeyWithValue("vm", 0.0))
	})
}

// The command for an administrator does not delete a volume that the controller would keep.
func TestPolicyReportAttachedVolume(t *testing.T) {
	garbageCollectionSimulated(t, testenv.With(), func(c *collector) {
		claim := c.Launched("orphan", c.Class())
		in := c.Intent(claim)
		name := fmt.Sprintf("vm-%d-pvc-1", in.VMID)
		c.PostToProxmox(fmt.Sprintf("/nodes/%s/storage/local-lvm/content", in.Host),
			url.Values{"vmid": {fmt.Sprint(in.VMID)}, "filename": {name}, "size": {"1G"}})
		c.Expect(c.Client.UpdateVM(c.Context(), in.Host, in.VMID, proxmox.ConfigChange{Set: map[string]string{"scsi1": "local-lvm:" + name}})).To(Succeed())
		c.orphan(claim)
		c.Restart(true) // it reads the configuration
		c.start(reportOnly)
		c.Expect(c.controller.Find(c.Context())).To(ContainElement(And(HaveField("Kind", "vm"),
			HaveField("Command", And(HavePrefix("# "), ContainSubstring("pvc-1"), Not(ContainSubstring("qm destroy")))))))
		c.runAfterGrace()
		c.Expect(c.Events.Messages("VolumeAttached")).To(HaveLen(1))
		c.Expect(c.Events.Messages("OrphanedVM")).To(BeEmpty())
	})
}
