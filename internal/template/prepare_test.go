// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package template_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

// reconcileUntilRunning reconciles until a builder VM runs on pve1, and returns its VMID.
func (p *process) reconcileUntilRunning() int {
	p.env.t.Helper()
	vmid := 0
	p.reconcileUntil(func(g Gomega) {
		g.Expect(p.report().Message).To(ContainSubstring("preparing: builder VM "))
		for _, guest := range p.env.sim.Guests() {
			if guest.Name == p.env.object.Name && guest.Status == "running" {
				vmid = guest.VMID
			}
		}
		g.Expect(vmid).NotTo(BeZero())
	})
	return vmid
}

func TestPrepare(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		hosts     int
		storages  []string
		templates int
	}{
		"local_storage":  {3, []string{"local", "local-lvm"}, 3},
		"shared_storage": {3, []string{"shared", "local"}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := newEnv(t, test.hosts, sharedStorage("rbd", "images"))
			prepareTemplates(e, func(p *v1alpha1.Preparation) {
				p.Size, p.MaxConcurrent, p.DiskSize = v1alpha1.VMSize{CPU: 3, Memory: "3Gi"}, 1, "8G"
			})
			e.updateSpec(func(s *v1alpha1.ProxmoxTemplateSpec) {
				s.StorageIDs, s.OnBoot, s.Tags = test.storages, new(true), []string{"karpenter"}
			})
			p := e.process()
			report := p.reconcileUntilComplete()
			e.Expect(report.Zones).To(HaveLen(test.hosts))
			guests, _, disks := e.createdObjects()
			e.Expect(guests).To(HaveLen(test.templates))
			e.Expect(disks).To(HaveLen(2*test.templates), "a disk and a cloud-init drive each, and no boot drive")
			e.Expect(e.builders.most).To(Equal(1), "spec.prepare.maxConcurrent")
			for _, guest := range e.sim.Guests() {
				if !slices.ContainsFunc(report.Zones, func(zone v1alpha1.TemplateZone) bool { return zone.VMID == guest.VMID }) {
					continue
				}
				config := e.config(guest.Host, guest.VMID)
				e.Expect(config.IsTemplate()).To(BeTrue())
				e.Expect(config.Options).To(And(
					HaveKeyWithValue("cores", "1"), HaveKeyWithValue("memory", "1024"), HaveKeyWithValue("boot", "order=scsi0"),
					HaveKeyWithValue("onboot", "1"), HaveKeyWithValue("tags", "karpenter"), HaveKeyWithValue("scsi30", ContainSubstring("cloudinit")),
					HaveKeyWithValue("scsi0", ContainSubstring("size=7630M")), HaveKeyWithValue("description", Not(ContainSubstring("builder"))),
				))
				for _, reason := range []string{v1alpha1.EventTemplatePreparing, v1alpha1.EventTemplatePrepared} {
					e.Expect(p.events.Messages(reason)).To(And(
						HaveLen(test.templates), ContainElement(ContainSubstring("builder VM %d on host %s", guest.VMID, guest.Host))))
				}
			}
			e.Expect(e.builders.data.Resources.CPU).To(BeEquivalentTo(3))
			e.Expect(e.builders.data.Network.Interfaces).To(ConsistOf(HaveField("MacAddr", Not(BeEmpty()))))
			p.deleteUntilGone()
			e.Expect(e.listObjects()).To(Equal(e.initial))
		})
	}
}

