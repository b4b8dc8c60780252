// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package instance_test

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

// quickly limits an operation to three seconds, and VMs on a storage to one delete at a time.
var quickly = testenv.Settings(func(s *instance.Settings) { s.OperationTimeout, s.CloneSlots = 3*time.Second, 1 })

// useAllConnections sends requests that are not answered, until the returned function is called.
func useAllConnections(w *testenv.Env) (release func()) {
	w.T.Helper()
	w.AddFault(pvesim.Fault{Method: "GET", Path: "/version", Delay: pvesim.Duration(time.Hour)})
	ctx, cancel := context.WithCancel(w.Context())
	var others sync.WaitGroup
	for range proxmox.MaxConnections {
		others.Go(func() { _, _ = w.Client.Version(ctx) })
	}
	w.Eventually(func() int { return w.Sim.Faults()[0].Matched }).Should(Equal(proxmox.MaxConnections))
	return func() {
		cancel()
		others.Wait()
	}
}

// The host responds, but other requests use all connections to it.
func TestDeleteNoConnection(t *testing.T) {
	testenv.With(testenv.NoPolling(), quickly).Test(t, func(w *testenv.Env, p *testenv.Process) {
		claim := p.Launched("pool-abc", w.NodeClass)
		p.Refresh()
		release := useAllConnections(w)
		expectBlocked(w, p, claim, v1alpha1.EventProxmoxBusy, ContainSubstring("waiting for a connection"), Not(ContainSubstring("unreachable")))
		release()
		w.Sim.ClearFaults()
		p.DeleteAll(claim)
	})
}

// Requests to a region that does not respond use all connections. A claim on a fenced host still ends.
func TestDeleteNoConnectionFenced(t *testing.T) {
	testenv.With(testenv.NoPolling(), quickly).Test(t, func(w *testenv.Env, p *testenv.Process) {
		claim := p.Launched("pool-abc", w.NodeClass)
		p.Refresh()
		p.Fence(w.Intent(claim).Host)
		release := useAllConnections(w)
		w.AddFault(pvesim.Fault{Method: "GET", Path: "/cluster/resources", Status: 500})
		for range 2 {
			w.Expect(p.Inventory.Refresh(w.Context(), testenv.Region)).NotTo(Succeed())
		}
		deleted, err := p.Instances.Deleter.Delete(w.Context(), claim)
		release()
		w.Expect(err).To(MatchError(ContainSubstring("is fenced")))
		w.Expect(deleted).To(BeTrue())
	})
}

// The host destroys as many other VMs as it may at a time.
func TestDeleteNoSlot(t *testing.T) {
	testenv.With(testenv.NoPolling(), quickly).Test(t, func(w *testenv.Env, p *testenv.Process) {
		first, second := p.Launched("pool-a", w.NodeClass), p.Launched("pool-b", w.NodeClass)
		w.Expect(w.Sim.PowerOffGuest(w.Intent(second).VMID)).To(Succeed()) // nothing but its destroy remains
		p.Refresh()
		w.AddFault(pvesim.Fault{Method: "DELETE", Path: "/nodes/{node}/qemu/{vmid}", Delay: pvesim.Duration(15 * time.Second), Count: 1})
		deleted := make(chan bool)
		go func() { // the request keeps its slot after the timeout
			done, _ := p.Instances.Deleter.Delete(w.Context(), first)
			deleted <- done
		}()
		w.Eventually(func() int { return w.Sim.Faults()[0].Hits }).Should(Equal(1))
		expectBlocked(w, p, second, v1alpha1.EventProxmoxBusy, ContainSubstring("waits for the deletion of other VMs"))
		w.Expect(<-deleted).To(BeFalse())
	})
}

// A controller was restarted, and the Cluster does not respond. This is reported like a
// Cluster that refuses connections.
func TestDeleteHangingCluster(t *testing.T) {
	testenv.With(quickly).Test(t, func(w *testenv.Env, p *testenv.Process) {
		claim := p.Launched("pool-abc", w.NodeClass)
		w.AddFault(pvesim.Fault{Path: "/cluster/resources", Delay: pvesim.Duration(time.Hour)})
		expectBlocked(w, w.StartProcess(testenv.NeverPolled()), claim, v1alpha1.EventHostUnreachable)
	})
}
