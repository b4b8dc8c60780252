// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package template_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/template"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

// Two Kubernetes clusters concurrently build templates with the same name on the same
// Proxmox cluster: each has its own, and neither changes those of the other.
func TestBuildByTwoKubernetesClusters(t *testing.T) {
	t.Parallel()
	e := newEnv(t, 2)
	mine, theirs := e.process(), e.processOf("another", e.client())
	done := make(chan error, 4)
	for _, p := range []*process{mine, theirs} {
		for _, host := range []string{"pve1", "pve2"} {
			go func() { done <- p.reconcile(t.Context(), host) }()
		}
	}
	for range 4 {
		e.Expect(<-done).To(Succeed())
	}
	seen := map[int]bool{}
	for _, p := range []*process{mine, theirs} {
		for _, zone := range p.reconcileUntilComplete().Zones {
			e.Expect(seen[zone.VMID]).To(BeFalse(), "VMID %d is used twice", zone.VMID)
			seen[zone.VMID] = true
		}
	}
	e.Expect(seen).To(HaveLen(4))
	mine.deleteUntilGone()
	e.object.DeletionTimestamp = nil
	e.Expect(theirs.reconcileUntilComplete().Zones).To(HaveLen(2), "templates of the other cluster are kept")
	guests, images, _ := e.createdObjects()
	e.Expect(guests).To(HaveLen(2))
	e.Expect(images).To(HaveLen(2))
}

func TestHostJoinsAndLeaves(t *testing.T) {
	t.Parallel()
	e := newEnv(t, 2, func(s *pvesim.Scenario) { s.Hosts[1].Offline = true })
	p := e.process()
	e.Eventually(func(g Gomega) {
		g.Expect(p.reconcile(t.Context(), "pve1")).To(Succeed())
		g.Expect(p.Inventory().RefreshAll(t.Context())).To(Succeed())
		g.Expect(p.report().Zones).To(ConsistOf(HaveField("Host", "pve1")))
	}).Should(Succeed())
	e.Expect(p.report().Message).To(Equal("pve2: the host is offline; its template is built when the host is online again"))
	e.Expect(e.sim.HostUp("pve2")).To(Succeed())
	e.Eventually(func(g Gomega) {
		g.Expect(p.Inventory().RefreshAll(t.Context())).To(Succeed())
		g.Expect(p.PendingHosts(e.desired())).To(ContainElement(HaveField("Host", "pve2")))
	}).Should(Succeed())
	e.Expect(p.reconcileUntilComplete().Zones).To(HaveLen(2))

	// A host that left its cluster is not in the snapshot.
	view := p.Inventory().View()
	snapshot := *view.Snapshots[region]
	snapshot.Hosts = map[string]inventory.Host{"pve1": snapshot.Hosts["pve1"]}
	view = inventory.NewView(map[string]*inventory.Snapshot{region: &snapshot}, nil, nil, inventory.Settings{})
	found := template.ListOwned(view, kubeCluster, uid)
	zones := template.SelectPerHost(view, e.desired(), found, []string{"region-1/pve1/1000", "region-1/pve2/1001"}, true)
	e.Expect(zones).To(ConsistOf(HaveField("Host", "pve1")))
	e.Expect(template.Locations(view, e.desired(), found)).To(ConsistOf(HaveField("Host", "pve1")))
}

// A create that was interrupted by a power failure leaves a locked VM without a name or
// an ownership mark. It is reported and another VMID is used.
func TestBuildWithStaleLock(t *testing.T) {
	t.Parallel()
	e := newEnv(t, 1, func(s *pvesim.Scenario) {
		s.Guests = append(s.Guests, pvesim.Guest{VMID: 1000, Host: "pve1", Config: map[string]string{"lock": "create"}})
	})
	p := e.process()
	e.Expect(p.reconcile(t.Context(), "pve1")).To(Succeed())
	zones := p.reconcileUntilComplete().Zones
	e.Expect(zones).To(ConsistOf(HaveField("VMID", 1001)))
	e.Expect(e.config("pve1", 1000).Lock()).To(Equal("create"))
	e.Expect(p.report().Message).To(Equal("pve1: VM 1000 is locked (create) by a task that no longer runs; if the VM is not needed, run on the host as root: qm unlock 1000 && qm destroy 1000"))
}

// A download is canceled when the image changes meanwhile.
func TestCancelSupersededDownload(t *testing.T) {
	t.Parallel()
	e := newEnv(t, 1, func(s *pvesim.Scenario) { s.Hosts[0].DownloadRate = 16 }) // an hour
	p := e.process()
	done := make(chan error, 1)
	go func() { done <- p.reconcile(t.Context(), "pve1") }()
	e.Eventually(func() string { return p.report().Message }).Should(ContainSubstring("downloading"))
	e.updateSpec(func(s *v1alpha1.ProxmoxTemplateSpec) { s.SourceImage.URL = e.images.URL + "/other.img" })
	p.CancelSuperseded(e.desired())
	e.Eventually(done).Should(Receive(BeNil()))
	e.Eventually(func() []proxmox.TaskStatus {
		tasks, err := e.client().RunningTasks(t.Context(), "pve1", "download")
		e.Expect(err).NotTo(HaveOccurred())
		return tasks
	}).Should(BeEmpty())
}

