// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package template_test

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

const startPath = "/nodes/{node}/qemu/{vmid}/status/start"

// A builder VM that failed, or could not be started, is replaced when the setting is fixed.
func TestPrepareFixed(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		invalid func(*v1alpha1.ProxmoxTemplateSpec)
		fail    func(e *env, p *process)
		want    string
		fix     func(*v1alpha1.ProxmoxTemplateSpec)
	}{
		"too_many_CPUs": {
			invalid: func(s *v1alpha1.ProxmoxTemplateSpec) { s.Prepare.Size.CPU = 512 },
			want:    "pve1: starting builder VM 1000: MAX 16 vcpus allowed per VM on this node",
			fix:     func(s *v1alpha1.ProxmoxTemplateSpec) { s.Prepare.Size.CPU = 2 },
		},
		"disk_too_small": {
			invalid: func(s *v1alpha1.ProxmoxTemplateSpec) { s.Prepare.DiskSize = "1Gi" },
			want:    "pve1: spec.prepare.diskSize 1Gi is smaller than the disk of the image",
			fix:     func(s *v1alpha1.ProxmoxTemplateSpec) { s.Prepare.DiskSize = "" },
		},
		"timeout_too_short": {
			invalid: func(s *v1alpha1.ProxmoxTemplateSpec) {
				s.Prepare.Timeout = &metav1.Duration{Duration: 10 * time.Minute}
			},
			fail: func(e *env, p *process) {
				p.reconcileUntilRunning()
				e.builders.clock.Advance(11 * time.Minute)
			},
			want: "pve1: preparing the template failed: builder VM 1000: it did not power itself off within spec.prepare.timeout 10m0s",
			fix:  func(s *v1alpha1.ProxmoxTemplateSpec) { s.Prepare.Timeout = nil },
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := newEnv(t, 1, func(s *pvesim.Scenario) { s.Version = "8.4" })
			prepareTemplates(e)
			e.updateSpec(test.invalid)
			if test.fail != nil {
				e.builders.set(pvesim.Script{})
			}
			p := e.process()
			if test.fail != nil {
				test.fail(e, p)
			}
			p.reconcileUntil(func(g Gomega) { g.Expect(p.report().Message).To(HavePrefix(test.want)) })
			e.builders.set(newBuilders().script)
			e.updateSpec(test.fix)
			p.reconcileUntilComplete()
			p.deleteUntilGone()
			e.Expect(e.listObjects()).To(Equal(e.initial))
		})
	}
}

// The boot data of builder VMs may contain a static address, so with a limit of one they never
// run at the same time: neither one that failed and is kept, nor an obsolete one.
func TestPrepareOneAtATime(t *testing.T) {
	t.Parallel()
	e := newEnv(t, 2)
	prepareTemplates(e, func(p *v1alpha1.Preparation) { p.MaxConcurrent = 1 })
	e.builders.set(pvesim.Script{})
	p := e.process()
	starts := func() int { return e.sim.CountRequests("POST", startPath) }
	for attempt := 1; attempt <= 2; attempt++ {
		for host := range 2 {
			p.reconcileUntil(func(g Gomega) { g.Expect(starts()).To(Equal(2*attempt - 1 + host)) })
			e.builders.clock.Advance(31 * time.Minute)
		}
		p.reconcileUntil(func(g Gomega) {
			g.Expect(p.events.Messages(v1alpha1.EventTemplatePreparationFailed)).To(HaveLen(2 * attempt))
			guests, _, _ := e.createdObjects()
			g.Expect(guests).To(HaveLen(2), "both are kept")
		})
		e.builders.clock.Advance(61 * time.Minute)
	}
	p.reconcileUntil(func(g Gomega) { g.Expect(starts()).To(Equal(5)) })
	failures := p.events.Messages(v1alpha1.EventTemplatePreparationFailed)
	e.setContent("install more")
	p.reconcileUntil(func(g Gomega) { g.Expect(starts()).To(Equal(6)) })
	e.builders.mu.Lock()
	most := e.builders.most
	e.builders.mu.Unlock()
	e.Expect(most).To(Equal(1))
	e.Expect(p.events.Messages(v1alpha1.EventTemplatePreparationFailed)).To(Equal(failures), "an obsolete builder VM has not failed")
	p.deleteUntilGone()
	e.Expect(e.listObjects()).To(Equal(e.initial))
}

