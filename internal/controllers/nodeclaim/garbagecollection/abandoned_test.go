// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package garbagecollection_test

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/nodeclaim/garbagecollection"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
)

// abandon finishes a claim without its VM, which an administrator allowed.
func abandon(w *testenv.Env, claim *karpv1.NodeClaim, host string) {
	w.T.Helper()
	w.Annotate(claim, map[string]string{v1alpha1.AnnotationHostFenced: host})
	deleted, err := w.Instances.Deleter.Delete(w.T.Context(), claim)
	w.Expect(deleted).To(BeTrue())
	w.Expect(err).To(MatchError(ContainSubstring("is fenced")))
	orphaned(w, claim)
}

// The claims of a fenced Host were finished without their VMs. These are deleted when the
// Host is back, although they are most of all VMs.
func TestDeleteFencedVMs(t *testing.T) {
	t.Parallel()
	w := testenv.New(t, testenv.NoPolling(), testenv.Hosts(2))
	class := w.Class(func(class *v1alpha1.ProxmoxNodeClass) { class.Spec.PlacementStrategy.PoolAffinity = "SameHost" })
	var claims []*karpv1.NodeClaim
	for _, name := range []string{"a", "b", "c", "d"} {
		claims = append(claims, w.Launched(name, class))
	}
	host := w.Intent(claims[0]).Host
	w.Expect(w.Sim.HostDown(host, "noroute")).To(Succeed())
	w.Refresh()
	for _, claim := range claims {
		w.Expect(w.Intent(claim).Host).To(Equal(host))
		abandon(w, claim, host)
	}
	c := newCollector(w, garbagecollection.PolicyDelete)
	c.run()
	w.Clock.Advance(grace + time.Second)
	w.Sim.ResetRequests()
	c.run()
	w.Expect(w.Sim.CountRequests("GET", "/nodes/{node}/qemu/{vmid}/config")).To(BeZero(), "no request to a host that is offline")
	w.Expect(w.VMs()).To(HaveLen(4))

	w.Expect(w.Sim.HostUp(host)).To(Succeed())
	w.Eventually(func() []proxmox.GuestRow { c.run(); return w.VMs() }).Should(BeEmpty())
	w.Eventually(func() []string { c.run(); return w.BootDrives(host) }).Should(BeEmpty())
	w.ExpectNoTokens()
}

// A claim of a fenced host was restored from a list that was older than its end. Proxmox still
// lists its VM.
func TestReleaseAbandonedReservation(t *testing.T) {
	t.Parallel()
	w := testenv.New(t, testenv.NoPolling(), testenv.Hosts(2))
	claim := w.Launched("a", w.Class())
	host := w.Intent(claim).Host
	w.Expect(w.Sim.HostDown(host, "noroute")).To(Succeed())
	w.Refresh()
	listed := *claim.DeepCopy()
	abandon(w, claim, host)
	w.Instances.Planner.RestoreReservation(listed)
	w.Expect(w.Inventory.View().Reservations).To(HaveKey(string(claim.UID)))
	c := newCollector(w, garbagecollection.PolicyDelete)
	w.Clock.Advance(grace + time.Second)
	c.run()
	w.Expect(w.VMs()).To(HaveLen(1))
	w.Expect(w.Inventory.View().Reservations).To(BeEmpty())
}

// The region of a claim was renamed in the cloud config. Its VM is not an orphan, until an
// administrator gives it up.
func TestDeleteVMOfRenamedRegion(t *testing.T) {
	t.Parallel()
	w := testenv.New(t, testenv.NoPolling())
	claim := w.Launched("a", w.Class())
	w.Clients = map[string]proxmox.Client{"renamed": testenv.NewClient(t, testenv.ClusterConfig(w.Sim, "renamed"), proxmox.Options{})}
	w.Restart(true)
	c := newCollector(w, garbagecollection.PolicyDelete)
	c.run()
	w.Clock.Advance(grace + time.Second)
	c.run()
	w.Expect(w.VMs()).To(HaveLen(1))

	abandon(w, claim, "pve1")
	c.run()
	w.Clock.Advance(grace + time.Second)
	w.Eventually(func() []proxmox.GuestRow { c.run(); return w.VMs() }).Should(BeEmpty())
}
