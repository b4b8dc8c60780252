// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package template_test

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/declared"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/observed"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

var pve1, pve2 = observed.HostName{Region: region, Host: "pve1"}, observed.HostName{Region: region, Host: "pve2"}

// setAsleep makes only the given hosts sleep.
func (p *process) setAsleep(hosts ...observed.HostName) {
	asleep := map[observed.HostName]declared.Sleep{}
	for _, host := range hosts {
		asleep[host] = declared.Sleep{State: declared.Asleep}
	}
	p.Inventory().SetSleeping(asleep)
}

func (p *process) hostsToKeepAwake() []observed.HostName {
	return p.HostsToKeepAwake(p.env.desired(), p.env.usedBy)
}

func TestHostsToKeepAwake(t *testing.T) {
	simulated(t, 2, func(e *env, p *process) {
		e.Expect(p.hostsToKeepAwake()).To(ConsistOf(pve1, pve2))
		p.reconcileUntilComplete()
		e.Expect(p.hostsToKeepAwake()).To(BeEmpty())

		p.setAsleep(pve2)
		e.replaceImage()
		for range 2 {
			e.Expect(p.hostsToKeepAwake()).To(ConsistOf(pve1, pve2), "a template of another generation is needed")
		}
		p.setAsleep()
		e.Expect(p.hostsToKeepAwake()).To(ConsistOf(pve1, pve2))
		p.setAsleep(pve2)
		e.Expect(p.hostsToKeepAwake()).To(ConsistOf(pve1), "it was woken once")

		e.deleteObject()
		e.Expect(p.hostsToKeepAwake()).To(ConsistOf(pve1, pve2))
		for _, owned := range p.owned() {
			e.inUse[owned.VMID] = "a node is a linked clone of it"
		}
		e.Expect(p.hostsToKeepAwake()).To(BeEmpty(), "it cannot be deleted yet")
	})
}

// A host may sleep without its template after ten failures, and is woken for another version.
func TestHostsToKeepAwakeAfterFailures(t *testing.T) {
	t.Parallel()
	for name, fail := range map[string]func(*env, *process){
		"build": func(e *env, _ *process) {
			e.AddFault(pvesim.Fault{Method: "POST", Path: "/nodes/*/qemu", Status: 500, Message: "storage is broken"})
		},
		"preparation": func(e *env, _ *process) {
			prepareForever(e, notKept, timeout(time.Minute)) // its guest never powers off
		},
		"deletion": func(e *env, p *process) {
			p.build()
			e.AddFault(pvesim.Fault{Method: "DELETE", Path: "/nodes/*/qemu/*", Status: 500, Message: "storage is broken"})
			e.deleteObject()
		},
	} {
		testenv.RunSimulated(t, name, func(t *testing.T) {
			e := newEnv(t, 1)
			p := e.process()
			fail(e, p)
			e.Expect(p.hostsToKeepAwake()).To(ConsistOf(pve1))
			for n := 0; len(p.hostsToKeepAwake()) > 0; n++ {
				e.Expect(n).To(BeNumerically("<", 300))
				p.requeueAfter()
				p.refresh()
			}
			p.setAsleep(pve1)
			e.Expect(p.hostsToKeepAwake()).To(BeEmpty())
			if e.object.DeletionTimestamp == nil {
				e.updateSpec(func(s *v1alpha1.ProxmoxTemplateSpec) { s.Network = nil }) // not in the hash
				e.Expect(p.hostsToKeepAwake()).To(ConsistOf(pve1))
			}
		})
	}
}

// A new leader sends no request to a host that may be asleep before it has read the records.
func TestReconcileHostOldRecords(t *testing.T) {
	simulated(t, 1, func(e *env, p *process) {
		settings, err := declared.ParseSettings([]byte(`{"*": {"*": {"powermanagement": "Enabled"}}}`))
		e.Expect(err).NotTo(HaveOccurred())
		p.Inventory().SetSettings(settings)
		p.Inventory().SetSleepingOutdated(nil)
		e.Expect(p.run(e.T.Context())).To(Succeed())
		e.Expect(e.Sim.CountRequests("POST", "/nodes/*/*")).To(BeZero())
		e.Expect(e.Sim.CountRequests("POST", "/nodes/*/storage/*/*")).To(BeZero())
		p.setAsleep()
		p.build()
	})
}
