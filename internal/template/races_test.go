// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package template_test

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/types"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/template"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

// Two Kubernetes clusters make templates of the same name on the same Proxmox at the
// same time: each gets its own, and neither touches the other's.
func TestTwoKubernetesClustersDoNotMeet(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	mine, theirs := w.process(), w.process()
	theirs.KubeCluster = "another"
	done := make(chan error, 4)
	for _, p := range []*process{mine, theirs} {
		for _, host := range []string{"pve1", "pve2"} {
			go func() { done <- p.tend(t.Context(), host) }()
		}
	}
	for range 4 {
		w.Expect(<-done).To(Succeed())
	}
	seen := map[int]bool{}
	for _, p := range []*process{mine, theirs} {
		for _, zone := range p.tended().Zones {
			w.Expect(seen[zone.VMID]).To(BeFalse(), "VMID %d is used twice", zone.VMID)
			seen[zone.VMID] = true
		}
	}
	w.Expect(seen).To(HaveLen(4))
	mine.removed()
	w.object.DeletionTimestamp = nil
	w.Expect(theirs.tended().Zones).To(HaveLen(2), "they keep theirs")
	guests, images, _ := w.made()
	w.Expect(guests).To(HaveLen(2))
	w.Expect(images).To(HaveLen(2))
}

func TestAHostThatJoinsOrLeavesIsNoticed(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2, func(s *pvesim.Scenario) { s.Hosts[1].Offline = true })
	p := w.process()
	w.Eventually(func(g Gomega) {
		g.Expect(p.tend(t.Context(), "pve1")).To(Succeed())
		g.Expect(p.Inventory.RefreshAll(t.Context())).To(Succeed())
		g.Expect(p.report().Zones).To(ConsistOf(HaveField("Host", "pve1")))
	}).WithTimeout(20 * time.Second).Should(Succeed())
	w.Expect(p.report().Message).To(Equal("pve2: the host is offline; its template is made when it is back"))
	w.Expect(w.sim.HostUp("pve2")).To(Succeed())
	w.Eventually(func(g Gomega) {
		g.Expect(p.Inventory.RefreshAll(t.Context())).To(Succeed())
		g.Expect(p.PendingHosts(w.wish())).To(ContainElement(HaveField("Host", "pve2")))
	}).WithTimeout(20 * time.Second).Should(Succeed())
	w.Expect(p.tended().Zones).To(HaveLen(2))

	// A host that left its cluster is in no reading any more.
	view := p.Inventory.View()
	snapshot := *view.Snapshots[region]
	snapshot.Hosts = map[string]inventory.Host{"pve1": snapshot.Hosts["pve1"]}
	view = inventory.NewView(map[string]*inventory.Snapshot{region: &snapshot}, nil, nil, inventory.Settings{})
	found := template.ListOwned(view, kubeCluster, uid)
	zones := template.SelectPerHost(view, w.wish(), found, []string{"region-1/pve1/1000", "region-1/pve2/1001"}, true)
	w.Expect(zones).To(ConsistOf(HaveField("Host", "pve1")))
	w.Expect(template.Locations(view, w.wish(), found)).To(ConsistOf(HaveField("Host", "pve1")))
}

// A create that a power cut ended leaves a locked VM without a name. It is nobody's
// that we know of: it is reported, and another VMID is taken.
func TestAStaleLockIsReportedAndLeftAlone(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1, func(s *pvesim.Scenario) {
		s.Guests = append(s.Guests, pvesim.Guest{VMID: 1000, Host: "pve1", Config: map[string]string{"lock": "create"}})
	})
	p := w.process()
	w.Expect(p.tend(t.Context(), "pve1")).To(Succeed())
	zones := p.tended().Zones
	w.Expect(zones).To(ConsistOf(HaveField("VMID", 1001)))
	w.Expect(w.config("pve1", 1000).Lock()).To(Equal("create"))
	w.Expect(p.report().Message).To(Equal("pve1: VM 1000 is locked (create) by a task that no longer runs, as a crash leaves it; after making sure that nobody needs it, run there as root: qm unlock 1000 && qm destroy 1000"))
}

// Whoever changes the image while it is downloaded does not wait for the old one.
func TestADownloadThatNobodyWantsAnyMoreIsBrokenOff(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1, func(s *pvesim.Scenario) { s.Hosts[0].DownloadRate = 16 }) // an hour
	p := w.process()
	done := make(chan error, 1)
	go func() { done <- p.tend(t.Context(), "pve1") }()
	w.Eventually(func() string { return p.report().Message }).WithTimeout(10 * time.Second).Should(ContainSubstring("downloading"))
	w.edit(func(s *v1alpha1.ProxmoxTemplateSpec) { s.SourceImage.URL = w.images.URL + "/other.img" })
	p.CancelSuperseded(w.wish())
	w.Eventually(done).WithTimeout(10 * time.Second).Should(Receive(BeNil()))
	w.Eventually(func() []proxmox.TaskStatus {
		tasks, err := w.client().RunningTasks(t.Context(), "pve1", "download")
		w.Expect(err).NotTo(HaveOccurred())
		return tasks
	}).WithTimeout(10 * time.Second).Should(BeEmpty())
}

// Two templates on one host are made at the same time, not one after the other.
func TestTemplatesOfOneHostDoNotWaitForEachOther(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	_, err := w.sim.AddFault(pvesim.Fault{Task: "qmcreate", Delay: pvesim.Duration(50 * time.Second)})
	w.Expect(err).NotTo(HaveOccurred())
	p := w.process()
	second := w.object.DeepCopy()
	second.Name, second.UID = "second", types.UID("other")
	wishes := []template.Desired{w.wish(), template.NewDesired(second, nil)}
	for _, wish := range wishes {
		go func() {
			_, _ = p.ReconcileHost(t.Context(), wish, region, "pve1", template.Usage{Desired: wishes, InUse: func(string, int) string { return "" }})
		}()
	}
	w.Eventually(func() int {
		tasks, err := w.client().RunningTasks(t.Context(), "pve1", "qmcreate")
		w.Expect(err).NotTo(HaveOccurred())
		return len(tasks)
	}).WithTimeout(10 * time.Second).WithPolling(10 * time.Millisecond).Should(Equal(2))
}
