// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package template_test

import (
	"context"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/declared"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/ownership"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

// A builder VM that failed, or could not be started, is replaced when the setting is fixed.
func TestPrepareFixed(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		invalid func(*v1alpha1.Preparation)
		fail    func(e *env, p *process)
		want    string
		fix     func(*v1alpha1.Preparation)
	}{
		"too_many_CPUs": {
			invalid: func(p *v1alpha1.Preparation) { p.Size.CPU = 512 },
			want:    "pve1: starting builder VM 1000: MAX 16 vcpus allowed per VM on this node",
			fix:     func(p *v1alpha1.Preparation) { p.Size.CPU = 2 },
		},
		"disk_too_small": {
			invalid: func(p *v1alpha1.Preparation) { p.DiskSize = "1Gi" },
			want:    "pve1: spec.prepare.diskSize 1Gi is smaller than the disk of the image, which has 2048 MiB: set a larger size, or remove it",
			fix:     func(p *v1alpha1.Preparation) { p.DiskSize = "" },
		},
		"timeout_too_short": {
			invalid: timeout(10 * time.Minute),
			fail: func(e *env, p *process) {
				e.builders.set(pvesim.Script{})
				p.reconcileUntilRunning()
				e.Clock.Advance(11 * time.Minute)
			},
			want: "pve1: preparing the template failed: builder VM 1000: it did not power itself off within spec.prepare.timeout 10m0s",
			fix:  func(p *v1alpha1.Preparation) { p.Timeout = nil },
		},
	} {
		testenv.RunSimulated(t, name, func(t *testing.T) {
			e := newEnv(t, 1, func(s *pvesim.Scenario) { s.Version = "8.4" })
			prepareTemplates(e, test.invalid)
			p := e.process()
			if test.fail != nil {
				test.fail(e, p)
			}
			p.reconcileUntilMessage(HavePrefix(test.want))
			e.Expect(p.report().Failing).To(BeTrue())
			e.builders.set(newBuilders().script)
			e.updateSpec(func(s *v1alpha1.ProxmoxTemplateSpec) { test.fix(s.Prepare) })
			p.build()
			p.deleteAll()
		})
	}
}

// The boot data of builder VMs may contain a static address, so with a limit of one they never
// run at the same time: neither one that failed and is kept, nor an obsolete one.
func TestPrepareOneAtATime(t *testing.T) {
	simulated(t, 2, func(e *env, p *process) {
		prepareForever(e, oneAtATime)
		for attempt := 1; attempt <= 2; attempt++ {
			for host := range 2 {
				p.reconcileUntil(func(g Gomega) { g.Expect(e.starts()).To(Equal(2*attempt - 1 + host)) })
				e.Clock.Advance(31 * time.Minute)
			}
			p.reconcileUntil(func(g Gomega) {
				g.Expect(p.preparationFailures()).To(HaveLen(2 * attempt))
				g.Expect(e.guests()).To(HaveLen(2), "both are kept")
			})
			e.Clock.Advance(61 * time.Minute)
		}
		p.reconcileUntil(func(g Gomega) { g.Expect(e.starts()).To(Equal(5)) })
		failures := p.preparationFailures()
		e.setContent("install more")
		p.reconcileUntil(func(g Gomega) { g.Expect(e.starts()).To(Equal(6)) })
		most, _ := e.builders.seen()
		e.Expect(most).To(Equal(1))
		e.Expect(p.preparationFailures()).To(Equal(failures), "an obsolete builder VM has not failed")
		p.deleteAll()
	})
}

// A host that could not start its builder VM waits for those that run meanwhile.
func TestPrepareRetriedStart(t *testing.T) {
	simulated(t, 2, func(e *env, p *process) {
		prepareForever(e, oneAtATime, timeout(2*time.Hour))
		e.AddFault(pvesim.Fault{Task: "qmstart", Fail: "no such bridge", Count: 1})
		p.reconcileUntil(func(g Gomega) { g.Expect(p.report().Message).To(ContainSubstring("no such bridge")) }, "pve1")
		p.reconcileUntilListed(p.reconcileUntilRunning())
		e.Clock.Advance(time.Hour)
		p.reconcileUntilMessage(ContainSubstring("pve1: waiting for builder VMs on other hosts"))
		e.Expect(e.starts()).To(Equal(2))
		e.Clock.Advance(time.Hour)
		p.reconcileUntil(func(g Gomega) { g.Expect(e.starts()).To(Equal(3)) })
		p.deleteAll()
	})
}

