// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package template_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/declared"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

// exclude excludes the Hosts that match a pattern and no others.
func (p *process) exclude(pattern string) {
	p.env.T.Helper()
	settings, err := declared.ParseSettings([]byte(fmt.Sprintf(`{"*": {%q: {"excluded": true}}}`, pattern)))
	p.env.Expect(err).NotTo(HaveOccurred())
	p.Inventory().SetSettings(settings)
}

// forEachKind runs a test for each kind of template, with two hosts.
func forEachKind(t *testing.T, test func(e *env, p *process, shared bool)) {
	t.Helper()
	for name, kind := range map[string]struct{ shared, prepare bool }{
		"local_storage": {}, "shared_storage": {shared: true}, "prepared": {prepare: true}, "prepared_shared_storage": {shared: true, prepare: true},
	} {
		testenv.RunSimulated(t, name, func(t *testing.T) {
			e := newEnv(t, 2, sharedStorage("rbd", "images"))
			if kind.shared {
				e.useStorages("shared", "local")
			}
			if kind.prepare {
				prepareTemplates(e)
			}
			test(e, e.process(), kind.shared)
		})
	}
}

// An excluded host gets no image, template or builder VM. A template stays on a host that is excluded later, and a
// shared one is used by other hosts.
func TestExcludedHost(t *testing.T) {
	t.Parallel()
	forEachKind(t, func(e *env, p *process, shared bool) {
		p.exclude("pve2")
		e.Expect(p.hostsToKeepAwake()).To(ConsistOf(pve1))
		e.Expect(p.PendingHosts(e.desired())).To(ConsistOf(HaveField("Host", "pve1")))
		e.Expect(p.reconcileUntilComplete().Message).To(BeEmpty())
		e.Expect(p.hosts()).To(ConsistOf("pve1"))
		e.Expect(slices.Concat(e.guests(), e.imageFiles(), e.disks())).NotTo(ContainElement(HavePrefix("pve2/")))
		e.Expect(e.Sim.CountRequests("POST", "/nodes/pve2/storage/*/*")).To(BeZero())

		p.exclude("none")
		if shared {
			e.Expect(p.report().Complete).To(BeTrue(), "it serves all hosts")
		} else {
			e.Expect(p.PendingHosts(e.desired())).To(ContainElement(HaveField("Host", "pve2")))
		}
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
		e.replaceImage()
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
		p.deleteAll() // also from the excluded host
	})
}

// What an excluded host lacks is not reported.
func TestExcludedHostWithoutBridge(t *testing.T) {
	simulated(t, 2, func(e *env, p *process) {
		e.Expect(p.report().Message).To(ContainSubstring("pve1: bridge"))
		p.exclude("pve1")
		e.Expect(p.build().Host).To(Equal("pve2"))
		e.Expect(p.report().FailedFacts).To(BeEmpty())

		p.exclude("*")
		e.Expect(p.report()).To(And(HaveField("Complete", true), HaveField("Failing", false)), "it has its template")
		e.replaceImage()
		e.Expect(p.report()).To(And(HaveField("Complete", false), HaveField("Failing", true),
			HaveField("Message", "no template is built, because all hosts are excluded by settings; set excluded to false for a host")))
	}, func(s *pvesim.Scenario) { s.Hosts[0].Bridges[0].Name = "vmbr7" })
}

// hosts returns the Hosts of the templates.
func (p *process) hosts() (out []string) {
	for _, owned := range p.owned() {
		out = append(out, owned.Host)
	}
	return out
}

// A shared template on an excluded host that was built again elsewhere, while the host was
// offline, is not deleted before the host is in service.
func TestExcludedHostKeepsSurplus(t *testing.T) {
	simulated(t, 2, func(e *env, p *process) {
		e.useStorages("shared", "local")
		p.reconcileUntilComplete()
		e.Expect(p.hosts()).To(ConsistOf("pve1"))
		p.exclude("pve1")
		e.Expect(e.Sim.HostDown("pve1", "refused")).To(Succeed())
		p.reconcileUntil(func(g Gomega) { g.Expect(p.hosts()).To(ConsistOf("pve1", "pve2")) })
		e.Expect(e.Sim.HostUp("pve1")).To(Succeed())
		p.reconcileUntil(func(g Gomega) { g.Expect(p.Inventory().View().Snapshots[region].Hosts["pve1"].Online).To(BeTrue()) })
		for range 3 {
			p.reconcileUntilComplete()
		}
		e.Expect(p.hosts()).To(ConsistOf("pve1", "pve2"))
		p.exclude("none")
		p.reconcileUntil(func(g Gomega) { g.Expect(p.hosts()).To(HaveLen(1)) })
	}, sharedStorage("rbd", "images"))
}

