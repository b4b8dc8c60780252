// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package offline_test

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/host/offline"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
)

func controller(w *testenv.Env, kube client.Client) *offline.Controller {
	return offline.NewController(kube, w.Instances.VMs, w.Inventory, w.Events)
}

func TestReconcile(t *testing.T) {
	t.Parallel()
	w := testenv.New(t, testenv.Hosts(3))
	class := w.Class()
	here, elsewhere := w.Launched("here", class, testenv.OnHost("pve2")), w.Launched("elsewhere", class, testenv.OnHost("pve3"))
	node := w.Node(here)
	w.StartManager(func(kube client.Client) testenv.Registrar { return controller(w, kube) })
	reconcileAll := func() {
		for _, claim := range []*karpv1.NodeClaim{here, elsewhere} {
			_, err := controller(w, w.Kube).Reconcile(t.Context(), testenv.Reload(w, claim))
			w.Expect(err).NotTo(HaveOccurred())
		}
	}
	annotation := func() string { return testenv.Reload(w, here).Annotations[v1alpha1.AnnotationHostOffline] }

	w.Expect(w.Sim.HostDown("pve2", "noroute")).To(Succeed())
	w.Eventually(annotation).Should(HavePrefix("pve2 since "))
	w.Eventually(w.Events.Reasons).WithArguments(node).Should(Equal([]string{"HostOffline"}))
	w.Expect(w.Events.Messages("HostOffline")).To(HaveEach(MatchRegexp(
		`^Host pve2 in region region-1 is offline since \S+Z, and the VM on it is unreachable; .* delete its NodeClaim$`)))
	before := annotation()
	reconcileAll()
	w.Clock.Advance(time.Minute) // the inventory after the restart has a later time
	w.Restart(true)
	reconcileAll()
	w.Expect(annotation()).To(Equal(before), "a restart changes nothing")
	w.Expect(w.Events.Reasons(here)).To(Equal([]string{"HostOffline"}), "one event per change")

	w.Expect(w.Sim.HostUp("pve2")).To(Succeed())
	w.Eventually(annotation).Should(BeEmpty())
	w.Eventually(w.Events.Reasons).WithArguments(node).Should(Equal([]string{"HostOffline", "HostOnline"}))
	w.Expect(w.Events.Reasons(here)).To(Equal([]string{"HostOffline", "HostOnline"}))
	w.Expect(w.Events.Messages("HostOnline")).To(HaveEach(MatchRegexp(`^Host pve2 in region region-1 is online again; it was offline since \S+Z$`)))
	w.Expect(w.Events.Reasons(elsewhere)).To(BeEmpty())
}

// The VM was migrated by HA: VMMigrated reports it.
func TestReconcileMigrated(t *testing.T) {
	t.Parallel()
	w := testenv.New(t, testenv.NoPolling(), testenv.Hosts(2))
	claim := w.Launched("a", w.Class(), testenv.OnHost("pve2"))
	w.Annotate(claim, map[string]string{v1alpha1.AnnotationHostOffline: "pve1 since 2026-11-16T00:00:00Z"})
	_, err := controller(w, w.Kube).Reconcile(t.Context(), claim)
	w.Expect(err).NotTo(HaveOccurred())
	w.Expect(testenv.Reload(w, claim).Annotations).NotTo(HaveKey(v1alpha1.AnnotationHostOffline))
	w.Expect(w.Events.Reasons(claim)).To(BeEmpty())
}

// Nothing is known about the Hosts of a Cluster that does not respond.
func TestReconcileClusterUnreachable(t *testing.T) {
	t.Parallel()
	w := testenv.New(t, testenv.NoPolling(), testenv.Hosts(2))
	claim := w.Launched("a", w.Class(), testenv.OnHost("pve2"))
	w.Disconnect()
	for range 2 {
		w.Expect(w.Inventory.RefreshAll(t.Context())).NotTo(Succeed())
	}
	result, err := controller(w, w.Kube).Reconcile(t.Context(), claim)
	w.Expect(err).NotTo(HaveOccurred())
	w.Expect(result.RequeueAfter).To(BeNumerically(">", 0))
	w.Expect(w.Events.Reasons(claim)).To(BeEmpty())
}
