// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package instance_test

import (
	"context"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

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

func TestDeleteBusy(t *testing.T) {
	t.Parallel()
	// The host responds, but other requests use all connections to it. A claim on a fenced host still ends.
	testenv.With(testenv.NoPolling(), quickly).Subtest(t, "no_connection", func(w *testenv.Env, p *testenv.Process) {
		claim := p.Launched("pool-abc", w.NodeClass)
		p.Refresh()
		release := useAllConnections(w)
		expectBlocked(w, p, claim, v1alpha1.EventProxmoxBusy, ContainSubstring("waiting for a connection"), Not(ContainSubstring("unreachable")))

		p.Fence(w.Intent(claim).Host)
		w.AddFault(pvesim.Fault{Method: "GET", Path: "/cluster/resources", Status: 500})
		for range 2 {
			w.Expect(p.Inventory.Refresh(w.Context(), testenv.Region)).NotTo(Succeed())
		}
		deleted, err := p.Instances.Deleter.Delete(w.Context(), claim)
		release()
		w.Expect(err).To(MatchError(ContainSubstring("is fenced")))
		w.Expect(deleted).To(BeTrue())
	})
	// The host destroys as many other VMs as it may at a time.
	testenv.With(testenv.NoPolling(), quickly).Subtest(t, "no_slot", func(w *testenv.Env, p *testenv.Process) {
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

func TestDeleteUnreachableHost(t *testing.T) {
	t.Parallel()
	testenv.With(testenv.Hosts(2)).Subtest(t, "host_down", func(w *testenv.Env, p *testenv.Process) {
		claim := p.Launched("pool-abc", w.NodeClass)
		host := w.Intent(claim).Host
		w.Expect(w.Sim.HostDown(host, "refused")).To(Succeed())
		expectBlocked(w, p, claim, v1alpha1.EventHostUnreachable)
		w.Expect(w.Sim.HostUp(host)).To(Succeed())
		p.Delete(claim)
		w.Eventually(w.VMs).Should(BeEmpty())
		w.ExpectNoBootDrives()
	})
	// A controller was restarted, and the Cluster does not respond. This is reported like a
	// Cluster that refuses connections.
	testenv.With(quickly).Subtest(t, "hanging_cluster", func(w *testenv.Env, p *testenv.Process) {
		claim := p.Launched("pool-abc", w.NodeClass)
		w.AddFault(pvesim.Fault{Path: "/cluster/resources", Delay: pvesim.Duration(time.Hour)})
		expectBlocked(w, w.StartProcess(testenv.NeverPolled()), claim, v1alpha1.EventHostUnreachable)
	})
	// A launch whose clone was not recorded, and whose host was then recorded as asleep, has a VM.
	testenv.With().Subtest(t, "listed_while_host_wakes", func(w *testenv.Env, p *testenv.Process) {
		claim := p.Launched("pool-abc", w.NodeClass)
		restarted := w.StartProcess()
		restarted.Instances.Launches.Reach(string(claim.UID), instance.PhaseHostWaking, time.Second)
		restarted.DeleteAll(claim)
	})
	// A Host counts as removed once polls have missed it for long enough.
	testenv.With(testenv.Hosts(2), testenv.NoPolling(), testenv.Settings(func(s *instance.Settings) {
		s.HostRemovedAfter = 3 * time.Second
	})).Subtest(t, "host_removed_soon", func(w *testenv.Env, p *testenv.Process) {
		claim := p.Launched("pool-abc", w.NodeClass)
		host := w.Intent(claim).Host
		w.Expect(w.Sim.HostDown(host, "noroute")).To(Succeed())
		w.Expect(w.Sim.RemoveHost(host)).To(Succeed())
		p.Refresh()
		expectBlocked(w, p, claim, v1alpha1.EventHostUnreachable)
		w.Clock.Advance(5 * time.Second)
		expectBlocked(w, p, claim, v1alpha1.EventHostUnreachable)
		p.Refresh()
		deleted, err := p.Instances.Deleter.Delete(w.Context(), claim)
		w.Expect(err).To(MatchError(ContainSubstring("was removed from the Proxmox cluster")))
		w.Expect(deleted).To(BeTrue())
	})
	// A parked Claim has no VM, so it does not wait for its Host.
	testenv.With(testenv.Hosts(2)).Subtest(t, "parked", func(w *testenv.Env, p *testenv.Process) {
		claim, in := parked(w, p, w.Claim("pool-abc", w.NodeClass))
		w.Expect(w.Sim.HostDown(in.Host, "noroute")).To(Succeed())
		w.Expect(w.StartProcess().Instances.Deleter.Delete(w.Context(), w.Stored(claim))).To(BeTrue())
	})
}

// A claim without a VM does not wait for a Host that the Cluster does not have, or for that of its
// template.
func TestDeleteNoVM(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(w *testenv.Env, claim *karpv1.NodeClaim){
		"removed_host": func(_ *testenv.Env, claim *karpv1.NodeClaim) { claim.Labels[corev1.LabelTopologyZone] = "pve7" },
		"template_host_down": func(w *testenv.Env, claim *karpv1.NodeClaim) {
			claim.DeletionTimestamp = new(metav1.Now())
			w.Expect(w.Sim.HostDown(testenv.OtherHost(w.Intent(claim).Host), "refused")).To(Succeed())
		},
	} {
		testenv.With(testenv.Hosts(2)).Subtest(t, name, func(w *testenv.Env, p *testenv.Process) {
			claim := p.Launched("pool-abc", w.NodeClass)
			p.Delete(claim)
			change(w, claim)
			w.StartProcess().Delete(claim)
		})
	}
}

// launchInitialized returns a claim whose boot drive was deleted, and its intent.
func launchInitialized(w *testenv.Env, p *testenv.Process) (*karpv1.NodeClaim, instance.Intent) {
	w.T.Helper()
	claim := p.Launched("pool-abc", w.NodeClass)
	w.SetTrue(claim, karpv1.ConditionTypeRegistered)
	w.Expect(p.Instances.Deleter.CleanupBootDrive(w.Context(), claim)).To(Succeed())
	return w.Stored(claim), w.Intent(claim)
}

func TestDeleteMigratedVM(t *testing.T) {
	t.Parallel()
	// The Host of the launch is offline, but the VM was migrated and deleted.
	testenv.With(testenv.Hosts(2), testenv.NoPolling()).Subtest(t, "first_host_down", func(w *testenv.Env, p *testenv.Process) {
		claim, in := launchInitialized(w, p)
		other := testenv.OtherHost(in.Host)
		w.Expect(w.Sim.MigrateGuest(in.VMID, other)).To(Succeed())
		p.Refresh()
		vm, err := p.Instances.VMs.Get(w.Context(), in.ID())
		w.Expect(err).NotTo(HaveOccurred())
		w.Expect(vm.Host).To(Equal(other), "the VM is found on its new host")
		w.Expect(p.Instances.VMs.RecordHost(vm)).To(BeTrue())

		w.Expect(w.Sim.HostDown(in.Host, "refused")).To(Succeed())
		p.Delete(claim)
		w.StartProcess().Delete(claim)
		w.Expect(w.VMs()).To(BeEmpty())
	})
	// A VM is moved after its deletion was requested, and the controller does not see the end of its
	// destroy. The first host is not needed anymore.
	testenv.With(testenv.Hosts(2), testenv.NoPolling()).Subtest(t, "after_request", func(w *testenv.Env, p *testenv.Process) {
		claim, in := launchInitialized(w, p)
		claim = deleting(w, claim)
		w.Expect(w.Sim.MigrateGuest(in.VMID, testenv.OtherHost(in.Host))).To(Succeed())
		p.Refresh()
		p.Delete(claim)

		w.Expect(w.Sim.HostDown(in.Host, "refused")).To(Succeed())
		w.StartProcess().Delete(w.Stored(claim))
		w.Expect(w.VMs()).To(BeEmpty())
	})
	// A shutdown hangs with its host. Its task is not waited for if the VM is on another host.
	testenv.With(testenv.Hosts(2), testenv.Settings(func(s *instance.Settings) {
		s.OperationTimeout = 10 * time.Second
	})).Subtest(t, "during_shutdown", func(w *testenv.Env, p *testenv.Process) {
		claim, in := launchInitialized(w, p)
		w.AddFault(pvesim.Fault{Task: "qmstop", Delay: pvesim.Duration(time.Hour), Count: 1})
		w.Expect(p.Instances.Deleter.Delete(w.Context(), claim)).To(BeFalse())
		w.Expect(w.Sim.MigrateGuest(in.VMID, testenv.OtherHost(in.Host))).To(Succeed())
		w.Expect(w.Sim.HostDown(in.Host, "refused")).To(Succeed())
		p.Delete(claim)
		w.Expect(w.VMs()).To(BeEmpty())
	})
}
