// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package instance_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

// fault installs one in the simulator.
func (w *world) fault(f pvesim.Fault) {
	w.t.Helper()
	_, err := w.sim.AddFault(f)
	w.Expect(err).NotTo(HaveOccurred())
}

// A look that fails says nothing about the task: the clone goes on, and is ours.
func TestALookThatFailsDoesNotEndAClone(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]pvesim.Fault{
		"the token is being replaced": {Status: 401, Message: "authentication failure"},
		"quorum is lost":              {Status: 500, Message: "cluster not ready - no quorum?"},
		"something else":              {Status: 500, Message: "it is complicated"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, 1)
			w.class.Spec.BootDevice.FullClone = true
			p := w.process()
			claim := w.planned(p, "pool-abc")
			answer.Method, answer.Path, answer.Count = "GET", "/nodes/*/tasks/*qmclone*/status", 1
			w.fault(answer)
			w.Expect(p.Launcher.Launch(t.Context(), claim, w.class)).To(Succeed())
			w.Expect(w.sim.CountRequests("POST", "/nodes/{node}/qemu/{vmid}/clone")).To(Equal(1))
		})
	}
}

// Who may not look any more cannot tell that a clone has ended: nobody is told to
// destroy it by hand.
func TestACloneThatMayNotBeLookedAtIsNotTakenForDead(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	w.class.Spec.BootDevice.FullClone = true
	p := w.process()
	claim := w.planned(p, "pool-abc")
	w.fault(pvesim.Fault{Method: "GET", Path: "/nodes/*/tasks/*qmclone*/status", Status: 403, Message: "Permission check failed", Count: 1})
	var final *instance.LaunchError
	w.Expect(errors.As(p.Launcher.Launch(t.Context(), claim, w.class), &final)).To(BeTrue())
	w.Expect(final.Reason).To(Equal(instance.ReasonPermission))
	_, err := p.Deleter.Delete(t.Context(), w.reread(claim))
	w.Expect(err).NotTo(HaveOccurred(), "the clone may be at work, and is waited for")
	w.deleted(p, w.reread(claim))
	w.expectNothingLeft()
}

// Patience is with the obstacle at hand, not with all that a launch ever met.
func TestPatienceBeginsAnewWithEveryStepForward(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	p := w.process(with(func(s *instance.Settings) { s.LaunchRetryTimeout = time.Second }))
	claim := w.planned(p, "pool-abc")
	w.fault(pvesim.Fault{Method: "POST", Path: "/nodes/{node}/qemu/{vmid}/clone", Count: 1, Status: 500, Message: "got no worker upid - start worker failed"})
	w.fault(pvesim.Fault{Task: "qmclone", Delay: pvesim.Duration(75 * time.Second), Count: 1}) // 1.5 s here
	w.fault(pvesim.Fault{Method: "PUT", Path: "/nodes/{node}/qemu/{vmid}/config", Count: 1, Status: 500, Message: "can't lock file '/var/lock/qemu-server/lock-1.conf' - got timeout"})
	w.Expect(p.Launcher.Launch(t.Context(), claim, w.class)).To(MatchError(proxmox.ErrBusy))
	err := p.Launcher.Launch(t.Context(), w.reread(claim), w.class)
	w.Expect(err).To(MatchError(proxmox.ErrLocked))
	var final *instance.LaunchError
	w.Expect(errors.As(err, &final)).To(BeFalse(), "it has only just begun: %v", err)
	w.Expect(p.Launcher.Launch(t.Context(), w.reread(claim), w.class)).To(Succeed())
}

func TestAnAcceptedResetIsNotAskedForAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	p := w.process()
	claim := w.launched(p, "pool-abc")
	w.fault(pvesim.Fault{Method: "GET", Path: "/nodes/*/tasks/*qmreset*/status", Status: 403, Message: "Permission check failed", Count: 1})
	w.Expect(p.Power.Reboot(t.Context(), claim, "op-1")).To(Succeed())
	w.Expect(p.Power.Reboot(t.Context(), w.reread(claim), "op-1")).To(Succeed())
	resets := func() int { return w.sim.CountRequests("POST", "/nodes/{node}/qemu/{vmid}/status/reset") }
	w.Expect(resets()).To(Equal(1))

	w.fault(pvesim.Fault{Task: "qmreset", Fail: "VM is locked", Count: 1})
	w.Expect(p.Power.Reboot(t.Context(), w.reread(claim), "op-2")).To(MatchError(ContainSubstring("locked")))
	w.Expect(p.Power.Reboot(t.Context(), w.reread(claim), "op-2")).To(Succeed(), "one that failed is tried again")
	w.Expect(resets()).To(Equal(3))
}

