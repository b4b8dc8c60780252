// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package deletion_test

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

// A controller was restarted, and the Cluster does not respond. This is reported like a
// Cluster that refuses connections.
func TestDeleteHangingCluster(t *testing.T) {
	t.Parallel()
	w := testenv.NewFake(t)
	claim := w.StartProcess().Launched("pool-abc", w.NodeClass)
	w.AddFault(pvesim.Fault{Path: "/cluster/resources", Delay: pvesim.Duration(time.Hour)})
	p := w.StartProcess(testenv.NeverPolled(), testenv.Settings(func(s *instance.Settings) { s.OperationTimeout = 2 * time.Second }))
	expectBlocked(w, p, claim, v1alpha1.EventHostUnreachable)
}

// A Host counts as removed sooner than core calls Delete again.
func TestDeleteHostRemovedSoon(t *testing.T) {
	t.Parallel()
	w := testenv.NewFake(t, testenv.Hosts(2))
	p := w.StartProcess(testenv.NoPolling(), testenv.Settings(func(s *instance.Settings) { s.HostRemovedAfter = 3 * time.Second }))
	claim := p.Launched("pool-abc", w.NodeClass)
	host := w.Intent(claim).Host
	w.Expect(w.Sim.HostDown(host, "noroute")).To(Succeed())
	w.Expect(w.Sim.RemoveHost(host)).To(Succeed())
	p.Refresh()
	expectBlocked(w, p, claim, v1alpha1.EventHostUnreachable)
	w.Clock.Advance(5 * time.Second)
	deleted, err := p.Instances.Deleter.Delete(t.Context(), claim)
	w.Expect(err).To(MatchError(ContainSubstring("was removed from the Proxmox cluster")))
	w.Expect(deleted).To(BeTrue())
}

// A parked Claim has no VM, so it does not wait for its Host.
func TestDeleteParkedHostOffline(t *testing.T) {
	t.Parallel()
	w := testenv.NewFake(t, testenv.Hosts(2))
	p := w.StartProcess()
	claim := w.Claim("pool-abc", w.NodeClass)
	in, err := p.Instances.Planner.Park(t.Context(), claim, w.NodeClass, nil)
	w.Expect(err).NotTo(HaveOccurred())
	claim = w.SetPlanned(claim, in)
	w.Expect(w.Sim.HostDown(in.Host, "noroute")).To(Succeed())
	next := w.StartProcess()
	deleted, err := next.Instances.Deleter.Delete(t.Context(), w.Stored(claim))
	w.Expect(err).NotTo(HaveOccurred())
	w.Expect(deleted).To(BeTrue())
}
