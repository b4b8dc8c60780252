// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package template_test

import (
	"context"
	"fmt"
	"net/http"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

// recordCalls returns the calls of work, and the indexes of those to crash at: one poll
// per task and, between two changes, one of each read.
func (e *env) recordCalls(work func()) (calls []pvesim.Request, at []int) {
	e.t.Helper()
	e.sim.ResetRequests()
	work()
	calls = e.sim.Requests()
	seen := map[string]bool{}
	for n, call := range calls {
		name := call.Method + " " + call.Path
		if call.Template == "/nodes/{node}/tasks/{upid}/status" && seen[name] {
			continue
		}
		if call.Method == http.MethodGet && n > 0 && calls[n-1].Method == http.MethodGet && seen[name] {
			continue // nothing changed since the previous read
		}
		seen[name] = true
		at = append(at, n)
	}
	return calls, at
}

// atEveryCall runs a subtest for a crash before and after every call.
func atEveryCall(t *testing.T, calls []pvesim.Request, at []int, run func(t *testing.T, n int, after bool)) {
	t.Helper()
	for _, n := range at {
		for when, after := range map[string]bool{"before": false, "after": true} {
			if after && calls[n].Method == http.MethodGet {
				continue // reads change nothing
			}
			t.Run(fmt.Sprintf("%s_call_%d_%s_%s", when, n+1, calls[n].Method, calls[n].Template), func(t *testing.T) {
				t.Parallel()
				run(t, n, after)
			})
		}
	}
}

// withTagsAndPool sets the options that need their own request.
func withTagsAndPool(e *env) {
	e.updateSpec(func(s *v1alpha1.ProxmoxTemplateSpec) { s.Tags, s.ResourcePool = []string{"karpenter"}, "karpenter" })
}

// A build that crashes at any call is completed by the next process, without orphans.
func TestBuildCrash(t *testing.T) {
	t.Parallel()
	e := newEnv(t, 1, withAllResources("8.4"))
	withTagsAndPool(e)
	p := e.process()
	calls, at := e.recordCalls(func() { e.Expect(p.reconcile(t.Context(), "pve1")).To(Succeed()) })
	atEveryCall(t, calls, at, func(t *testing.T, n int, after bool) {
		e := newEnv(t, 1, withAllResources("8.4"))
		withTagsAndPool(e)
		_ = e.process().reconcile(testenv.KillAtRequest(e.t, e.sim, n, after), "pve1")
		e.sim.ClearFaults()
		next := e.process()
		zone := next.reconcileUntilComplete().Zones[0]
		guests, images, disks := e.createdObjects()
		e.Expect(guests).To(HaveLen(1), "one template")
		e.Expect(images).To(HaveLen(1))
		e.Expect(disks).To(HaveLen(2), "its disk and its cloud-init drive")
		e.Expect(e.config("pve1", zone.VMID).Options).To(HaveKeyWithValue("tags", "karpenter"))
		next.deleteUntilGone()
		e.Expect(e.listObjects()).To(Equal(e.initial), "no orphans")
	})
}

// A build that crashed leaves no orphans when the object is then deleted or changed.
func TestBuildCrashThenSuperseded(t *testing.T) {
	t.Parallel()
	e := newEnv(t, 1, withAllResources("8.4"))
	withTagsAndPool(e)
	p := e.process()
	calls, at := e.recordCalls(func() { e.Expect(p.reconcile(t.Context(), "pve1")).To(Succeed()) })
	atEveryCall(t, calls, at, func(t *testing.T, n int, after bool) {
		e := newEnv(t, 1, withAllResources("8.4"))
		withTagsAndPool(e)
		_ = e.process().reconcile(testenv.KillAtRequest(e.t, e.sim, n, after), "pve1")
		e.sim.ClearFaults()
		if n%2 == 0 {
			e.process().deleteUntilGone()
			e.Expect(e.listObjects()).To(Equal(e.initial))
			return
		}
		e.updateSpec(func(s *v1alpha1.ProxmoxTemplateSpec) { s.SourceImage.URL = e.images.URL + "/other.img" })
		next := e.process()
		next.reconcileUntilComplete()
		e.Eventually(func(g Gomega) {
			g.Expect(next.reconcile(t.Context(), "pve1")).To(Succeed())
			guests, images, disks := e.createdObjects()
			g.Expect(guests).To(HaveLen(1))
			g.Expect(images).To(ConsistOf(ContainSubstring("other-")))
			g.Expect(disks).To(HaveLen(2))
		}).Should(Succeed())
	})
}

// A change of the image that crashes at any call is completed by the next process.
func TestReplaceImageCrash(t *testing.T) {
	t.Parallel()
	change := func(e *env) {
		e.updateSpec(func(s *v1alpha1.ProxmoxTemplateSpec) { s.SourceImage.URL = e.images.URL + "/other.img" })
	}
	e := newEnv(t, 1)
	p := e.process()
	p.reconcileUntilComplete()
	change(e)
	calls, at := e.recordCalls(func() { p.reconcileUntilComplete(); e.Expect(p.reconcile(t.Context(), "pve1")).To(Succeed()) })
	atEveryCall(t, calls, at, func(t *testing.T, n int, after bool) {
		e := newEnv(t, 1)
		crashing := e.process()
		crashing.reconcileUntilComplete()
		change(e)
		ctx := testenv.KillAtRequest(e.t, e.sim, n, after)
		for ctx.Err() == nil {
			_ = crashing.reconcile(ctx, "pve1")
			_ = crashing.Inventory().RefreshAll(ctx)
		}
		e.sim.ClearFaults()
		next := e.process()
		next.reconcileUntilComplete()
		e.Eventually(func(g Gomega) {
			g.Expect(next.reconcile(t.Context(), "pve1")).To(Succeed())
			guests, images, disks := e.createdObjects()
			g.Expect(guests).To(HaveLen(1))
			g.Expect(images).To(ConsistOf(ContainSubstring("other-")))
			g.Expect(disks).To(HaveLen(2))
		}).WithPolling(50 * time.Millisecond).Should(Succeed())
		next.deleteUntilGone()
		e.Expect(e.listObjects()).To(Equal(e.initial))
	})
}

// createEndsBeforeTaskList is a client whose list of running tasks is read only after the
// creation in progress has ended.
type createEndsBeforeTaskList struct {
	proxmox.Client
	end func()
}

func (c createEndsBeforeTaskList) RunningTasks(ctx context.Context, host, kind string) ([]proxmox.TaskStatus, error) {
	c.end()
	return c.Client.RunningTasks(ctx, host, kind)
}

// A VM whose creation ends while the cleanup of a deleted template checks the host is
// found.
func TestCleanupDuringCreation(t *testing.T) {
	t.Parallel()
	e := newEnv(t, 1)
	// 15 seconds of real time, in which the cleanup begins.
	testenv.AddFault(t, e.sim, pvesim.Fault{Task: "qmcreate", Delay: pvesim.Duration(750 * time.Second), Count: 1})
	ctx, kill := context.WithCancel(t.Context())
	built := make(chan error, 1)
	p := e.process()
	go func() { built <- p.reconcile(ctx, "pve1") }()
	creating := func() []proxmox.TaskStatus {
		tasks, err := e.client().RunningTasks(t.Context(), "pve1", "qmcreate")
		e.Expect(err).NotTo(HaveOccurred())
		return tasks
	}
	e.Eventually(creating).WithPolling(10 * time.Millisecond).Should(HaveLen(1))
	kill()
	e.Eventually(built).Should(Receive(HaveOccurred()))

	next := e.processOf(kubeCluster, createEndsBeforeTaskList{Client: e.client(), end: func() {
		e.Eventually(creating).WithPolling(10 * time.Millisecond).Should(BeEmpty())
	}})
	now := metav1.Now()
	e.object.DeletionTimestamp = &now
	e.Expect(next.Cleanup(t.Context(), e.desired(), e.usage)).NotTo(BeEmpty(), "the VM remains")
	next.deleteUntilGone()
	e.Expect(e.listObjects()).To(Equal(e.initial))
}
