// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package template_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/template"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

// exclude excludes the Hosts that match a pattern and no others.
func (p *process) exclude(pattern string) {
	p.env.t.Helper()
	settings, err := inventory.ParseSettings([]byte(fmt.Sprintf(`{"*": {%q: {"excluded": true}}}`, pattern)))
	p.env.Expect(err).NotTo(HaveOccurred())
	p.Inventory().SetSettings(settings)
}

// forEachKind runs a test for each kind of template, with two hosts.
func forEachKind(t *testing.T, test func(e *env, shared bool)) {
	t.Helper()
	for name, kind := range map[string]struct{ shared, prepare bool }{
		"local_storage": {}, "shared_storage": {shared: true}, "prepared": {prepare: true}, "prepared_shared_storage": {shared: true, prepare: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := newEnv(t, 2, sharedStorage("rbd", "images"))
			if kind.shared {
				e.updateSpec(func(s *v1alpha1.ProxmoxTemplateSpec) { s.StorageIDs = []string{"shared", "local"} })
			}
			if kind.prepare {
				prepareTemplates(e)
			}
			test(e, kind.shared)
		})
	}
}

// An excluded host gets no image, template or builder VM.
func TestExcludedHost(t *testing.T) {
	t.Parallel()
	forEachKind(t, func(e *env, shared bool) {
		p := e.process()
		p.exclude("pve1")
		e.Expect(p.HostsToKeepAwake(e.desired(), func(string, int) string { return "" })).To(ConsistOf(HaveField("Host", "pve2")))
		e.Expect(p.PendingHosts(e.desired())).To(ConsistOf(HaveField("Host", "pve2")))
		report := p.reconcileUntilComplete()
		e.Expect(report.Message).To(BeEmpty())
		e.Expect(template.ListOwned(p.Inventory().View(), kubeCluster, uid)).To(ConsistOf(HaveField("Host", "pve2")))
		guests, images, disks := e.createdObjects()
		e.Expect(slices.Concat(guests, images, disks)).NotTo(ContainElement(HavePrefix("pve1/")))
		e.Expect(e.sim.CountRequests("POST", "/nodes/pve1/storage/*/*")).To(BeZero())

		p.exclude("none")
		if shared {
			e.Expect(p.report().Complete).To(BeTrue(), "it serves all hosts")
		} else {
			e.Expect(p.PendingHosts(e.desired())).To(ContainElement(HaveField("Host", "pve1")))
			e.Expect(p.reconcileUntilComplete().Zones).To(HaveLen(2))
		}
		p.exclude("pve1")
		p.deleteUntilGone()
		e.Expect(e.listObjects()).To(Equal(e.initial), "also from the excluded host")
	})
}

// What an excluded host lacks is not reported.
func TestExcludedHostWithoutBridge(t *testing.T) {
	t.Parallel()
	e := newEnv(t, 2, func(s *pvesim.Scenario) { s.Hosts[0].Bridges[0].Name = "vmbr7" })
	p := e.process()
	e.Expect(p.report().Message).To(ContainSubstring("pve1: bridge"))
	p.exclude("pve1")
	e.Expect(p.reconcileUntilComplete().Zones).To(ConsistOf(HaveField("Host", "pve2")))
	e.Expect(p.report().FailedFacts).To(BeEmpty())
}

func TestExcludedHostAll(t *testing.T) {
	t.Parallel()
	e := newEnv(t, 2)
	p := e.process()
	p.exclude("*")
	report := p.report()
	e.Expect([]bool{report.Complete, report.Failing}).To(Equal([]bool{false, true}))
	e.Expect(report.Message).To(Equal("no template is built, because all hosts are excluded by settings; set excluded to false for a host"))
}