// A host that could not start its builder VM waits for those that run meanwhile.
func TestPrepareRetriedStart(t *testing.T) {
	t.Parallel()
	e := newEnv(t, 2)
	prepareTemplates(e, func(p *v1alpha1.Preparation) {
		p.MaxConcurrent, p.Timeout = 1, &metav1.Duration{Duration: 2 * time.Hour}
	})
	e.builders.set(pvesim.Script{})
	_, err := e.sim.AddFault(pvesim.Fault{Task: "qmstart", Fail: "no such bridge", Count: 1})
	e.Expect(err).NotTo(HaveOccurred())
	p := e.process()
	p.reconcileFirstHostUntil(func(g Gomega) { g.Expect(p.report().Message).To(ContainSubstring("no such bridge")) })
	p.reconcileUntilListed(p.reconcileUntilRunning())
	e.builders.clock.Advance(time.Hour)
	p.reconcileUntil(func(g Gomega) {
		g.Expect(p.report().Message).To(ContainSubstring("pve1: waiting for builder VMs on other hosts"))
	})
	e.Expect(e.sim.CountRequests("POST", startPath)).To(Equal(2))
	e.builders.clock.Advance(time.Hour)
	p.reconcileUntil(func(g Gomega) { g.Expect(e.sim.CountRequests("POST", startPath)).To(Equal(3)) })
	p.deleteUntilGone()
	e.Expect(e.listObjects()).To(Equal(e.initial))
}

// A host that cannot create its builder VM does not block the others.
func TestPrepareCreationFails(t *testing.T) {
	t.Parallel()
	e := newEnv(t, 2)
	prepareTemplates(e, func(p *v1alpha1.Preparation) { p.MaxConcurrent = 1 })
	_, err := e.sim.AddFault(pvesim.Fault{Method: "POST", Path: "/nodes/pve1/qemu", Status: 500, Message: "no space left"})
	e.Expect(err).NotTo(HaveOccurred())
	p := e.process()
	p.reconcileFirstHostUntil(func(g Gomega) { g.Expect(p.report().Message).To(ContainSubstring("no space left")) })
	p.reconcileUntil(func(g Gomega) { g.Expect(p.report().Zones).To(ConsistOf(HaveField("Host", "pve2"))) })
}

// reconcileUntilListed reconciles until the inventory shows the configuration of a running VM.
func (p *process) reconcileUntilListed(vmid int) {
	p.env.t.Helper()
	p.reconcileUntil(func(g Gomega) {
		guest, _ := p.Inventory().View().Guest(region, vmid)
		g.Expect(guest.Config).NotTo(BeNil())
		g.Expect(guest.Status).To(Equal("running"))
	})
}

// A builder VM on an offline host blocks the deletion of its ProxmoxTemplate.
func TestDeleteWithBuilderOnOfflineHost(t *testing.T) {
	t.Parallel()
	e := newEnv(t, 2)
	prepareTemplates(e, func(p *v1alpha1.Preparation) { p.MaxConcurrent = 1 })
	e.builders.set(pvesim.Script{})
	p := e.process()
	vmid := p.reconcileUntilRunning()
	p.reconcileUntilListed(vmid)
	host := ""
	for _, guest := range e.sim.Guests() {
		if guest.VMID == vmid {
			host = guest.Host
		}
	}
	e.Expect(e.sim.HostDown(host, "refused")).To(Succeed())
	e.object = e.object.DeepCopy()
	e.object.DeletionTimestamp = new(metav1.Now())
	for text, process := range map[string]*process{"belongs to it": p, "may belong to it": e.process()} {
		process.reconcileUntil(func(g Gomega) {
			remaining, err := process.Cleanup(t.Context(), e.desired(), e.usage)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(remaining).To(ContainElement(host + ": VM 1000 " + text + " and is on an offline host"))
		})
	}
	e.Expect(e.sim.HostUp(host)).To(Succeed())
	p.deleteUntilGone()
	e.Expect(e.listObjects()).To(Equal(e.initial))
}

