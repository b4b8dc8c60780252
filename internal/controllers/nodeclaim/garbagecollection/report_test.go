// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package garbagecollection_test

import (
	"fmt"
	"net/url"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/nodeclaim/garbagecollection"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
)

func TestPolicyReport(t *testing.T) {
	t.Parallel()
	w := testenv.New(t, testenv.NoPolling())
	orphan := orphaned(w, w.Launched("orphan", w.Class()))
	c := newCollector(w, garbagecollection.PolicyReport, func(d *garbagecollection.Deps) { d.Tokens = nil }) // as in the controller
	c.run()
	w.Clock.Advance(10 * time.Minute)
	c.run()
	w.Expect(w.VMs()).To(HaveLen(1))
	w.Expect(w.Tokens()).To(HaveLen(1))
	w.Expect(w.Events.Messages("OrphanedVM")).To(ContainElement(ContainSubstring("qm destroy")))
	w.Expect(w.Events.Reasons(orphan)).To(ContainElement("OrphanedVM"))
	w.Expect(c.count("karpenter_proxmox_orphans", "vm")).To(BeEquivalentTo(1))
	w.Expect(c.count("karpenter_proxmox_orphans_deleted_total", "vm")).To(BeZero())

	// An administrator deletes it.
	w.Delete(orphan)
	w.Refresh()
	c.run()
	w.Expect(c.count("karpenter_proxmox_orphans", "vm")).To(BeZero())
}

// The command for an administrator does not delete a volume that the controller would keep.
func TestPolicyReportAttachedVolume(t *testing.T) {
	t.Parallel()
	w := testenv.New(t, testenv.NoPolling())
	claim := w.Launched("orphan", w.Class())
	in := w.Intent(claim)
	name := fmt.Sprintf("vm-%d-pvc-1", in.VMID)
	w.PostToProxmox(fmt.Sprintf("/nodes/%s/storage/local-lvm/content", in.Host), url.Values{"vmid": {fmt.Sprint(in.VMID)}, "filename": {name}, "size": {"1G"}})
	w.Expect(w.Client.UpdateVM(t.Context(), in.Host, in.VMID, proxmox.ConfigChange{Set: map[string]string{"scsi1": "local-lvm:" + name}})).To(Succeed())
	orphaned(w, claim)
	w.Restart(true) // it reads the configuration
	c := newCollector(w, garbagecollection.PolicyReport)
	found, err := c.Find(t.Context())
	w.Expect(err).NotTo(HaveOccurred())
	w.Expect(found).To(ContainElement(And(HaveField("Kind", "vm"), HaveField("Command", And(HavePrefix("# "), ContainSubstring("pvc-1"), Not(ContainSubstring("qm destroy")))))))
	c.run()
	w.Clock.Advance(10 * time.Minute)
	c.run()
	w.Expect(w.Events.Messages("VolumeAttached")).To(HaveLen(1))
	w.Expect(w.Events.Messages("OrphanedVM")).To(BeEmpty())
}
