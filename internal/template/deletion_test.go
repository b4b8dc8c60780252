// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package template_test

import (
	"fmt"
	"slices"
	"strconv"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

// A storage that fails does not stop the deletion on the others, and the error names each host
// and storage that failed.
func TestDeleteStoragesFailing(t *testing.T) {
	simulated(t, 2, func(e *env, _ *process) {
		e.gracePeriod = time.Hour
		p := e.process()
		p.reconcileUntilComplete()
		e.useStorages("shared", "local-lvm")
		p.reconcileUntilComplete()
		e.Expect(e.imageFiles()).To(ConsistOf(HavePrefix("pve1/local:import/"), HavePrefix("pve2/local:import/"), HavePrefix("shared/shared:import/")))

		e.AddFault(pvesim.Fault{Task: "imgdel", TaskID: "local", Fail: "unlink: Input/output error"})
		e.deleteObject()
		p.reconcileUntil(func(g Gomega) {
			_, err := p.cleanup()
			g.Expect(err).To(MatchError(MatchRegexp(
				"^pve1: deleting image local:import/noble-[^;]*: unlink: Input/output error; pve2: deleting image local:import/noble-[^;]*: unlink: Input/output error$")))
		})
		e.Expect(e.guests()).To(BeEmpty())
		e.Expect(e.imageFiles()).To(ConsistOf(HavePrefix("pve1/local:import/"), HavePrefix("pve2/local:import/")))
		e.Sim.ClearFaults()
		p.deleteAll()
	}, sharedStorage("nfs", "import"))
}

// A ProxmoxTemplate whose images cannot be listed is not deleted. The error of one storage is reported also
// while the deletion of an image on another one is in progress.
func TestDeleteStorageFailingWhileOtherInProgress(t *testing.T) {
	simulated(t, 1, func(e *env, p *process) {
		p.build()
		e.AddFault(pvesim.Fault{Method: "GET", Path: imagesPath, Status: 403, Message: "Permission check failed (/storage/local, Datastore.Audit)"})
		e.deleteObject()
		p.reconcileUntil(func(g Gomega) {
			_, err := p.cleanup()
			g.Expect(err).To(MatchError(ContainSubstring("privilege Datastore.Audit is missing on /storage/local")))
		})
		e.Sim.ClearFaults()
		e.Expect(e.imageFiles()).To(HaveLen(1))

		e.AddFault(pvesim.Fault{Task: "imgdel", TaskID: "local", Hang: true})
		e.Expect(p.cleanup()).To(ConsistOf("pve1: the deletion of images is still in progress"))
		e.AddFault(pvesim.Fault{Method: "GET", Path: "/nodes/pve1/storage/shared/content", Status: 500, Message: "storage 'shared' is not online"})
		_, err := p.cleanup()
		e.Expect(err).To(MatchError("pve1: listing the images on storage shared: storage 'shared' is not online"))
	}, sharedStorage("nfs", "import"))
}

// A template that cannot be destroyed does not stop the deletion of the others on its host.
func TestDeleteTemplatesFailing(t *testing.T) {
	simulated(t, 1, func(e *env, p *process) {
		failing := p.build().VMID
		e.inUse[failing] = "3 nodes are linked clones of it"
		e.replaceImage()
		p.build()
		e.Expect(p.report().Message).To(Equal("pve1: template 1000 is obsolete and retained: 3 nodes are linked clones of it"))
		delete(e.inUse, failing)
		e.AddFault(pvesim.Fault{Task: "qmdestroy", TaskID: strconv.Itoa(failing), Fail: "lvremove: Input/output error"})
		e.deleteObject()
		p.reconcileUntil(func(g Gomega) {
			g.Expect(p.cleanup()).To(ConsistOf(fmt.Sprintf("pve1: deleting template %d on host pve1: lvremove: Input/output error", failing)))
		})
		e.Expect(e.guests()).To(HaveLen(1))
		e.Expect(e.imageFiles()).To(BeEmpty())
		e.Sim.ClearFaults()
		p.deleteAll()
	})
}

const imagesPath = "/nodes/pve1/storage/local/content"

// A sweep that fails is repeated with a backoff and within the call budget, and its error is
// reported until one succeeds.
func TestSweepFailing(t *testing.T) {
	simulated(t, 1, func(e *env, _ *process) {
		e.gracePeriod = time.Hour
		p := e.process()
		p.build()
		e.Expect(p.reconcile(e.T.Context(), "pve1")).To(Succeed())
		e.Expect(p.PendingHosts(e.desired())).To(BeEmpty())

		e.AddFault(pvesim.Fault{Method: "GET", Path: imagesPath, Status: 500, Message: "storage 'local' is not online"})
		// run returns how many sweeps there were while the controller ran twice a minute.
		run := func(d time.Duration) int {
			before := e.Sim.Faults()[0].Hits
			for end := e.Clock.Now().Add(d); e.Clock.Now().Before(end); e.Clock.Advance(30 * time.Second) {
				p.PendingHosts(e.desired())
				e.Expect(p.reconcile(e.T.Context(), "pve1")).To(Succeed())
			}
			return e.Sim.Faults()[0].Hits - before
		}
		failed := ContainSubstring("listing the images on storage local: storage 'local' is not online")
		e.Expect(run(20 * time.Minute)).To(BeNumerically("~", 5, 3))
		e.Expect(p.report().Message).To(failed)
		e.Expect(run(time.Hour)).To(BeNumerically("~", 12, 4), "every five minutes after some failures")
		e.Expect(p.report()).To(And(HaveField("Message", failed), HaveField("Complete", true)))

		e.Sim.ClearFaults()
		for range 10 {
			e.Clock.Advance(time.Minute)
			e.Expect(p.reconcile(e.T.Context(), "pve1")).To(Succeed())
		}
		e.Expect(p.report().Message).NotTo(failed)
	})
}

// A template on an inactive storage is retained, and is deleted when the storage is active.
func TestDeleteWithInactiveStorage(t *testing.T) {
	simulated(t, 1, func(e *env, p *process) {
		e.useStorages("local-lvm", "local")
		vmid := p.build().VMID
		e.Expect(e.Sim.SetStorageActive("pve1", "local-lvm", false)).To(Succeed())
		e.Clock.Sleep(time.Minute)
		p.refresh()
		e.deleteObject()
		e.Expect(p.reconcile(e.T.Context(), "pve1")).To(Succeed())
		e.Expect(p.cleanup()).To(ConsistOf(And(
			ContainSubstring("template %d is retained", vmid), ContainSubstring("storage local-lvm is not active on host pve1"),
		)))
		e.Expect(e.Sim.CountRequests("DELETE", "/nodes/{node}/qemu/{vmid}")).To(BeZero())

		e.Expect(e.Sim.SetStorageActive("pve1", "local-lvm", true)).To(Succeed())
		p.deleteAll()
	})
}

// If Proxmox cannot delete the disks of a template because their storage is locked, it
// destroys the template with warnings. The disks are deleted afterwards.
func TestDeleteLeakedDisks(t *testing.T) {
	simulated(t, 1, func(e *env, p *process) {
		e.useStorages("local-lvm", "local")
		p.build()
		e.Sim.ResetRequests()
		release, err := e.Sim.HoldStorageLock(e.T.Context(), "pve1", "local-lvm")
		e.Expect(err).NotTo(HaveOccurred())
		e.deleteObject()
		done := p.start(e.T.Context(), "pve1")
		e.Eventually(func() int { return e.Sim.CountRequests("DELETE", "/nodes/{node}/storage/{storage}/content/{volume}") }).
			ShouldNot(BeZero(), "the destroy timed out")
		release()
		e.Expect(<-done).To(Succeed())
		p.deleteAll()
		e.Expect(p.events.Messages(v1alpha1.EventTemplateDiskNotDeleted)).To(BeEmpty())
	})
}

// A storage becomes inactive after the last poll. Events name the disks that remain.
func TestDeleteReportsLeakedDisks(t *testing.T) {
	simulated(t, 1, func(e *env, p *process) {
		e.useStorages("local-lvm", "local")
		vmid := p.build().VMID
		e.Expect(e.Sim.SetStorageActive("pve1", "local-lvm", false)).To(Succeed())
		e.deleteObject()
		e.Expect(p.reconcile(e.T.Context(), "pve1")).To(Succeed())
		e.Expect(p.events.Messages(v1alpha1.EventTemplateDiskNotDeleted)).To(ConsistOf(
			And(HavePrefix("pve1: template %d is destroyed", vmid), HaveSuffix("pvesm free local-lvm:base-%d-disk-0", vmid)),
			And(HavePrefix("pve1: template %d is destroyed", vmid), HaveSuffix("pvesm free local-lvm:vm-%d-cloudinit", vmid)),
		))
	})
}

// A host that was removed from the cluster does not block the deletion of a ProxmoxTemplate,
// although Proxmox lists its template. An offline host does.
func TestDeleteHostRemoved(t *testing.T) {
	simulated(t, 3, func(e *env, p *process) {
		zones := p.reconcileUntilComplete().Zones
		vmid := zones[slices.IndexFunc(zones, func(zone v1alpha1.TemplateZone) bool { return zone.Host == "pve3" })].VMID
		e.Expect(e.Sim.HostDown("pve3", "refused")).To(Succeed())
		e.deleteObject()
		expect := func(remaining OmegaMatcher) {
			e.T.Helper()
			p.reconcileUntil(func(g Gomega) { g.Expect(p.cleanup()).To(remaining) })
		}
		offline := ConsistOf(fmt.Sprintf("pve3: template %d is on an offline host", vmid))
		expect(offline)
		e.Clock.Advance(time.Hour)
		expect(offline)

		e.Expect(e.Sim.RemoveHost("pve3")).To(Succeed())
		removed := ConsistOf(fmt.Sprintf("pve3: template %d is on a host that is not in the Proxmox cluster", vmid))
		expect(removed)
		// Absences with a long pause between them do not add up.
		e.Clock.Advance(time.Hour)
		expect(removed)
		e.Expect(p.events.Messages(v1alpha1.EventTemplateDiskNotDeleted)).To(BeEmpty())

		e.Clock.Advance(9 * time.Minute)
		expect(removed)
		e.Clock.Advance(time.Minute)
		e.Expect(p.cleanup()).To(BeEmpty())
		e.Expect(p.events.Messages(v1alpha1.EventTemplateDiskNotDeleted)).To(ConsistOf(
			And(HavePrefix("pve3: template %d is not deleted, because its host was removed", vmid), HaveSuffix("rm /etc/pve/nodes/pve3/qemu-server/%d.conf", vmid))))
	})
}