// A change of the boot data is rolled out like that of an image: each host can launch at
// every moment, and the old templates are deleted.
func TestPrepareChangedBootData(t *testing.T) {
	t.Parallel()
	e := newEnv(t, 3)
	prepareTemplates(e)
	p := e.process()
	var zones []string
	for _, zone := range p.reconcileUntilComplete().Zones {
		zones = append(zones, zone.String())
		e.inUse[zone.VMID] = "in the status"
	}
	before := p.report(zones...)
	e.setContent("install more")
	p.reconcileUntil(func(g Gomega) {
		report := p.report(zones...)
		e.Expect(report.Zones).To(HaveLen(3), "at every moment")
		if !report.Complete {
			e.Expect(report.Zones).To(Equal(before.Zones), "until the new generation is on every host")
		}
		g.Expect(report.Complete).To(BeTrue(), report.Message)
	})
	after := p.report(zones...)
	for _, zone := range after.Zones {
		e.Expect(before.Zones).NotTo(ContainElement(zone))
	}
	clear(e.inUse)
	p.reconcileUntil(func(g Gomega) {
		guests, _, _ := e.createdObjects()
		g.Expect(guests).To(HaveLen(3))
	})
	e.Expect(e.bootDrives()).To(BeEmpty())
}

// A builder VM of a changed or deleted ProxmoxTemplate is stopped and deleted.
func TestPrepareSuperseded(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(e *env, p *process){
		"deleted": func(_ *env, p *process) { p.deleteUntilGone() },
		"not_prepared_any_more": func(e *env, p *process) {
			e.updateSpec(func(s *v1alpha1.ProxmoxTemplateSpec) { s.Prepare = nil })
			p.reconcileUntilComplete()
			p.deleteUntilGone()
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := newEnv(t, 1)
			prepareTemplates(e)
			e.builders.set(pvesim.Script{})
			p := e.process()
			p.reconcileUntilRunning()
			change(e, p)
			e.Expect(e.listObjects()).To(Equal(e.initial))
		})
	}
}

func TestPrepareInvalid(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		change func(e *env)
		want   string
	}{
		"disk_too_small": {
			func(e *env) { e.object.Spec.Prepare.DiskSize = "1Gi" },
			"pve1: spec.prepare.diskSize 1Gi is smaller than the disk of the image, which has 2048 MiB: set a larger size, or remove it",
		},
		"unreadable_Secret": {
			func(e *env) {
				e.builders.err = errors.New("reading secret a/b of spec.prepare.templatesRef: not found")
			},
			"pve1: reading secret a/b of spec.prepare.templatesRef: not found",
		},
		"unknown_storage": {
			func(e *env) { e.object.Spec.Prepare.Storage = "nfs" },
			`pve1: spec.prepare.storage "nfs" is not on this host, which has local, local-lvm`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := newEnv(t, 1)
			prepareTemplates(e)
			test.change(e)
			p := e.process()
			p.reconcileUntil(func(g Gomega) { g.Expect(p.report().Message).To(Equal(test.want)) })
			e.Expect(p.report().Failing).To(BeTrue())
			p.deleteUntilGone()
			e.Expect(e.listObjects()).To(Equal(e.initial))
		})
	}
}

// Templates that have reached the age of spec.prepare.refreshAfter are rebuilt.
func TestRefreshDue(t *testing.T) {
	t.Parallel()
	e := newEnv(t, 1)
	prepareTemplates(e, func(p *v1alpha1.Preparation) { p.RefreshAfter = &metav1.Duration{Duration: 24 * time.Hour} })
	p := e.process()
	due, _ := p.RefreshDue(e.desired())
	e.Expect(due).To(BeFalse(), "there is no template")
	old := p.reconcileUntilComplete().Zones[0]
	due, after := p.RefreshDue(e.desired())
	e.Expect(due).To(BeFalse())
	e.Expect(after).To(BeNumerically("~", 24*time.Hour, 10*time.Minute))
	e.builders.clock.Advance(24 * time.Hour)
	due, _ = p.RefreshDue(e.desired())
	e.Expect(due).To(BeTrue())

	e.object = e.object.DeepCopy()
	e.object.Status.Preparation.RefreshedAt = new(metav1.NewTime(p.Now()))
	due, _ = p.RefreshDue(e.desired())
	e.Expect(due).To(BeFalse(), "it has started")
	report := p.reconcileUntilComplete()
	e.Expect(report.Zones[0].VMID).NotTo(Equal(old.VMID))
	due, _ = p.RefreshDue(e.desired())
	e.Expect(due).To(BeFalse(), "even if the clock of the host is a day behind")
	e.Expect(e.mark(report.Zones[0].VMID).Generation).NotTo(BeEmpty())
}