// The controller was restarted, and the first poll could not read the configuration of the
// template.
func TestUnreadConfig(t *testing.T) {
	t.Parallel()
	for name, deleted := range map[string]bool{"kept": false, "deleted": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := newEnv(t, 1)
			zone := e.process().reconcileUntilComplete().Zones[0]
			testenv.AddFault(t, e.sim, pvesim.Fault{Method: "GET", Path: fmt.Sprintf("/nodes/*/qemu/%d/config", zone.VMID), Status: 596, Message: "Connection timed out", Count: 1})
			next := e.process()
			e.Expect(e.sim.Faults()[0].Hits).To(Equal(1))
			if !deleted {
				e.Expect(next.reconcile(t.Context(), "pve1")).To(Succeed())
				guests, _, _ := e.createdObjects()
				e.Expect(guests).To(HaveLen(1), "no second template")
				return
			}
			now := metav1.Now()
			e.object.DeletionTimestamp = &now
			e.Expect(next.Cleanup(t.Context(), e.desired(), e.usage)).NotTo(BeEmpty(), "the template remains")
			e.Expect(next.PendingHosts(e.desired())).NotTo(BeEmpty())
			next.deleteUntilGone()
			e.Expect(e.listObjects()).To(Equal(e.initial))
		})
	}
}

// A template of an older generation that is in use is retained also if the poll could not read
// its configuration.
func TestUnreadConfigInUse(t *testing.T) {
	t.Parallel()
	e := newEnv(t, 1)
	zone := e.process().reconcileUntilComplete().Zones[0]
	e.inUse[zone.VMID] = "a NodeClaim uses it"
	e.updateSpec(func(s *v1alpha1.ProxmoxTemplateSpec) { s.SourceImage.URL = e.images.URL + "/other.img" })
	testenv.AddFault(t, e.sim, pvesim.Fault{Method: "GET", Path: fmt.Sprintf("/nodes/*/qemu/%d/config", zone.VMID), Status: 596, Message: "Connection timed out", Count: 1})
	next := e.process()
	e.Expect(next.reconcile(t.Context(), "pve1")).To(Succeed())
	e.Expect(e.config("pve1", zone.VMID).IsTemplate()).To(BeTrue())
}

// A host that needs an image which another one downloads does not hold a build slot meanwhile.
func TestWaitForDownload(t *testing.T) {
	t.Parallel()
	e := newEnv(t, 2, sharedStorage("nfs", "import"), func(s *pvesim.Scenario) { s.Hosts[0].DownloadRate = 16 }) // an hour
	e.updateSpec(func(s *v1alpha1.ProxmoxTemplateSpec) { s.StorageIDs = []string{"shared", "local-lvm"} })
	p := e.process()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- p.reconcile(ctx, "pve1") }()
	e.Eventually(func() string { return p.report().Message }).Should(ContainSubstring("pve1: downloading"))
	e.Expect(p.reconcile(t.Context(), "pve2")).To(Succeed())
	e.Expect(p.report().Message).To(ContainSubstring("pve2: waiting for the image, which is already being downloaded"))
	cancel()
	e.Eventually(done).Should(Receive())
}

// supersedingClient calls a function before a VM is destroyed.
type supersedingClient struct {
	proxmox.Client
	supersede func()
}

func (c supersedingClient) DestroyVM(ctx context.Context, host string, vmid int) (proxmox.UPID, error) {
	c.supersede()
	return c.Client.DestroyVM(ctx, host, vmid)
}

// The controllers of a deleted template cancel superseded runs until nothing of it remains. The
// runs that delete it are not superseded.
func TestDeletionNotSuperseded(t *testing.T) {
	t.Parallel()
	e := newEnv(t, 1)
	e.process().reconcileUntilComplete()
	var next *process
	next = e.processOf(kubeCluster, supersedingClient{Client: e.client(), supersede: func() { next.CancelSuperseded(e.desired()) }})
	now := metav1.Now()
	e.object.DeletionTimestamp = &now
	// Only a run that did not destroy the template yet is retried.
	next.reconcileFirstHostUntil(func(g Gomega) {
		g.Expect(e.sim.CountRequests("DELETE", "/nodes/{node}/qemu/{vmid}")).To(Equal(1))
	})
	e.Expect(next.Inventory().RefreshAll(t.Context())).To(Succeed())
	e.Expect(next.Remaining(e.desired())).To(BeEmpty())
}

// Two templates are built on one host concurrently.
func TestBuildConcurrentlyOnOneHost(t *testing.T) {
	t.Parallel()
	e := newEnv(t, 1)
	_, err := e.sim.AddFault(pvesim.Fault{Task: "qmcreate", Delay: pvesim.Duration(10 * time.Minute)})
	e.Expect(err).NotTo(HaveOccurred())
	p := e.process()
	second := e.object.DeepCopy()
	second.Name, second.UID = "second", types.UID("other")
	all := []template.Desired{e.desired(), template.NewDesired(second, nil)}
	for _, desired := range all {
		go func() {
			// One of them waits for the image that the other one downloads.
			for t.Context().Err() == nil {
				_, _ = p.ReconcileHost(t.Context(), desired, region, "pve1", func(context.Context) (template.Usage, error) {
					return template.Usage{Desired: all, InUse: func(string, int) string { return "" }}, nil
				})
			}
		}()
	}
	e.Eventually(func() int {
		tasks, err := e.client().RunningTasks(t.Context(), "pve1", "qmcreate")
		e.Expect(err).NotTo(HaveOccurred())
		return len(tasks)
	}).WithPolling(10 * time.Millisecond).Should(Equal(2))
}