// A build that began before the host was excluded is completed.
func TestExcludedHostCompletesBuild(t *testing.T) {
	simulated(t, 1, func(e *env, p *process) {
		prepareForever(e)
		vmid := p.reconcileUntilRunning()
		p.exclude("pve1")
		p.reconcileUntilListed(vmid)
		e.Expect(e.Sim.PowerOffGuest(vmid)).To(Succeed())
		e.Expect(p.build().VMID).To(Equal(vmid))
		e.Expect(p.events.Messages(v1alpha1.EventTemplatePrepared)).To(ConsistOf(ContainSubstring("builder VM %d", vmid)))
	})
}

// failBuilder fails the builder VM 1000 on pve1, one of two hosts. The returned process, which
// has read its notes, excludes the host; with early, it was excluded before the failure too.
func failBuilder(e *env, early bool, faults ...pvesim.Fault) *process {
	e.T.Helper()
	exclude := func() *process {
		p := e.process()
		p.exclude("pve1")
		return p
	}
	e.builders.set(pvesim.Script{})
	p := e.process()
	p.reconcileUntil(func(g Gomega) { g.Expect(e.Sim.CountRequests("POST", startPath)).To(Equal(1)) }, "pve1")
	if early {
		p = exclude()
	}
	for _, fault := range faults {
		e.AddFault(fault)
	}
	e.Clock.Advance(31 * time.Minute)
	e.Expect(p.reconcile(e.T.Context(), "pve1")).To(Succeed())
	e.Expect(e.mark(1000).Builder.Failed).NotTo(BeZero())
	e.builders.set(newBuilders().script)
	return exclude()
}

// requeueAfter runs on pve1 and advances the clock to the time of the next run.
func (p *process) requeueAfter() {
	p.env.T.Helper()
	after, err := p.ReconcileHost(p.env.T.Context(), p.env.desired(), region, "pve1", p.env.usage)
	p.env.Expect(err).NotTo(HaveOccurred())
	p.env.Expect(after).To(And(BeNumerically(">", 0), BeNumerically("<=", time.Hour)))
	p.env.Clock.Advance(after)
}

// A failed builder VM on an excluded host is deleted after its retention and not recreated. It
// does not block other hosts.
func TestExcludedHostFailedBuilder(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		early  bool
		change func(*v1alpha1.Preparation)
		faults []pvesim.Fault
	}{
		"excluded_before_failure": {early: true},
		"excluded_after_failure":  {},
		"one_at_a_time": {
			change: oneAtATime,
			faults: []pvesim.Fault{{Task: "qmstop", Fail: "got timeout", Count: 1}},
		},
	} {
		testenv.RunSimulated(t, name, func(t *testing.T) {
			e := newEnv(t, 2)
			prepareTemplates(e)
			if test.change != nil {
				test.change(e.object.Spec.Prepare)
			}
			p := failBuilder(e, test.early, test.faults...)
			e.Expect(p.reconcile(t.Context(), "pve1")).To(Succeed())
			p.reconcileUntilComplete()
			e.Expect(e.bootDrives()).To(HaveLen(1))
			p.requeueAfter()
			e.Expect(p.reconcile(t.Context(), "pve1")).To(Succeed())
			e.Expect(e.guests()).To(ConsistOf(HavePrefix("pve2/")))
			e.Expect(e.bootDrives()).To(BeEmpty())
			e.Clock.Advance(time.Hour)
			for range 3 {
				p.reconcileUntilComplete()
			}
			e.Expect(e.Sim.CountRequests("POST", "/nodes/pve1/qemu")).To(Equal(1), "not recreated")
			p.deleteAll()
		})
	}
}

func TestExcludedHostFailedBuilderProtected(t *testing.T) {
	simulated(t, 2, func(e *env, _ *process) {
		prepareTemplates(e)
		p := failBuilder(e, false)
		e.setOption(1000, "protection", "1")
		p.requeueAfter()
		p.requeueAfter() // the deletion is retried
		e.Expect(e.config("pve1", 1000).Protected()).To(BeTrue())
		e.Expect(e.bootDrives()).To(HaveLen(1))
		e.setOption(1000, "protection", "0")
		e.Expect(p.reconcile(e.T.Context(), "pve1")).To(Succeed())
		e.Expect(e.guests()).To(BeEmpty())
		e.Expect(e.bootDrives()).To(BeEmpty())
	})
}
