// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package template_test

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

func TestPrepareFailure(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		minimum time.Duration
		fail    func(e *env, vmid int)
		want    string
	}{
		"timeout": {
			fail: func(e *env, _ int) { e.builders.clock.Advance(31 * time.Minute) },
			want: "it did not power itself off within spec.prepare.timeout 30m0s",
		},
		"early_power_off": {
			minimum: time.Hour,
			fail:    func(e *env, vmid int) { e.Expect(e.sim.PowerOffGuest(vmid)).To(Succeed()) },
			want:    "which is too early for an installation",
		},
		"stopped_by_an_administrator": {
			fail: func(e *env, vmid int) { e.stopByHand(vmid) },
			want: "it was stopped by root@pam!admin (task qmstop)",
		},
		"stopped_by_a_task_that_fails": {
			fail: func(e *env, vmid int) {
				testenv.AddFault(e.t, e.sim, pvesim.Fault{Task: "qmstop", FailAfter: "got timeout", Count: 1})
				e.Expect(e.runAsAdmin(func(c proxmox.Client) (proxmox.UPID, error) { return c.StopVM(e.t.Context(), "pve1", vmid) }).Exit).To(Equal("got timeout"))
			},
			want: "it was stopped by root@pam!admin (task qmstop)",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := newEnv(t, 1, withAdmin)
			prepareTemplates(e)
			e.builders.set(pvesim.Script{})
			e.builders.minimum = test.minimum
			p := e.process()
			vmid := p.reconcileUntilRunning()
			test.fail(e, vmid)
			p.reconcileUntil(func(g Gomega) { g.Expect(p.report().Failing).To(BeTrue(), p.report().Message) })
			message := p.report().Message
			e.Expect(message).To(And(HavePrefix("pve1: preparing the template failed: builder VM 1000: "), ContainSubstring(test.want),
				ContainSubstring("; it is kept for inspection until "), ContainSubstring("; next attempt at ")))
			e.Expect(p.events.Messages(v1alpha1.EventTemplatePreparationFailed)).To(Equal([]string{message}))
			e.Expect(e.process().reconcile(t.Context(), "pve1")).To(Succeed())
			e.Expect(e.config("pve1", vmid).Description()).To(ContainSubstring(`"failed"`), "kept by a restarted controller")

			// Tasks have times in seconds, and the next builder VM gets the same VMID.
			failed := time.Now().Unix()
			e.Eventually(func() int64 { return time.Now().Unix() }).Should(BeNumerically(">", failed))
			e.builders.set(newBuilders().script)
			e.builders.clock.Advance(61 * time.Minute)
			e.builders.minimum = 0
			p = e.process()
			p.reconcileUntilComplete()
			p.deleteUntilGone()
			e.Expect(e.listObjects()).To(Equal(e.initial))
		})
	}
}

func TestPrepareFailureNotKept(t *testing.T) {
	t.Parallel()
	e := newEnv(t, 1)
	prepareTemplates(e, func(p *v1alpha1.Preparation) { p.KeepFailed = &metav1.Duration{} })
	e.builders.set(pvesim.Script{})
	p := e.process()
	vmid := p.reconcileUntilRunning()
	e.builders.clock.Advance(31 * time.Minute)
	p.reconcileUntil(func(g Gomega) {
		g.Expect(p.report().Message).To(ContainSubstring("; it is deleted; next attempt at "))
	})
	e.builders.set(newBuilders().script)
	// First, because the backoff passes in real time.
	e.Expect(p.reconcile(t.Context(), "pve1")).To(Succeed())
	e.Expect(e.sim.Guests()).NotTo(ContainElement(HaveField("VMID", vmid)), "not before the backoff")
	guests, _, _ := e.createdObjects()
	e.Expect(guests).To(BeEmpty())
	e.Expect(e.bootDrives()).To(BeEmpty())
	e.builders.clock.Advance(time.Minute)
	p.reconcileUntilComplete()
}

// A builder VM that failed and was stopped does not become the template if it cannot be
// destroyed at first.
func TestPrepareFailureNotDestroyed(t *testing.T) {
	t.Parallel()
	e := newEnv(t, 1)
	prepareTemplates(e, func(p *v1alpha1.Preparation) { p.KeepFailed = &metav1.Duration{} })
	e.builders.set(pvesim.Script{})
	p := e.process()
	p.reconcileUntilRunning()
	e.builders.set(newBuilders().script)
	testenv.AddFault(t, e.sim, pvesim.Fault{Method: "DELETE", Path: "/nodes/*/qemu/*", Status: 500, Message: "can't lock file - got timeout", Count: 1})
	e.builders.clock.Advance(31 * time.Minute)
	e.Expect(p.reconcile(t.Context(), "pve1")).To(Succeed())
	e.Expect(e.sim.Faults()[0].Hits).To(Equal(1))
	e.Expect(p.events.Messages(v1alpha1.EventTemplatePreparationFailed)).To(ConsistOf(ContainSubstring("spec.prepare.timeout")))

	p = e.process()
	e.builders.clock.Advance(5 * time.Minute)
	p.reconcileUntilComplete()
	e.Expect(e.sim.CountRequests("POST", "/nodes/{node}/qemu/{vmid}/status/start")).To(Equal(2), "another builder VM prepared it")
	p.deleteUntilGone()
	e.Expect(e.listObjects()).To(Equal(e.initial))
}

