// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package template_test

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/template"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

func TestHostsToKeepAwake(t *testing.T) {
	t.Parallel()
	e := newEnv(t, 2)
	p := e.process()
	awake := func() []inventory.HostName {
		return p.HostsToKeepAwake(e.desired(), func(_ string, vmid int) string { return e.inUse[vmid] })
	}
	pve1, pve2 := inventory.HostName{Region: region, Host: "pve1"}, inventory.HostName{Region: region, Host: "pve2"}
	e.Expect(awake()).To(ConsistOf(pve1, pve2))
	p.reconcileUntilComplete()
	e.Expect(awake()).To(BeEmpty())

	p.Inventory().SetSleeping(map[inventory.HostName]inventory.Sleep{pve2: {State: inventory.Asleep}})
	e.updateSpec(func(s *v1alpha1.ProxmoxTemplateSpec) { s.SourceImage.URL += "?changed" })
	for range 2 {
		e.Expect(awake()).To(ConsistOf(pve1, pve2), "a template of another generation is needed")
	}
	p.Inventory().SetSleeping(nil)
	e.Expect(awake()).To(ConsistOf(pve1, pve2))
	p.Inventory().SetSleeping(map[inventory.HostName]inventory.Sleep{pve2: {State: inventory.Asleep}})
	e.Expect(awake()).To(ConsistOf(pve1), "it was woken once")

	e.object = e.object.DeepCopy()
	e.object.DeletionTimestamp = new(metav1.Now())
	e.Expect(awake()).To(ConsistOf(pve1, pve2))
	for _, owned := range template.ListOwned(p.Inventory().View(), kubeCluster, uid) {
		e.inUse[owned.VMID] = "a node is a linked clone of it"
	}
	e.Expect(awake()).To(BeEmpty(), "it cannot be deleted yet")
}

// A host may sleep without its template after ten failures, and is woken for another version.
func TestHostsMaySleepAfterFailures(t *testing.T) {
	t.Parallel()
	for name, fail := range map[string]func(*env, *process){
		"build": func(e *env, _ *process) {
			testenv.AddFault(e.t, e.sim, pvesim.Fault{Method: "POST", Path: "/nodes/*/qemu", Status: 500, Message: "storage is broken"})
		},
		"preparation": func(e *env, _ *process) {
			prepareTemplates(e)
			e.builders.set(pvesim.Script{}) // its guest never powers off
		},
		"deletion": func(e *env, p *process) {
			p.reconcileUntilComplete()
			testenv.AddFault(e.t, e.sim, pvesim.Fault{Method: "DELETE", Path: "/nodes/*/qemu/*", Status: 500, Message: "storage is broken"})
			e.object = e.object.DeepCopy()
			e.object.DeletionTimestamp = new(metav1.Now())
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := newEnv(t, 1)
			p := e.process()
			fail(e, p)
			pve1 := inventory.HostName{Region: region, Host: "pve1"}
			awake := func() []inventory.HostName {
				return p.HostsToKeepAwake(e.desired(), func(string, int) string { return "" })
			}
			e.Expect(awake()).To(ConsistOf(pve1))
			p.reconcileUntil(func(g Gomega) {
				e.builders.clock.Advance(31 * time.Minute)
				g.Expect(awake()).To(BeEmpty())
			})
			p.Inventory().SetSleeping(map[inventory.HostName]inventory.Sleep{pve1: {State: inventory.Asleep}})
			e.Expect(awake()).To(BeEmpty())
			if e.object.DeletionTimestamp == nil {
				e.updateSpec(func(s *v1alpha1.ProxmoxTemplateSpec) { s.Network = nil }) // not in the hash
				e.Expect(awake()).To(ConsistOf(pve1))
			}
		})
	}
}

// A new leader sends no request to a host that may be asleep before it has read the records.
func TestReconcileHostOldRecords(t *testing.T) {
	t.Parallel()
	e := newEnv(t, 1)
	p := e.process()
	settings, err := inventory.ParseSettings([]byte(`{"*": {"*": {"powermanagement": "Enabled"}}}`))
	e.Expect(err).NotTo(HaveOccurred())
	p.Inventory().SetSettings(settings)
	p.Inventory().SetSleepingOutdated(nil)
	e.Expect(p.reconcile(t.Context(), "pve1")).To(Succeed())
	e.Expect(e.sim.CountRequests("POST", "/nodes/*/*")).To(BeZero())
	e.Expect(e.sim.CountRequests("POST", "/nodes/*/storage/*/*")).To(BeZero())
	p.Inventory().SetSleeping(nil)
	p.reconcileUntilComplete()
}