// A host that cannot create its builder VM does not block the others.
func TestPrepareCreationFails(t *testing.T) {
	simulated(t, 2, func(e *env, p *process) {
		prepareTemplates(e, oneAtATime)
		e.AddFault(pvesim.Fault{Method: "POST", Path: "/nodes/pve1/qemu", Status: 500, Message: "no space left"})
		p.reconcileUntil(func(g Gomega) { g.Expect(p.report().Message).To(ContainSubstring("no space left")) }, "pve1")
		p.reconcileUntil(func(g Gomega) { g.Expect(p.report().Zones).To(ConsistOf(HaveField("Host", "pve2"))) })
	})
}

// A builder VM on an offline host blocks the deletion of its ProxmoxTemplate.
func TestDeleteWithBuilderOnOfflineHost(t *testing.T) {
	simulated(t, 2, func(e *env, p *process) {
		prepareForever(e, oneAtATime)
		vmid := p.reconcileUntilRunning()
		p.reconcileUntilListed(vmid)
		guest, _ := p.Inventory().View().Guest(region, vmid)
		e.Expect(e.Sim.HostDown(guest.Host, "refused")).To(Succeed())
		e.deleteObject()
		for text, process := range map[string]*process{"belongs to it": p, "may belong to it": e.process()} {
			process.reconcileUntil(func(g Gomega) {
				g.Expect(process.cleanup()).To(ContainElement(guest.Host + ": VM 1000 " + text + " and is on an offline host"))
			})
		}
		e.Expect(e.Sim.HostUp(guest.Host)).To(Succeed())
		p.deleteAll()
	})
}

// setOldHash makes a VM one of a release with other hashes, and returns its ownership mark.
func (e *env) setOldHash(vmid int) ownership.Mark {
	e.T.Helper()
	mark := e.mark(vmid)
	mark.Hash, mark.HashVersion = "1", "v1"
	e.setOption(vmid, "description", mark.Notes(""))
	return mark
}

// A release with other hashes keeps the templates.
func TestPrepareHashOfOtherRelease(t *testing.T) {
	simulated(t, 1, func(e *env, p *process) {
		prepareTemplates(e)
		vmid := p.build().VMID
		mark := e.setOldHash(vmid)
		e.object = e.object.DeepCopy()
		e.object.Status.Preparation.BootDataHash = "v1-install"

		p = e.process()
		e.Expect(p.reconcile(e.T.Context(), "pve1")).To(Succeed())
		e.Expect(e.mark(vmid)).To(Equal(mark), "the Secrets have not been read")
		e.setContent("install")
		e.Expect(p.build().VMID).To(Equal(vmid))
		e.Expect(e.mark(vmid)).To(And(HaveField("Hash", e.desired().Hash), HaveField("HashVersion", v1alpha1.HashVersion), HaveField("Generation", mark.Generation)))
		e.Expect(e.starts()).To(Equal(1))
	})
}

// A refresh does not begin while an earlier one is in progress on a host.
func TestRefreshDueInProgress(t *testing.T) {
	simulated(t, 2, func(e *env, p *process) {
		prepareTemplates(e, oneAtATime, timeout(2*time.Hour), func(p *v1alpha1.Preparation) { p.RefreshAfter = &metav1.Duration{Duration: time.Hour} })
		p.reconcileUntil(func(g Gomega) {
			if e.starts() == 1 {
				e.builders.set(pvesim.Script{}) // the second one does not power off
			}
			g.Expect(p.report().Zones).To(HaveLen(1))
			g.Expect(e.starts()).To(Equal(2))
		})
		e.Clock.Advance(time.Hour)
		due, after := p.RefreshDue(e.desired())
		e.Expect(due).To(BeFalse())
		e.Expect(after).To(BeZero())
		e.Clock.Advance(time.Hour)
		p.reconcileUntil(func(g Gomega) { g.Expect(p.report().Failing).To(BeTrue()) })
		due, _ = p.RefreshDue(e.desired())
		e.Expect(due).To(BeTrue(), "it failed")
	})
}