// A template stays on a host that is excluded later, and a shared one is used by other hosts.
func TestExcludedHostKeepsTemplate(t *testing.T) {
	t.Parallel()
	forEachKind(t, func(e *env, shared bool) {
		p := e.process()
		before, objects := p.reconcileUntilComplete(), e.listObjects()
		e.Expect(before.Zones).To(HaveLen(2))
		p.exclude("pve1")
		for range 3 {
			e.Expect(p.reconcileUntilComplete().Zones).To(Equal(before.Zones))
		}
		e.Expect(e.listObjects()).To(Equal(objects))

		// A new generation is built on the other host only.
		zones := make([]string, 0, len(before.Zones))
		for _, zone := range before.Zones {
			zones, e.inUse[zone.VMID] = append(zones, zone.String()), "in the status"
		}
		e.updateSpec(func(s *v1alpha1.ProxmoxTemplateSpec) { s.SourceImage.URL = e.images.URL + "/other.img" })
		p.reconcileUntilComplete()
		after := p.report(zones...)
		e.Expect(after.Zones).To(HaveLen(2))
		e.Expect(after.Zones[1].VMID).NotTo(Equal(before.Zones[1].VMID))
		isOld := Equal(before.Zones[0].VMID)
		if shared {
			isOld = Equal(after.Zones[1].VMID)
		}
		e.Expect(after.Zones[0].VMID).To(isOld)
		clear(e.inUse)
		p.deleteUntilGone()
		e.Expect(e.listObjects()).To(Equal(e.initial))
	})
}

// A shared template on an excluded host that was built again elsewhere, while the host was
// offline, is not deleted before the host is in service.
func TestExcludedHostKeepsSurplus(t *testing.T) {
	t.Parallel()
	e := newEnv(t, 2, sharedStorage("rbd", "images"))
	e.updateSpec(func(s *v1alpha1.ProxmoxTemplateSpec) { s.StorageIDs = []string{"shared", "local"} })
	p := e.process()
	p.reconcileUntilComplete()
	hosts := func() (out []string) {
		for _, owned := range template.ListOwned(p.Inventory().View(), kubeCluster, uid) {
			out = append(out, owned.Host)
		}
		return out
	}
	e.Expect(hosts()).To(ConsistOf("pve1"))
	p.exclude("pve1")
	e.Expect(e.sim.HostDown("pve1", "refused")).To(Succeed())
	p.reconcileUntil(func(g Gomega) { g.Expect(hosts()).To(ConsistOf("pve1", "pve2")) })
	e.Expect(e.sim.HostUp("pve1")).To(Succeed())
	p.reconcileUntil(func(g Gomega) { g.Expect(p.Inventory().View().Snapshots[region].Hosts["pve1"].Online).To(BeTrue()) })
	for range 3 {
		p.reconcileUntilComplete()
	}
	e.Expect(hosts()).To(ConsistOf("pve1", "pve2"))
	p.exclude("none")
	p.reconcileUntil(func(g Gomega) { g.Expect(hosts()).To(HaveLen(1)) })
}

// A build that began before the host was excluded is completed.
func TestExcludedHostCompletesBuild(t *testing.T) {
	t.Parallel()
	e := newEnv(t, 1)
	prepareTemplates(e)
	e.builders.set(pvesim.Script{})
	p := e.process()
	vmid := p.reconcileUntilRunning()
	p.exclude("pve1")
	p.reconcileUntilListed(vmid)
	e.Expect(e.sim.PowerOffGuest(vmid)).To(Succeed())
	e.Expect(p.reconcileUntilComplete().Zones).To(ConsistOf(HaveField("VMID", vmid)))
	e.Expect(strings.Join(p.events.Messages(v1alpha1.EventTemplatePrepared), "")).To(ContainSubstring("builder VM %d", vmid))
}