// A release with other hashes keeps the templates.
func TestPrepareHashOfOtherRelease(t *testing.T) {
	t.Parallel()
	e := newEnv(t, 1)
	prepareTemplates(e)
	vmid := e.process().reconcileUntilComplete().Zones[0].VMID
	mark := e.mark(vmid)
	mark.Hash, mark.HashVersion = "1", "v1"
	older := mark.Notes("")
	e.Expect(e.client().UpdateVM(t.Context(), "pve1", vmid, proxmox.ConfigChange{Set: map[string]string{"description": older}})).To(Succeed())
	e.object = e.object.DeepCopy()
	e.object.Status.Preparation.BootDataHash = "v1-install"

	p := e.process()
	e.Expect(p.reconcile(t.Context(), "pve1")).To(Succeed())
	e.Expect(e.config("pve1", vmid).Description()).To(Equal(older), "the Secrets have not been read")
	e.setContent("install")
	e.Expect(p.reconcileUntilComplete().Zones).To(ConsistOf(HaveField("VMID", vmid)))
	e.Expect(e.mark(vmid)).To(And(HaveField("Hash", e.desired().Hash), HaveField("HashVersion", v1alpha1.HashVersion), HaveField("Generation", mark.Generation)))
	e.Expect(e.sim.CountRequests("POST", startPath)).To(Equal(1))
}

// A failed builder VM of a release with other hashes is deleted if nothing is prepared anymore.
func TestPrepareRemovedWithHashOfOtherRelease(t *testing.T) {
	t.Parallel()
	e := newEnv(t, 1)
	prepareTemplates(e)
	e.builders.set(pvesim.Script{})
	p := e.process()
	p.reconcileUntil(func(g Gomega) { g.Expect(e.sim.CountRequests("POST", startPath)).To(Equal(1)) })
	e.builders.clock.Advance(31 * time.Minute)
	e.Expect(p.reconcile(t.Context(), "pve1")).To(Succeed())
	mark := e.mark(1000)
	e.Expect(mark.Builder.Failed).NotTo(BeZero())
	mark.Hash, mark.HashVersion = "1", "v1"
	e.Expect(e.client().UpdateVM(t.Context(), "pve1", 1000, proxmox.ConfigChange{Set: map[string]string{"description": mark.Notes("")}})).To(Succeed())

	e.updateSpec(func(s *v1alpha1.ProxmoxTemplateSpec) { s.Prepare = nil })
	p = e.process()
	vmid := p.reconcileUntilComplete().Zones[0].VMID
	e.Expect(e.mark(vmid)).To(And(HaveField("Hash", e.desired().Hash), HaveField("Builder", BeNil())))
	p.reconcileUntil(func(g Gomega) { g.Expect(e.bootDrives()).To(BeEmpty()) })
	p.deleteUntilGone()
	e.Expect(e.listObjects()).To(Equal(e.initial))
}

// A refresh does not begin while an earlier one is in progress on a host.
func TestRefreshDueInProgress(t *testing.T) {
	t.Parallel()
	e := newEnv(t, 2)
	prepareTemplates(e, func(p *v1alpha1.Preparation) {
		p.RefreshAfter, p.MaxConcurrent = &metav1.Duration{Duration: time.Hour}, 1
		p.Timeout = &metav1.Duration{Duration: 2 * time.Hour}
	})
	completes := e.builders.Script
	var once sync.Once
	e.builders.Script = func(m *pvesim.Machine) *pvesim.Script {
		script := &pvesim.Script{}
		once.Do(func() { script = completes(m) })
		return script
	}
	p := e.process()
	p.reconcileUntil(func(g Gomega) { g.Expect(p.report().Zones).To(HaveLen(1)) })
	p.reconcileUntil(func(g Gomega) { g.Expect(e.sim.CountRequests("POST", startPath)).To(Equal(2)) })
	e.builders.clock.Advance(time.Hour)
	due, after := p.RefreshDue(e.desired())
	e.Expect(due).To(BeFalse())
	e.Expect(after).To(BeZero())
	e.builders.clock.Advance(time.Hour)
	p.reconcileUntil(func(g Gomega) { g.Expect(p.report().Failing).To(BeTrue()) })
	due, _ = p.RefreshDue(e.desired())
	e.Expect(due).To(BeTrue(), "it failed")
}

// A builder VM that powers off too early is found by the first check.
func TestPrepareFirstCheck(t *testing.T) {
	t.Parallel()
	e := newEnv(t, 1)
	prepareTemplates(e)
	e.builders.set(pvesim.Script{})
	e.builders.minimum = 10 * time.Second
	p := e.process()
	var after time.Duration
	e.Eventually(func(g Gomega) {
		var err error
		after, err = p.ReconcileHost(t.Context(), e.desired(), region, "pve1", e.usage)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(p.Inventory().RefreshAll(t.Context())).To(Succeed())
		g.Expect(p.events.Messages(v1alpha1.EventTemplatePreparing)).To(HaveLen(1))
	}).Should(Succeed())
	e.Expect(after).To(And(BeNumerically(">", 0), BeNumerically("<=", 8*time.Second)))
}

