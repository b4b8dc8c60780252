// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package deletion_test

import (
	"context"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

// useAllConnections sends requests that are not answered, until the returned function is called.
func useAllConnections(w *testenv.Env) (release func()) {
	w.T.Helper()
	w.AddFault(pvesim.Fault{Method: "GET", Path: "/version", Delay: pvesim.Duration(testenv.Speed * time.Hour)})
	ctx, cancel := context.WithCancel(w.T.Context())
	var others sync.WaitGroup
	for range proxmox.MaxConnections {
		others.Go(func() { _, _ = w.Client.Version(ctx) })
	}
	w.Eventually(func() int { return w.Sim.Faults()[0].Matched }).WithTimeout(time.Minute).Should(Equal(proxmox.MaxConnections))
	return func() {
		cancel()
		others.Wait()
	}
}

// The host responds, but other requests use all connections to it.
func TestDeleteNoConnection(t *testing.T) {
	t.Parallel()
	w := testenv.NewFake(t)
	p := w.StartProcess(testenv.NoPolling(), testenv.Settings(func(s *instance.Settings) { s.OperationTimeout = 3 * time.Second }))
	claim := p.Launched("pool-abc", w.NodeClass)
	p.Refresh()
	release := useAllConnections(w)
	deleted, err := p.Instances.Deleter.Delete(t.Context(), claim)
	release()
	w.Expect(deleted).To(BeFalse())
	w.Expect(err).To(And(HaveField("Reason", v1alpha1.EventProxmoxBusy), MatchError(ContainSubstring("waiting for a connection")), MatchError(Not(ContainSubstring("unreachable")))))
	w.Sim.ClearFaults()
	p.Delete(claim)
	w.ExpectNoOrphans()
}

// Requests to a region that does not respond use all connections. A claim on a fenced host still ends.
func TestDeleteNoConnectionFenced(t *testing.T) {
	t.Parallel()
	w := testenv.NewFake(t)
	p := w.StartProcess(testenv.NoPolling(), testenv.Settings(func(s *instance.Settings) { s.OperationTimeout = 3 * time.Second }))
	claim := p.Launched("pool-abc", w.NodeClass)
	p.Refresh()
	w.Expect(instance.Annotate(t.Context(), w.Kube, claim, map[string]string{v1alpha1.AnnotationHostFenced: w.Intent(claim).Host})).To(Succeed())
	testenv.Reload(w, claim)
	release := useAllConnections(w)
	w.AddFault(pvesim.Fault{Method: "GET", Path: "/cluster/resources", Status: 500})
	for range 2 {
		w.Expect(p.Inventory.Refresh(t.Context(), testenv.Region)).NotTo(Succeed())
	}
	deleted, err := p.Instances.Deleter.Delete(t.Context(), claim)
	release()
	w.Expect(err).To(MatchError(ContainSubstring("is fenced")))
	w.Expect(deleted).To(BeTrue())
}

// The host destroys as many other VMs as it may at a time.
func TestDeleteNoSlot(t *testing.T) {
	t.Parallel()
	w := testenv.NewFake(t)
	p := w.StartProcess(testenv.NoPolling(), testenv.Settings(func(s *instance.Settings) { s.CloneSlots, s.OperationTimeout = 1, 3*time.Second }))
	first, second := p.Launched("pool-a", w.NodeClass), p.Launched("pool-b", w.NodeClass)
	w.Expect(w.Sim.PowerOffGuest(w.Intent(second).VMID)).To(Succeed()) // nothing but its destroy remains
	p.Refresh()
	w.AddFault(pvesim.Fault{Method: "DELETE", Path: "/nodes/{node}/qemu/{vmid}", Delay: pvesim.Duration(testenv.Speed * 15 * time.Second), Count: 1})
	ctx, cancel := context.WithCancel(t.Context())
	var deletes sync.WaitGroup
	deletes.Go(func() {
		for ctx.Err() == nil && w.Sim.Faults()[0].Hits == 0 {
			_, _ = p.Instances.Deleter.Delete(ctx, first) // the request keeps its slot after the timeout
		}
	})
	w.Eventually(func() int { return w.Sim.Faults()[0].Hits }).WithTimeout(time.Minute).Should(Equal(1))
	w.Eventually(func() error { // a busy machine may need more than one attempt to stop the VM
		_, err := p.Instances.Deleter.Delete(t.Context(), second)
		return err
	}).WithTimeout(time.Minute).Should(And(HaveField("Reason", v1alpha1.EventProxmoxBusy), MatchError(ContainSubstring("waits for the deletion of other VMs"))))
	cancel()
	deletes.Wait()
}