// Clones take minutes where disks are copied. Whoever is to go does not wait for them.
func TestDeletesDoNotWaitForClones(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	p := w.process(with(func(s *instance.Settings) { s.TaskTimeout = time.Hour }))
	slots := instance.DefaultSettings().CloneSlots
	going := w.launched(p, "pool-going")
	w.fault(pvesim.Fault{Task: "qmclone", Hang: true})
	ctx, end := context.WithCancel(t.Context())
	var launches sync.WaitGroup
	for n := range slots + 1 {
		claim := w.planned(p, fmt.Sprintf("pool-%d", n))
		launches.Go(func() { _ = p.Launcher.Launch(ctx, claim, w.class) })
	}
	// The first was the one that goes.
	w.Eventually(func() int { return w.sim.CountRequests("POST", "/nodes/{node}/qemu/{vmid}/clone") }).Should(Equal(1 + slots))
	w.deleted(p, going)
	end()
	launches.Wait()
}

// A VM may move between the list and the look at its configuration.
func TestAVMThatMovesWhileItIsLookedForIsFound(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	p := w.process(frozen)
	claim := w.launched(p, "pool-abc")
	in := w.intentOf(claim)
	w.Expect(p.inventory.RefreshAll(t.Context())).To(Succeed())
	w.fault(pvesim.Fault{Method: "GET", Path: fmt.Sprintf("/nodes/%s/qemu/%d/config", in.Host, in.VMID), Count: 1, Status: 500,
		Message: fmt.Sprintf("Configuration file 'nodes/%s/qemu-server/%d.conf' does not exist", in.Host, in.VMID)})
	vm, err := p.VMs.Get(t.Context(), v1alpha1.ProviderID{Region: in.Region, VMID: in.VMID})
	w.Expect(err).NotTo(HaveOccurred())
	w.Expect(vm.VMID).To(Equal(in.VMID))
}

// Proxmox destroys a VM also where it cannot free its disk, and only warns.
func TestADiskThatWasLeftBehindIsFreed(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	p := w.process()
	claim := w.launched(p, "pool-abc")
	host := w.intentOf(claim).Host
	release, err := w.sim.HoldStorageLock(t.Context(), host, "local-lvm")
	w.Expect(err).NotTo(HaveOccurred())
	go func() {
		defer release()
		// It is given back once Proxmox has given up on it.
		w.Eventually(func() int { return w.sim.CountRequests("DELETE", "/nodes/{node}/storage/{storage}/content/{volume}") }).
			Should(BeNumerically(">", 0))
	}()
	w.deleted(p, claim)
	w.expectNothingLeft()
}

// What was asked for happens, whether its answer is waited for or not: a try that fails
// elsewhere must not leave a rule under way for the next one to double.
func TestARuleUnderWayIsWaitedFor(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	p := w.process()
	claim := w.planned(p, "pool-abc")
	w.fault(pvesim.Fault{Method: "POST", Path: "/nodes/{node}/qemu/{vmid}/firewall/rules", Delay: pvesim.Duration(20 * time.Second), Count: 1})
	w.fault(pvesim.Fault{Method: "PUT", Path: "/nodes/{node}/qemu/{vmid}/config", Count: 1, Status: 500, Message: "can't lock file '/var/lock/qemu-server/lock-1.conf' - got timeout"})
	w.Expect(p.Launcher.Launch(t.Context(), claim, w.class)).To(MatchError(proxmox.ErrLocked))
	w.Expect(w.sim.FirewallGroups()[w.intentOf(claim).VMID]).To(HaveLen(1))
}
