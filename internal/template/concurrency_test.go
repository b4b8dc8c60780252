// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package template_test

import (
	"context"
	"fmt"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/types"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/template"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

// Two Kubernetes clusters concurrently build templates with the same name on the same
// Proxmox cluster: each has its own, and neither changes those of the other.
func TestBuildByTwoKubernetesClusters(t *testing.T) {
	simulated(t, 2, func(e *env, mine *process) {
		theirs := e.processOf("another", e.Client)
		var done []chan error
		for _, p := range []*process{mine, theirs} {
			done = append(done, p.start(e.T.Context(), "pve1"), p.start(e.T.Context(), "pve2"))
		}
		for _, built := range done {
			e.Expect(<-built).To(Succeed())
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
		e.Expect(e.guests()).To(HaveLen(2))
		e.Expect(e.imageFiles()).To(HaveLen(2))
	})
}

func TestHostJoins(t *testing.T) {
	simulated(t, 2, func(e *env, p *process) {
		e.Expect(e.Sim.HostDown("pve2", "refused")).To(Succeed())
		e.Clock.Sleep(time.Minute)
		p.refresh()
		p.reconcileUntilMessage(Equal("pve2: the host is offline; its template is built when the host is online again"))
		e.Expect(p.report().Zones).To(ConsistOf(HaveField("Host", "pve1")))
		e.Expect(e.Sim.HostUp("pve2")).To(Succeed())
		e.Eventually(func(g Gomega) {
			p.refresh()
			g.Expect(p.PendingHosts(e.desired())).To(ContainElement(HaveField("Host", "pve2")))
		}).Should(Succeed())
		e.Expect(p.reconcileUntilComplete().Zones).To(HaveLen(2))
	})
}

// A create that was interrupted by a power failure leaves a locked VM without a name or
// an ownership mark. It is reported and another VMID is used.
func TestBuildWithStaleLock(t *testing.T) {
	simulated(t, 1, func(e *env, p *process) {
		e.Expect(p.build().VMID).To(Equal(1001))
		e.Expect(e.config("pve1", 1000).Lock()).To(Equal("create"))
		e.Expect(p.report().Message).To(Equal("pve1: VM 1000 on host pve1 is locked (create) by a task that no longer runs, probably after a crash; " +
			"if nothing uses the VM, run there as root: qm unlock 1000 && qm destroy 1000"))
	}, func(s *pvesim.Scenario) {
		s.Guests = append(s.Guests, pvesim.Guest{VMID: 1000, Host: "pve1", Config: map[string]string{"lock": "create"}})
	})
}

// A host that needs an image which another one downloads does not hold a build slot meanwhile. The download
// is canceled when the image changes.
func TestDownloadInProgress(t *testing.T) {
	simulated(t, 2, func(e *env, p *process) {
		e.useStorages("shared", "local-lvm")
		done := p.start(e.T.Context(), "pve1")
		e.Clock.Sleep(time.Minute)
		e.Expect(p.report().Message).To(ContainSubstring("pve1: downloading"))
		e.Expect(p.reconcile(e.T.Context(), "pve2")).To(Succeed())
		e.Expect(p.report().Message).To(ContainSubstring("pve2: waiting for the image, which is already being downloaded"))
		e.replaceImage()
		p.CancelSuperseded(e.desired())
		e.Expect(<-done).To(Succeed())
		e.Clock.Sleep(time.Second)
		e.Expect(e.Client.RunningTasks(e.T.Context(), "pve1", "download")).To(BeEmpty())
	}, sharedStorage("nfs", "import"), func(s *pvesim.Scenario) { s.Hosts[0].DownloadRate = 16 }) // an hour
}

// The controller was restarted, and the first poll could not read the configuration of the
// template.
func TestUnreadConfig(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"desired", "in_use", "deleted"} {
		testenv.RunSimulated(t, name, func(t *testing.T) {
			e := newEnv(t, 1)
			vmid := e.process().build().VMID
			e.AddFault(pvesim.Fault{Method: "GET", Path: fmt.Sprintf("/nodes/*/qemu/%d/config", vmid), Status: 596, Message: "Connection timed out", Count: 1})
			next := e.process()
			e.Expect(e.Sim.Faults()[0].Hits).To(Equal(1))
			switch name {
			case "desired":
				e.Expect(next.run(t.Context())).To(Succeed())
				e.Expect(e.guests()).To(HaveLen(1), "no second template")
			case "in_use":
				e.inUse[vmid] = "a NodeClaim uses it"
				e.replaceImage()
				e.Expect(next.reconcile(t.Context(), "pve1")).To(Succeed())
				e.Expect(e.config("pve1", vmid).IsTemplate()).To(BeTrue(), "retained")
			case "deleted":
				e.deleteObject()
				e.Expect(next.cleanup()).NotTo(BeEmpty(), "the template remains")
				e.Expect(next.PendingHosts(e.desired())).NotTo(BeEmpty())
				next.deleteAll()
			}
		})
	}
}

// supersedingClient calls a function before a VM is destroyed.
type supersedingClient struct {
	proxmox.Client
	supersede func()
}

func (c *supersedingClient) DestroyVM(ctx context.Context, host string, vmid int) (proxmox.UPID, error) {
	c.supersede()
	return c.Client.DestroyVM(ctx, host, vmid)
}

// The controllers of a deleted template cancel superseded runs until nothing of it remains. The
// runs that delete it are not superseded.
func TestDeletionNotSuperseded(t *testing.T) {
	simulated(t, 1, func(e *env, p *process) {
		p.build()
		var next *process
		next = e.processOf(kubeCluster, &supersedingClient{Client: e.Client, supersede: func() { next.CancelSuperseded(e.desired()) }})
		e.deleteObject()
		// Only a run that did not destroy the template yet is retried.
		next.reconcileUntil(func(g Gomega) {
			g.Expect(e.Sim.CountRequests("DELETE", "/nodes/{node}/qemu/{vmid}")).To(Equal(1))
		}, "pve1")
		next.refresh()
		e.Expect(next.Remaining(e.desired())).To(BeEmpty())
	})
}

// Two templates are built on one host concurrently.
func TestBuildConcurrentlyOnOneHost(t *testing.T) {
	simulated(t, 1, func(e *env, p *process) {
		e.AddFault(pvesim.Fault{Task: "qmcreate", Delay: pvesim.Duration(10 * time.Minute)})
		second := e.object.DeepCopy()
		second.Name, second.UID = "second", types.UID("other")
		all := []template.Desired{e.desired(), template.NewDesired(second, nil)}
		for _, desired := range all {
			testenv.Go(e.T, func(ctx context.Context) error {
				// One of them waits for the image that the other one downloads.
				for ; ctx.Err() == nil; e.Clock.Sleep(runInterval) {
					_, _ = p.ReconcileHost(ctx, desired, region, "pve1", func(context.Context) (template.Usage, error) {
						return template.Usage{Desired: all, InUse: e.usedBy}, nil
					})
				}
				return nil
			})
		}
		e.Clock.Sleep(5 * time.Minute)
		e.Expect(e.Client.RunningTasks(e.T.Context(), "pve1", "qmcreate")).To(HaveLen(2))
	})
}

// crash runs a subtest for a crash before and after every call of a process that changes something. begin
// returns the process with its environment. It is killed at the n-th call, and then a new one starts.
// Killed at a read, it would leave the same as after the previous change.
func crash(t *testing.T, begin func(t *testing.T) (*env, *process), restart func(e *env, next *process, n int)) {
	t.Helper()
	var calls []pvesim.Request
	synctest.Test(t, func(t *testing.T) {
		e, p := begin(t)
		calls = e.RecordRequests(func() {
			for complete := false; !complete; { // deletions follow
				complete = p.report().Complete
				e.Expect(p.run(t.Context())).To(Succeed())
			}
		})
	})
	for n, call := range calls {
		if call.Method == http.MethodGet {
			continue
		}
		for when, after := range map[string]bool{"before": false, "after": true} {
			testenv.RunSimulated(t, fmt.Sprintf("%s_call_%d_%s_%s", when, n+1, call.Method, call.Template), func(t *testing.T) {
				e, p := begin(t)
				for ctx := testenv.KillAtRequest(t, e.Sim, n, after); ctx.Err() == nil; {
					_ = p.run(ctx)
				}
				e.Sim.ClearFaults()
				next := e.processOf(kubeCluster, testenv.NewClient(t, e.Sim, testenv.ClusterConfig(e.Sim, region)))
				restart(e, next, n)
				next.deleteAll()
			})
		}
	}
}

// setTagsAndPool sets the options that need their own request.
func setTagsAndPool(s *v1alpha1.ProxmoxTemplateSpec) {
	s.Tags, s.ResourcePool = []string{"karpenter"}, "karpenter"
}

// A change of the image that crashes at any call is completed by the next process, without orphans and with
// one download. The first mirror fails.
func TestReplaceImageCrash(t *testing.T) {
	t.Parallel()
	crash(t, func(t *testing.T) (*env, *process) {
		t.Helper()
		e := newEnv(t, 1, withAllResources("8.4"))
		p := e.process()
		p.build()
		e.useMirrors(e.images.URL+"/missing.qcow2", e.images.URL+"/other.img")
		e.updateSpec(setTagsAndPool)
		return e, p
	}, func(e *env, next *process, _ int) {
		e.Expect(e.config("pve1", next.build().VMID).Options).To(HaveKeyWithValue("tags", "karpenter"))
		next.reconcileUntilOnly("missing") // the name is that of the first mirror
		e.Expect(e.images.Fetched("/other.img")).To(Equal(imageSize))
	})
}

// createEndsBeforeTaskList is a client whose list of running tasks is read only after the
// creation in progress has ended.
type createEndsBeforeTaskList struct {
	proxmox.Client
	end func()
}

func (c *createEndsBeforeTaskList) RunningTasks(ctx context.Context, host, kind string) ([]proxmox.TaskStatus, error) {
	c.end()
	return c.Client.RunningTasks(ctx, host, kind)
}

// A VM whose creation ends while the cleanup of a deleted template checks the host is
// found.
func TestCleanupDuringCreation(t *testing.T) {
	simulated(t, 1, func(e *env, p *process) {
		e.AddFault(pvesim.Fault{Task: "qmcreate", Delay: pvesim.Duration(10 * time.Minute), Count: 1})
		ctx, kill := context.WithCancel(e.T.Context())
		built := p.start(ctx, "pve1")
		e.Clock.Sleep(time.Minute)
		e.Expect(e.Client.RunningTasks(ctx, "pve1", "qmcreate")).To(HaveLen(1))
		kill()
		e.Expect(<-built).To(HaveOccurred())

		next := e.processOf(kubeCluster, &createEndsBeforeTaskList{Client: e.Client, end: func() { e.Clock.Sleep(10 * time.Minute) }})
		e.deleteObject()
		e.Expect(next.cleanup()).NotTo(BeEmpty(), "the VM remains")
		next.deleteAll()
	})
}
