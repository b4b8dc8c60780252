// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package template_test

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/template"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

const imagesPath = "/nodes/pve1/storage/local/content"

// A sweep that fails is repeated with a backoff and within the call budget, and its error is
// reported until one succeeds.
func TestSweepFailing(t *testing.T) {
	t.Parallel()
	e := newEnv(t, 1)
	clock := testenv.NewSteppedClock(testenv.Speed)
	inv, err := inventory.New([]proxmox.Client{e.client()}, inventory.Options{ReadTimeout: time.Minute, Clock: clock})
	e.Expect(err).NotTo(HaveOccurred())
	e.Expect(inv.RefreshAll(t.Context())).To(Succeed())
	p := &process{env: e, events: &testenv.Recorder{}}
	p.Provider = testenv.NewTemplates(template.Deps{
		Clients: map[string]proxmox.Client{region: e.client()}, Inventory: inv, Clock: clock, KubeCluster: kubeCluster, Recorder: p.events,
	}, time.Hour)
	p.reconcileUntilComplete()
	e.Expect(p.reconcile(t.Context(), "pve1")).To(Succeed())
	e.Expect(p.PendingHosts(e.desired())).To(BeEmpty())

	testenv.AddFault(t, e.sim, pvesim.Fault{Method: "GET", Path: imagesPath, Status: 500, Message: "storage 'local' is not online"})
	// run returns how many sweeps there were while the controller ran twice a minute.
	run := func(d time.Duration) int {
		before := e.sim.Faults()[0].Hits
		for end := clock.Now().Add(d); clock.Now().Before(end); clock.Advance(30 * time.Second) {
			p.PendingHosts(e.desired())
			e.Expect(p.reconcile(t.Context(), "pve1")).To(Succeed())
		}
		return e.sim.Faults()[0].Hits - before
	}
	failed := ContainSubstring("listing the images on storage local: storage 'local' is not online")
	e.Expect(run(20 * time.Minute)).To(And(BeNumerically(">=", 2), BeNumerically("<=", 8)))
	e.Expect(p.report().Message).To(failed)
	e.Expect(run(time.Hour)).To(And(BeNumerically(">=", 8), BeNumerically("<=", 16)), "every five minutes after some failures")
	e.Expect(p.report().Message).To(failed)
	e.Expect(p.report().Complete).To(BeTrue())

	e.sim.ClearFaults()
	e.Eventually(func() string {
		clock.Advance(time.Minute)
		e.Expect(p.reconcile(t.Context(), "pve1")).To(Succeed())
		return p.report().Message
	}).ShouldNot(failed)
}
