// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/test/harness"
)

// TestKillDuringLaunch kills the controller with SIGKILL at each step of a launch. After a
// restart there must be exactly one VM: the one in the NodeClaim's intent.
func TestKillDuringLaunch(t *testing.T) {
	t.Parallel()
	needs(t, simulator("it delays tasks at each step; TestVMs has a crash for any Proxmox"))
	e := newEnv(t, setup{hosts: 1, speed: 1})
	before, err := e.holdings(t.Context())
	must(t, err)
	for _, moment := range []struct {
		name  string
		fault pvesim.Fault
		is    func(*testing.T, *env) bool
	}{
		// The response to the clone request is lost.
		{"clone-unanswered", pvesim.Fault{Method: "POST", Path: "/nodes/{node}/qemu/{vmid}/clone", DropAfter: true, Count: 1}, requested("POST /nodes/{node}/qemu/{vmid}/clone")},
		{"clone-accepted", pvesim.Fault{Task: "qmclone", Delay: pvesim.Duration(2 * time.Second), Count: 1}, requested("POST /nodes/{node}/qemu/{vmid}/clone")},
		{"cloning", pvesim.Fault{}, cloneLocked},
		{"uploaded", pvesim.Fault{Task: "qmclone", Delay: pvesim.Duration(2 * time.Second), Count: 1}, requested("POST /nodes/{node}/storage/{storage}/upload")},
		{"configured", pvesim.Fault{}, configured},
		{"started", pvesim.Fault{}, requested("POST /nodes/{node}/qemu/{vmid}/status/start")},
	} {
		t.Run(strings.ReplaceAll(moment.name, "-", "_"), func(t *testing.T) {
			e.proxmox.ResetRequests()
			if moment.fault != (pvesim.Fault{}) {
				id, err := e.proxmox.AddFault(moment.fault)
				must(t, err)
				defer e.proxmox.RemoveFault(id)
			}
			// On a busy machine, the launch must not be completed before the controller is killed.
			startFault, err := e.proxmox.AddFault(pvesim.Fault{Task: "qmstart", Delay: pvesim.Duration(10 * time.Second), Count: 1})
			must(t, err)
			p := e.newNodePool(t, moment.name, func(kit *harness.Kit) {
				// A linked clone may end between two polls on a busy machine.
				kit.Class.Spec.BootDevice.FullClone = moment.name == "cloning"
			})
			p.deployPods(t, 1)
			e.killWhen(t, moment.is)
			e.proxmox.RemoveFault(startFault)
			claim := p.waitForClaim(t, "has an intent", func(claim *karpv1.NodeClaim) error { _, err := intent(claim); return err })
			want, err := intent(claim)
			must(t, err)
			if claim.Annotations[v1alpha1.AnnotationLaunchCompleted] != "" {
				t.Fatal("the controller was killed too late: the launch is completed")
			}

			must(t, e.controller.Start(t.Context()))
			p.waitForPods(t, 1)
			after := p.waitForClaim(t, "is settled", settled)
			if after.UID != claim.UID {
				t.Errorf("the claim was replaced by %s", after.Name)
			}
			vms, err := p.vms(t.Context())
			must(t, err)
			if len(vms) != 1 || vms[0].VMID != want {
				e.dump(t)
				t.Errorf("the claim has VMs %v, want exactly %d", vmids(vms), want)
			}
			if boots := e.proxmox.BootRecorder.BootsOf(string(claim.UID)); len(boots) != 1 {
				t.Errorf("the VM was booted %d times, want once: %v", len(boots), boots)
			}
			p.deleteClaims(t, claim)
		})
	}
	e.expectUnchanged(t, before)
}

// killWhen kills the controller as soon as the condition is true. It polls without delay
// because the steps are short.
func (e *env) killWhen(t *testing.T, is func(*testing.T, *env) bool) {
	t.Helper()
	deadline := time.Now().Add(timeout())
	for !is(t, e) {
		if time.Now().After(deadline) {
			e.dump(t)
			t.Fatal("the condition to kill the controller was not met")
		}
		time.Sleep(time.Millisecond)
	}
	e.controller.Kill()
}