// A builder VM that powers off too early is found by the first check.
func TestPrepareFirstCheck(t *testing.T) {
	simulated(t, 1, func(e *env, _ *process) {
		prepareForever(e)
		e.builders.minimum = 10 * time.Second
		p := e.process()
		e.Expect(p.ReconcileHost(e.T.Context(), e.desired(), region, "pve1", e.usage)).To(Equal(8 * time.Second))
		e.Expect(p.events.Messages(v1alpha1.EventTemplatePreparing)).To(HaveLen(1))
	})
}

// A host in maintenance starts no builder VM.
func TestPrepareInMaintenance(t *testing.T) {
	simulated(t, 1, func(e *env, p *process) {
		prepareTemplates(e)
		p.Inventory().SetMaintenance(declared.Maintenance{pve1: "new memory"})
		e.Expect(p.reconcile(e.T.Context(), "pve1")).To(Succeed())
		e.Expect(p.report().Message).To(Equal("pve1: the host is in maintenance (requested in Kubernetes: new memory); its template is prepared afterwards"))
		e.Expect(e.guests()).To(BeEmpty())
		p.Inventory().SetMaintenance(nil)
		p.build()
	})
}

// A builder VM that was started before the maintenance is completed, even if another host could
// build the template.
func TestPrepareBeforeMaintenance(t *testing.T) {
	t.Parallel()
	for name, storages := range map[string][]string{"local_storage": {"local", "local-lvm"}, "shared_storage": {"shared", "local"}} {
		testenv.RunSimulated(t, name, func(t *testing.T) {
			e := newEnv(t, 2, sharedStorage("rbd", "images"))
			prepareTemplates(e, oneAtATime)
			e.useStorages(storages...)
			e.builders.set(pvesim.Script{})
			p := e.process()
			e.Expect(p.reconcile(t.Context(), "pve1")).To(Succeed())
			vmid := p.reconcileUntilRunning()
			p.reconcileUntilListed(vmid)
			p.Inventory().SetMaintenance(declared.Maintenance{pve1: ""})
			p.reconcileUntilListed(vmid)
			e.Expect(p.report().Message).To(ContainSubstring("pve1: preparing: builder VM"))
			e.Expect(e.Sim.PowerOffGuest(vmid)).To(Succeed())
			p.reconcileUntil(func(g Gomega) {
				g.Expect(p.report().Zones).To(ContainElement(v1alpha1.TemplateZone{Region: region, Host: "pve1", VMID: vmid}))
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
	simulated(t, 1, func(e *env, _ *process) {
		e.updateSpec(func(s *v1alpha1.ProxmoxTemplateSpec) { s.Tags = []string{"karpenter"} })
		p := e.processOf(kubeCluster, withoutMarks{e.Client})
		p.reconcileUntil(func(g Gomega) { g.Expect(e.Sim.CountRequests("POST", "/nodes/{node}/qemu")).To(Equal(1)) }, "pve1")
		e.Expect(e.Sim.CountRequests("POST", "/nodes/{node}/qemu/{vmid}/template")).To(BeZero())
		e.Expect(e.listObjects()).To(ContainElement(HavePrefix("pve1/1000 ")))
	})
}

// A builder VM on shared storage stays when the first host returns.
func TestPrepareOnSharedStorageStays(t *testing.T) {
	simulated(t, 2, func(e *env, p *process) {
		prepareTemplates(e)
		e.useStorages("shared", "local")
		e.builders.set(pvesim.Script{})
		e.Expect(e.Sim.HostDown("pve1", "refused")).To(Succeed())
		vmid := p.reconcileUntilRunning()
		p.reconcileUntilListed(vmid)
		e.Expect(e.Sim.HostUp("pve1")).To(Succeed())
		p.reconcileUntil(func(g Gomega) {
			g.Expect(p.Inventory().View().Snapshots[region].Hosts["pve1"].Online).To(BeTrue())
		})
		for range 3 {
			p.reconcileUntilListed(vmid)
		}
		e.Expect(e.starts()).To(Equal(1))
		p.deleteAll()
	}, sharedStorage("rbd", "images"))
}