// An obsolete builder VM that was stopped to destroy it does not become the template if the
// change of the spec is reverted.
func TestPrepareObsoleteReverted(t *testing.T) {
	t.Parallel()
	e := newEnv(t, 1)
	prepareTemplates(e)
	e.builders.set(pvesim.Script{})
	p := e.process()
	p.reconcileUntilRunning()
	e.builders.set(newBuilders().script)
	testenv.AddFault(t, e.sim, pvesim.Fault{Method: "DELETE", Path: "/nodes/*/qemu/*", Status: 500, Message: "can't lock file - got timeout", Count: 1})
	before := e.object.Spec.SourceImage.URL
	e.updateSpec(func(s *v1alpha1.ProxmoxTemplateSpec) { s.SourceImage.URL = e.images.URL + "/other.img" })
	e.Eventually(func() int { _ = p.reconcile(t.Context(), "pve1"); return e.sim.Faults()[0].Hits }).Should(Equal(1))
	starts := e.sim.CountRequests("POST", "/nodes/{node}/qemu/{vmid}/status/start")
	e.updateSpec(func(s *v1alpha1.ProxmoxTemplateSpec) { s.SourceImage.URL = before })
	p.reconcileUntilComplete()
	e.Expect(e.sim.CountRequests("POST", "/nodes/{node}/qemu/{vmid}/status/start")).To(Equal(starts+1), "another builder VM prepared it")
}

func TestPrepareBuilderDestroyedByHand(t *testing.T) {
	t.Parallel()
	e := newEnv(t, 1, withAdmin)
	prepareTemplates(e)
	e.builders.set(pvesim.Script{})
	p := e.process()
	vmid := p.reconcileUntilRunning()
	e.stopByHand(vmid)
	e.asAdmin(func(c proxmox.Client) (proxmox.UPID, error) { return c.DestroyVM(t.Context(), "pve1", vmid) })
	e.Expect(e.bootDrives()).To(HaveLen(1), "orphaned")
	e.builders.set(newBuilders().script)
	e.Expect(p.Inventory().RefreshAll(t.Context())).To(Succeed())
	p.reconcileUntilComplete()
	e.Expect(p.events.Messages(v1alpha1.EventTemplatePreparationFailed)).To(ContainElement("pve1: builder VM 1000 no longer exists and is recreated"))
	p = e.process() // the sweep at the start needs no slot of the call budget
	p.reconcileUntil(func(g Gomega) { g.Expect(e.bootDrives()).To(BeEmpty()) })
	p.deleteUntilGone()
	e.Expect(e.listObjects()).To(Equal(e.initial))
}

// A failed builder VM that is deleted by hand is recreated at once.
func TestPrepareFailureDeletedByHand(t *testing.T) {
	t.Parallel()
	e := newEnv(t, 1, withAdmin)
	prepareTemplates(e)
	e.builders.set(pvesim.Script{})
	p := e.process()
	vmid := p.reconcileUntilRunning()
	e.builders.clock.Advance(31 * time.Minute)
	p.reconcileUntil(func(g Gomega) {
		g.Expect(p.report().Message).To(ContainSubstring("; it is kept for inspection until "))
	})
	e.Expect(p.report().Message).To(ContainSubstring(", delete it to retry earlier; "))
	e.stopByHand(vmid)
	e.asAdmin(func(c proxmox.Client) (proxmox.UPID, error) { return c.DestroyVM(t.Context(), "pve1", vmid) })
	// Tasks have times in seconds, and the next builder VM gets the same VMID.
	deleted := time.Now().Unix()
	e.Eventually(func() int64 { return time.Now().Unix() }).Should(BeNumerically(">", deleted))
	e.builders.set(newBuilders().script)
	p.reconcileUntilComplete()
	e.Expect(e.sim.CountRequests("POST", "/nodes/{node}/qemu/{vmid}/status/start")).To(Equal(2))
	p = e.process() // the sweep at the start needs no slot of the call budget
	p.deleteUntilGone()
	e.Expect(e.listObjects()).To(Equal(e.initial))
}