// requested returns a condition: Proxmox has answered a request.
func requested(request string) func(*testing.T, *env) bool {
	return func(_ *testing.T, e *env) bool { return e.proxmox.RequestCounts()[request] > 0 }
}

func cloneLocked(t *testing.T, e *env) bool {
	return e.anyVM(t, func(g harness.Guest) bool { return g.Config["lock"] == "clone" })
}

// configured reports whether the VM has its NodeClaim's UUID and is not started.
func configured(t *testing.T, e *env) bool {
	return e.anyVM(t, func(g harness.Guest) bool {
		smbios, _ := g.Config["smbios1"].(string)
		return strings.Contains(smbios, "serial=") && g.Status == "stopped"
	})
}

func (e *env) anyVM(t *testing.T, is func(harness.Guest) bool) bool {
	t.Helper()
	guests, err := e.api.Guests(t.Context())
	must(t, err)
	for _, guest := range guests {
		if guest.VMID >= 20000 && is(guest) {
			return true
		}
	}
	return false
}

// intent returns the VMID in a NodeClaim's intent.
func intent(claim *karpv1.NodeClaim) (int, error) {
	var in struct{ VMID int }
	if err := json.Unmarshal([]byte(claim.Annotations[v1alpha1.AnnotationLaunchIntent]), &in); err != nil {
		return 0, fmt.Errorf("reading intent of claim %s: %w", claim.Name, err)
	}
	return in.VMID, nil
}

func vmids(vms []harness.Guest) []int {
	var out []int
	for _, vm := range vms {
		out = append(out, vm.VMID)
	}
	return out
}

// TestControllerAway covers changes while no controller runs. Nodes are initialized by the
// Proxmox cloud controller manager, which continues to run. All other tests run without it.
func TestControllerAway(t *testing.T) {
	t.Parallel()
	needs(t, guestsThatJoin())
	e := newEnv(t, setup{gracePeriod: 20 * time.Second})
	e.startCloudController(t)
	history := e.recordNodes(t)
	p := e.newNodePool(t, "away", leaveToCloudController(t))
	p.deployPods(t, 1)
	p.waitForPods(t, 1)
	claim := p.waitForClaim(t, "is settled", settled)
	vms, err := p.vms(t.Context())
	must(t, err)

	t.Run("cloud_controller_manager_agrees", func(t *testing.T) { p.expectAgreement(t, claim, vms[0], history) })
	t.Run("VM_rebooted", func(t *testing.T) {
		was, err := p.node(t.Context(), claim)
		must(t, err)
		must(t, e.api.Reboot(t.Context(), vms[0]))
		p.waitForReboot(t, claim, was)
	})
	t.Run("VM_stopped", func(t *testing.T) {
		was, err := p.node(t.Context(), claim)
		must(t, err)
		e.controller.Stop()
		must(t, e.api.Stop(t.Context(), vms[0]))
		e.eventually(t, "the node to be NotReady", func(ctx context.Context) error {
			node, err := p.node(ctx, claim)
			if err == nil && harness.NodeReady(node) {
				err = errors.New("it is Ready")
			}
			return err
		})
		p.waitForShutdownTaint(t, claim, true)
		must(t, e.controller.Start(t.Context()))
		p.waitForReboot(t, claim, was)
		p.waitForShutdownTaint(t, claim, false)
	})
	t.Run("VM_deleted", func(t *testing.T) { p.deletedWhileAway(t, claim, e.guest(t, vms[0].VMID)) })
}

func (e *env) guest(t *testing.T, vmid int) harness.Guest {
	t.Helper()
	guests, err := e.api.Guests(t.Context())
	must(t, err)
	for _, guest := range guests {
		if guest.VMID == vmid {
			return guest
		}
	}
	t.Fatalf("VM %d not found", vmid)
	return harness.Guest{}
}
