// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package controllers_test

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/nodeclaim/report"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
)

func newReportController(w *testenv.Env, kube client.Client, metrics instance.Metrics) *report.Controller {
	return report.NewController(report.Deps{
		Kube: kube, VMs: w.Instances.VMs, Planner: w.Instances.Planner, Launches: w.Instances.Launches, Inventory: w.Inventory, Recorder: w.Events,
		Clock: w.Clock, Metrics: metrics, DescribeDrift: w.CloudProvider().DescribeDrift,
	})
}

func offlineReconcile(w *testenv.Env, claim *karpv1.NodeClaim) time.Duration {
	w.T.Helper()
	result, err := newReportController(w, w.Kube, instance.Metrics{}).Reconcile(w.T.Context(), testenv.Reload(w, claim))
	w.Expect(err).NotTo(HaveOccurred())
	return result.RequeueAfter
}

func TestOfflineReconcile(t *testing.T) {
	t.Parallel()
	w := testenv.NewWithAPIServer(t, testenv.Hosts(3))
	class := w.Class()
	here, elsewhere := w.Launched("here", class, testenv.OnHost("pve2")), w.Launched("elsewhere", class, testenv.OnHost("pve3"))
	node := w.Node(here)
	w.StartManager(func(kube client.Client) testenv.Registrar { return newReportController(w, kube, instance.Metrics{}) })
	reconcileAll := func() {
		offlineReconcile(w, here)
		offlineReconcile(w, elsewhere)
	}
	reported := func() string { return w.Instances.Launches.Reported(string(here.UID), "offline") }
	reconcileAll()

	w.Expect(w.Sim.HostDown("pve2", "noroute")).To(Succeed())
	w.Eventually(reported).Should(HavePrefix("pve2 since "))
	w.Eventually(w.Events.Reasons).WithArguments(node).Should(Equal([]string{"HostOffline"}))
	w.Expect(w.Events.Messages("HostOffline")).To(HaveEach(MatchRegexp(
		`^Host pve2 in region region-1 is offline since \S+Z, and the VM on it is unreachable; .* delete its NodeClaim$`)))
	reconcileAll()
	w.Expect(w.Events.Reasons(here)).To(Equal([]string{"HostOffline"}), "one event per change")

	w.Expect(w.Sim.HostUp("pve2")).To(Succeed())
	w.Eventually(reported).Should(BeEmpty())
	w.Eventually(w.Events.Reasons).WithArguments(node).Should(Equal([]string{"HostOffline", "HostOnline"}))
	w.Expect(w.Events.Reasons(here)).To(Equal([]string{"HostOffline", "HostOnline"}))
	w.Expect(w.Events.Messages("HostOnline")).To(HaveEach(MatchRegexp(`^Host pve2 in region region-1 is online again; it was offline since \S+Z$`)))
	w.Expect(w.Events.Reasons(elsewhere)).To(BeEmpty())
}

// The VM was migrated by HA: VMMigrated reports it. Then the Cluster does not respond, so nothing is known about its Hosts.
// A new leader reports what it finds: the last one may have died with the host.
func TestReconcileUnreported(t *testing.T) {
	testenv.With(testenv.NoPolling(), testenv.Hosts(2)).Test(t, func(w *testenv.Env, _ *testenv.Process) {
		claim := w.Launched("a", w.Class(), testenv.OnHost("pve2"))
		w.Instances.Launches.Report(string(claim.UID), "offline", "pve1 since 2026-11-16T00:00:00Z")
		w.Expect(offlineReconcile(w, claim)).To(BeZero())
		w.Expect(w.Instances.Launches.Reported(string(claim.UID), "offline")).To(BeEmpty())
		w.Expect(w.Sim.HostDown("pve2", "noroute")).To(Succeed())
		w.Restart(true)
		w.Eventually(func() bool {
			w.Refresh()
			host, _ := w.Inventory.View().Host(testenv.Region, "pve2")
			return host.OfflineSince.IsZero()
		}).Should(BeFalse())
		w.Expect(offlineReconcile(w, claim)).To(BeZero())
		w.Expect(w.Events.Reasons(claim)).To(Equal([]string{"HostOffline"}))
		w.Disconnect()
		for range 2 {
			w.Expect(w.Inventory.RefreshAll(w.Context())).NotTo(Succeed())
		}
		w.Expect(offlineReconcile(w, claim)).To(BeZero())
		w.Expect(w.Events.Reasons(claim)).To(HaveLen(1))
	})
}