// A host in maintenance starts no builder VM.
func TestPrepareInMaintenance(t *testing.T) {
	t.Parallel()
	e := newEnv(t, 1)
	prepareTemplates(e)
	p := e.process()
	p.Inventory().SetMaintenance(inventory.Maintenance{{Region: region, Host: "pve1"}: "new memory"})
	e.Expect(p.reconcile(t.Context(), "pve1")).To(Succeed())
	e.Expect(p.report().Message).To(Equal("pve1: the host is in maintenance (requested in Kubernetes: new memory); its template is prepared afterwards"))
	guests, _, _ := e.createdObjects()
	e.Expect(guests).To(BeEmpty())
	p.Inventory().SetMaintenance(nil)
	p.reconcileUntilComplete()
}

// A builder VM that was started before the maintenance is completed, even if another host could
// build the template.
func TestPrepareBeforeMaintenance(t *testing.T) {
	t.Parallel()
	for name, storages := range map[string][]string{"local_storage": {"local", "local-lvm"}, "shared_storage": {"shared", "local"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := newEnv(t, 2, sharedStorage("rbd", "images"))
			prepareTemplates(e, func(p *v1alpha1.Preparation) { p.MaxConcurrent = 1 })
			e.updateSpec(func(s *v1alpha1.ProxmoxTemplateSpec) { s.StorageIDs = storages })
			e.builders.set(pvesim.Script{})
			p := e.process()
			e.Expect(p.reconcile(t.Context(), "pve1")).To(Succeed())
			vmid := p.reconcileUntilRunning()
			p.reconcileUntilListed(vmid)
			p.Inventory().SetMaintenance(inventory.Maintenance{{Region: region, Host: "pve1"}: ""})
			p.reconcileUntilListed(vmid)
			e.Expect(p.report().Message).To(ContainSubstring("pve1: preparing: builder VM"))
			e.Expect(e.sim.PowerOffGuest(vmid)).To(Succeed())
			p.reconcileUntil(func(g Gomega) {
				g.Expect(p.report().Zones).To(ContainElement(And(HaveField("Host", "pve1"), HaveField("VMID", vmid))))
			})
		})
	}
}

// withoutMarks is a client of which the ownership marks were removed.
type withoutMarks struct{ proxmox.Client }

func (c withoutMarks) VMConfig(ctx context.Context, host string, vmid int) (proxmox.VMConfig, error) {
	config, err := c.Client.VMConfig(ctx, host, vmid)
	delete(config.Options, "description")
	return config, err
}

// A VM whose ownership mark was removed is not converted.
func TestBuildWithoutMark(t *testing.T) {
	t.Parallel()
	e := newEnv(t, 1)
	e.updateSpec(func(s *v1alpha1.ProxmoxTemplateSpec) { s.Tags = []string{"karpenter"} })
	p := e.processOf(kubeCluster, withoutMarks{e.client()})
	p.reconcileFirstHostUntil(func(g Gomega) { g.Expect(e.sim.CountRequests("POST", "/nodes/{node}/qemu")).To(Equal(1)) })
	e.Expect(e.sim.CountRequests("POST", "/nodes/{node}/qemu/{vmid}/template")).To(BeZero())
	e.Expect(strings.Join(e.listObjects(), "\n")).To(ContainSubstring("pve1/1000 "))
}

// A builder VM on shared storage stays when the first host returns.
func TestPrepareOnSharedStorageStays(t *testing.T) {
	t.Parallel()
	e := newEnv(t, 2, sharedStorage("rbd", "images"))
	prepareTemplates(e)
	e.updateSpec(func(s *v1alpha1.ProxmoxTemplateSpec) { s.StorageIDs = []string{"shared", "local"} })
	e.builders.set(pvesim.Script{})
	e.Expect(e.sim.HostDown("pve1", "refused")).To(Succeed())
	p := e.process()
	vmid := p.reconcileUntilRunning()
	p.reconcileUntilListed(vmid)
	e.Expect(e.sim.HostUp("pve1")).To(Succeed())
	p.reconcileUntil(func(g Gomega) {
		g.Expect(p.Inventory().View().Snapshots[region].Hosts["pve1"].Online).To(BeTrue())
	})
	for range 3 {
		p.reconcileUntilListed(vmid)
	}
	e.Expect(e.sim.CountRequests("POST", startPath)).To(Equal(1))
	p.deleteUntilGone()
	e.Expect(e.listObjects()).To(Equal(e.initial))
}