// failBuilder fails the builder VM 1000 on pve1, one of two hosts. The returned process, which
// has read its notes, excludes the host; with early, it was excluded before the failure too.
func failBuilder(e *env, early bool, faults ...pvesim.Fault) *process {
	e.t.Helper()
	exclude := func() *process {
		p := e.process()
		p.exclude("pve1")
		return p
	}
	e.builders.set(pvesim.Script{})
	p := e.process()
	p.reconcileFirstHostUntil(func(g Gomega) { g.Expect(e.sim.CountRequests("POST", startPath)).To(Equal(1)) })
	if early {
		p = exclude()
	}
	for _, fault := range faults {
		testenv.AddFault(e.t, e.sim, fault)
	}
	e.builders.clock.Advance(31 * time.Minute)
	e.Expect(p.reconcile(e.t.Context(), "pve1")).To(Succeed())
	e.Expect(e.mark(1000).Builder.Failed).NotTo(BeZero())
	e.builders.set(newBuilders().script)
	return exclude()
}

// requeueAfter runs on pve1 and advances the clock to the time of the next run.
func (p *process) requeueAfter() {
	p.env.t.Helper()
	after, err := p.ReconcileHost(p.env.t.Context(), p.env.desired(), region, "pve1", p.env.usage)
	p.env.Expect(err).NotTo(HaveOccurred())
	p.env.Expect(after).To(And(BeNumerically(">", 0), BeNumerically("<=", time.Hour)))
	p.env.builders.clock.Advance(after)
}

// A failed builder VM on an excluded host is deleted after its retention and not recreated. It
// does not block other hosts.
func TestExcludedHostFailedBuilder(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		early, deleted bool
		change         func(*v1alpha1.Preparation)
		faults         []pvesim.Fault
	}{
		"excluded_before_failure": {early: true},
		"excluded_after_failure":  {},
		"not_kept": {
			deleted: true,
			change:  func(p *v1alpha1.Preparation) { p.KeepFailed = &metav1.Duration{} },
			faults:  []pvesim.Fault{{Method: "DELETE", Path: "/nodes/*/qemu/*", Status: 500, Message: "can't lock file - got timeout", Count: 1}},
		},
		"one_at_a_time": {
			change: func(p *v1alpha1.Preparation) { p.MaxConcurrent = 1 },
			faults: []pvesim.Fault{{Task: "qmstop", Fail: "got timeout", Count: 1}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := newEnv(t, 2)
			prepareTemplates(e)
			if test.change != nil {
				e.updateSpec(func(s *v1alpha1.ProxmoxTemplateSpec) { test.change(s.Prepare) })
			}
			p := failBuilder(e, test.early, test.faults...)
			e.Expect(p.reconcile(t.Context(), "pve1")).To(Succeed())
			p.reconcileUntilComplete()
			if !test.deleted {
				e.Expect(e.bootDrives()).To(HaveLen(1))
				p.requeueAfter()
				e.Expect(p.reconcile(t.Context(), "pve1")).To(Succeed())
			}
			guests, _, _ := e.createdObjects()
			e.Expect(guests).To(ConsistOf(HavePrefix("pve2/")))
			e.Expect(e.bootDrives()).To(BeEmpty())
			e.builders.clock.Advance(time.Hour)
			for range 3 {
				p.reconcileUntilComplete()
			}
			e.Expect(e.sim.CountRequests("POST", "/nodes/pve1/qemu")).To(Equal(1), "not recreated")
			p.deleteUntilGone()
			e.Expect(e.listObjects()).To(Equal(e.initial))
		})
	}
}

func TestExcludedHostFailedBuilderProtected(t *testing.T) {
	t.Parallel()
	e := newEnv(t, 2)
	prepareTemplates(e)
	p := failBuilder(e, false)
	protect := func(protection string) {
		e.Expect(e.reader.UpdateVM(t.Context(), "pve1", 1000, proxmox.ConfigChange{Set: map[string]string{"protection": protection}})).To(Succeed())
	}
	protect("1")
	p.requeueAfter()
	p.requeueAfter() // the deletion is retried
	e.Expect(e.config("pve1", 1000).Protected()).To(BeTrue())
	e.Expect(e.bootDrives()).To(HaveLen(1))
	protect("0")
	e.Expect(p.reconcile(t.Context(), "pve1")).To(Succeed())
	guests, _, _ := e.createdObjects()
	e.Expect(guests).To(BeEmpty())
	e.Expect(e.bootDrives()).To(BeEmpty())
}
