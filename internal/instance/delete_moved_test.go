// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package instance_test

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

// launchInitialized returns a claim whose boot drive was deleted, and its intent.
func launchInitialized(w *testenv.Env, p *testenv.Process) (*karpv1.NodeClaim, instance.Intent) {
	w.T.Helper()
	claim := p.Launched("pool-abc", w.NodeClass)
	w.SetTrue(claim, karpv1.ConditionTypeRegistered)
	w.Expect(p.Instances.Deleter.CleanupBootDrive(w.Context(), claim)).To(Succeed())
	return w.Stored(claim), w.Intent(claim)
}

// The Host of the launch is offline, but the VM was migrated and deleted.
func TestDeleteMigratedVM(t *testing.T) {
	testenv.With(testenv.Hosts(2), testenv.NoPolling()).Test(t, func(w *testenv.Env, p *testenv.Process) {
		claim, in := launchInitialized(w, p)
		other := testenv.OtherHost(in.Host)
		w.Expect(w.Sim.MigrateGuest(in.VMID, other)).To(Succeed())
		p.Refresh()
		vm, err := p.Instances.VMs.Get(w.Context(), v1alpha1.ProviderID{Region: in.Region, VMID: in.VMID})
		w.Expect(err).NotTo(HaveOccurred())
		w.Expect(vm.Host).To(Equal(other), "the VM is found on its new host")
		w.Expect(p.Instances.VMs.RecordHost(vm)).To(BeTrue())

		w.Expect(w.Sim.HostDown(in.Host, "refused")).To(Succeed())
		p.Delete(claim)
		w.StartProcess().Delete(claim)
		w.Expect(w.VMs()).To(BeEmpty())
	})
}

// A VM is moved after its deletion was requested, and the controller does not see the end of its
// destroy. The first host is not needed anymore.
func TestDeleteMovedAfterRequest(t *testing.T) {
	testenv.With(testenv.Hosts(2), testenv.NoPolling()).Test(t, func(w *testenv.Env, p *testenv.Process) {
		claim, in := launchInitialized(w, p)
		claim = deleting(w, claim)
		w.Expect(w.Sim.MigrateGuest(in.VMID, testenv.OtherHost(in.Host))).To(Succeed())
		p.Refresh()
		p.Delete(claim)

		w.Expect(w.Sim.HostDown(in.Host, "refused")).To(Succeed())
		w.StartProcess().Delete(w.Stored(claim))
		w.Expect(w.VMs()).To(BeEmpty())
	})
}

// A shutdown hangs with its host. Its task is not waited for if the VM is on another host.
func TestDeleteMovedDuringShutdown(t *testing.T) {
	testenv.With(testenv.Hosts(2), testenv.Settings(func(s *instance.Settings) {
		s.OperationTimeout = 10 * time.Second
	})).Test(t, func(w *testenv.Env, p *testenv.Process) {
		claim, in := launchInitialized(w, p)
		w.AddFault(pvesim.Fault{Task: "qmstop", Delay: pvesim.Duration(time.Hour), Count: 1})
		w.Expect(p.Instances.Deleter.Delete(w.Context(), claim)).To(BeFalse())
		w.Expect(w.Sim.MigrateGuest(in.VMID, testenv.OtherHost(in.Host))).To(Succeed())
		w.Expect(w.Sim.HostDown(in.Host, "refused")).To(Succeed())
		p.Delete(claim)
		w.Expect(w.VMs()).To(BeEmpty())
	})
}

// An administrator who converts a VM to a template keeps it.
func TestDeleteConvertedToTemplate(t *testing.T) {
	testenv.With(testenv.NoPolling()).Test(t, func(w *testenv.Env, p *testenv.Process) {
		claim := p.Launched("pool-abc", w.NodeClass)
		in := w.Intent(claim)
		w.Expect(w.Sim.PowerOffGuest(in.VMID)).To(Succeed())
		w.Wait(w.Client.ConvertToTemplate(w.Context(), in.Host, in.VMID))
		p.Delete(claim)
		w.Expect(w.VMConfig(in).IsTemplate()).To(BeTrue())
	})
}

// A Host counts as removed once polls have missed it for long enough.
func TestDeleteHostRemovedSoon(t *testing.T) {
	testenv.With(testenv.Hosts(2), testenv.NoPolling(), testenv.Settings(func(s *instance.Settings) {
		s.HostRemovedAfter = 3 * time.Second
	})).Test(t, func(w *testenv.Env, p *testenv.Process) {
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
}

// A parked Claim has no VM, so it does not wait for its Host.
func TestDeleteParkedHostOffline(t *testing.T) {
	testenv.With(testenv.Hosts(2)).Test(t, func(w *testenv.Env, p *testenv.Process) {
		claim := w.Claim("pool-abc", w.NodeClass)
		in, err := p.Instances.Planner.Park(w.Context(), claim, w.NodeClass)
		w.Expect(err).NotTo(HaveOccurred())
		claim = w.SetPlanned(claim, w.NodeClass, in)
		w.Expect(w.Sim.HostDown(in.Host, "noroute")).To(Succeed())
		w.Expect(w.StartProcess().Instances.Deleter.Delete(w.Context(), w.Stored(claim))).To(BeTrue())
	})
}