func newCrashEnv(t *testing.T) *env {
	t.Helper()
	e := newEnv(t, 1, withAllResources("8.4"))
	withTagsAndPool(e)
	prepareTemplates(e, func(p *v1alpha1.Preparation) { p.DiskSize = "8G" })
	return e
}

// crashAtEveryCall calls begin, kills a controller at each call of the preparation that
// follows, and then calls run.
func crashAtEveryCall(t *testing.T, begin func(e *env, p *process), run func(e *env, n int)) {
	t.Helper()
	e := newCrashEnv(t)
	p := e.process()
	begin(e, p)
	calls, at := e.recordCalls(func() { p.reconcileUntilComplete() })
	atEveryCall(t, calls, at, func(t *testing.T, n int, after bool) {
		t.Helper()
		e := newCrashEnv(t)
		crashing := e.process()
		begin(e, crashing)
		ctx := testenv.KillAtRequest(e.t, e.sim, n, after)
		for deadline := time.Now().Add(10 * time.Second); ctx.Err() == nil && time.Now().Before(deadline); {
			_ = crashing.reconcile(ctx, "pve1")
			_ = crashing.Inventory().RefreshAll(ctx)
		}
		e.sim.ClearFaults()
		run(e, n)
	})
}

func nothing(*env, *process) {}

// While the boot data changes, the host has a template at every moment.
func TestPrepareChangedBootDataCrash(t *testing.T) {
	t.Parallel()
	change := func(e *env, p *process) {
		old := p.reconcileUntilComplete().Zones[0]
		e.inUse[old.VMID] = "in the status"
		e.setContent("install more")
	}
	crashAtEveryCall(t, change, func(e *env, _ int) {
		next := e.process()
		e.Expect(next.report().Zones).To(HaveLen(1))
		next.reconcileUntilComplete()
		clear(e.inUse)
		next.reconcileUntil(func(g Gomega) {
			guests, images, disks := e.createdObjects()
			g.Expect(guests).To(HaveLen(1))
			g.Expect(images).To(HaveLen(1))
			g.Expect(disks).To(HaveLen(2))
		})
		next.deleteUntilGone()
		e.Expect(e.listObjects()).To(Equal(e.initial), "no orphans")
	})
}

func TestPrepareCrashThenSuperseded(t *testing.T) {
	t.Parallel()
	crashAtEveryCall(t, nothing, func(e *env, n int) {
		next := e.process()
		if n%2 == 0 {
			e.setContent("install more")
			next.reconcileUntilComplete()
			next.reconcileUntil(func(g Gomega) {
				guests, _, disks := e.createdObjects()
				g.Expect(guests).To(HaveLen(1))
				g.Expect(disks).To(HaveLen(2))
			})
		}
		next.deleteUntilGone()
		e.Expect(e.listObjects()).To(Equal(e.initial), "no orphans")
	})
}

func TestPrepareCrash(t *testing.T) {
	t.Parallel()
	crashAtEveryCall(t, nothing, func(e *env, _ int) {
		next := e.process()
		zone := next.reconcileUntilComplete().Zones[0]
		guests, images, disks := e.createdObjects()
		e.Expect(guests).To(HaveLen(1), "one template")
		e.Expect(images).To(HaveLen(1))
		e.Expect(disks).To(HaveLen(2), "its disk and its cloud-init drive")
		options := e.config("pve1", zone.VMID).Options
		e.Expect(options).To(And(HaveKeyWithValue("tags", "karpenter"), HaveKeyWithValue("cores", "1")))
		e.Expect(strings.Count(options["description"], "builder")).To(BeZero())
		e.builders.mu.Lock()
		e.Expect(e.builders.booted).To(BeNumerically(">=", 1), "no template without a preparation")
		e.builders.mu.Unlock()
		next.deleteUntilGone()
		e.Expect(e.listObjects()).To(Equal(e.initial), "no orphans")
	})
}
