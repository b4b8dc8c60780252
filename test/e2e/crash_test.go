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

// TestKilledInTheMiddleOfALaunch kills the controller as kill -9 does, at each
// step of a launch. Its successor must end with exactly one VM: the one that the
// claim's intent names.
func TestKilledInTheMiddleOfALaunch(t *testing.T) {
	t.Parallel()
	needs(t, simulator("it holds Proxmox still at the moment of each crash; TestVMs has a crash for any Proxmox"))
	w := newWorld(t, setup{hosts: 1, speed: 1})
	before, err := w.holdings(t.Context())
	must(t, err)
	for _, moment := range []struct {
		name  string
		fault pvesim.Fault
		is    func(*testing.T, *world) bool
	}{
		// The answer to the clone never reaches the controller.
		{"clone-unanswered", pvesim.Fault{Method: "POST", Path: "/nodes/{node}/qemu/{vmid}/clone", DropAfter: true, Count: 1}, asked("POST /nodes/{node}/qemu/{vmid}/clone")},
		{"clone-accepted", pvesim.Fault{Task: "qmclone", Delay: pvesim.Duration(2 * time.Second), Count: 1}, asked("POST /nodes/{node}/qemu/{vmid}/clone")},
		{"cloning", pvesim.Fault{}, cloneLocked},
		{"uploaded", pvesim.Fault{Task: "qmclone", Delay: pvesim.Duration(2 * time.Second), Count: 1}, asked("POST /nodes/{node}/storage/{storage}/upload")},
		{"configured", pvesim.Fault{Task: "qmstart", Delay: pvesim.Duration(2 * time.Second), Count: 1}, configured},
		{"started", pvesim.Fault{Task: "qmstart", Delay: pvesim.Duration(2 * time.Second), Count: 1}, asked("POST /nodes/{node}/qemu/{vmid}/status/start")},
	} {
		t.Run(moment.name, func(t *testing.T) {
			w.proxmox.ResetRequests()
			if moment.fault != (pvesim.Fault{}) {
				id, err := w.proxmox.AddFault(moment.fault)
				must(t, err)
				defer w.proxmox.RemoveFault(id)
			}
			p := w.newPool(t, moment.name, func(kit *harness.Kit) {
				// A linked clone may be over between two looks of a busy machine.
				kit.Class.Spec.BootDevice.FullClone = moment.name == "cloning"
			})
			p.run(t, 1)
			w.killWhen(t, moment.is)
			claim := p.onlyClaim(t, "has an intent", func(claim *karpv1.NodeClaim) error { _, err := intent(claim); return err })
			want, err := intent(claim)
			must(t, err)
			if claim.Annotations[v1alpha1.AnnotationLaunchCompleted] != "" {
				t.Fatal("the controller was killed too late: the launch is over")
			}

			must(t, w.controller.Start(t.Context()))
			p.podsRun(t, 1)
			after := p.onlyClaim(t, "is settled", settled)
			if after.UID != claim.UID {
				t.Errorf("the claim was replaced by %s", after.Name)
			}
			vms, err := p.vms(t.Context())
			must(t, err)
			if len(vms) != 1 || vms[0].VMID != want {
				w.dump(t)
				t.Errorf("the claim has VMs %v, want exactly %d", vmids(vms), want)
			}
			if boots := w.proxmox.Witness.BootsOf(string(claim.UID)); len(boots) != 1 {
				t.Errorf("the VM was booted %d times, want once: %v", len(boots), boots)
			}
			p.giveBack(t, claim)
		})
	}
	w.asBefore(t, before)
}

// killWhen kills the controller the moment that something is so. It looks as
// often as it can: the moments are short.
func (w *world) killWhen(t *testing.T, is func(*testing.T, *world) bool) {
	t.Helper()
	deadline := time.Now().Add(patience())
	for !is(t, w) {
		if time.Now().After(deadline) {
			w.dump(t)
			t.Fatal("the moment to kill the controller never came")
		}
		time.Sleep(time.Millisecond)
	}
	w.controller.Kill()
}

// asked: Proxmox has answered a request.
func asked(request string) func(*testing.T, *world) bool {
	return func(_ *testing.T, w *world) bool { return w.proxmox.RequestCounts()[request] > 0 }
}

func cloneLocked(t *testing.T, w *world) bool {
	return w.anyVM(t, func(g harness.Guest) bool { return g.Config["lock"] == "clone" })
}

// configured: our one write has happened, the VM has its claim's UUID.
func configured(t *testing.T, w *world) bool {
	return w.anyVM(t, func(g harness.Guest) bool {
		smbios, _ := g.Config["smbios1"].(string)
		return strings.Contains(smbios, "serial=") && g.Status == "stopped"
	})
}

func (w *world) anyVM(t *testing.T, is func(harness.Guest) bool) bool {
	t.Helper()
	guests, err := w.api.Guests(t.Context())
	must(t, err)
	for _, guest := range guests {
		if guest.VMID >= 20000 && is(guest) {
			return true
		}
	}
	return false
}

// intent reads the VMID that a claim was promised.
func intent(claim *karpv1.NodeClaim) (int, error) {
	var in struct{ VMID int }
	if err := json.Unmarshal([]byte(claim.Annotations[v1alpha1.AnnotationLaunchIntent]), &in); err != nil {
		return 0, fmt.Errorf("reading the intent of claim %s, %w", claim.Name, err)
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

// TestControllerAway has what happens while no controller runs.
func TestControllerAway(t *testing.T) {
	t.Parallel()
	needs(t, guestsThatJoin())
	w := newWorld(t, setup{gracePeriod: 8 * time.Second})
	p := w.newPool(t, "away", nil)
	p.run(t, 1)
	p.podsRun(t, 1)
	claim := p.onlyClaim(t, "is settled", settled)
	vms, err := p.vms(t.Context())
	must(t, err)

	t.Run("a rebooted VM keeps its node and changes its boot ID", func(t *testing.T) {
		was, err := p.node(t.Context(), claim)
		must(t, err)
		must(t, w.api.Reboot(t.Context(), vms[0]))
		p.bootedAgain(t, claim, was)
	})
	t.Run("a stopped VM's node is NotReady until the controller is back", func(t *testing.T) {
		was, err := p.node(t.Context(), claim)
		must(t, err)
		w.controller.Stop()
		must(t, w.api.Stop(t.Context(), vms[0]))
		w.eventually(t, "the node to be NotReady", func(ctx context.Context) error {
			node, err := p.node(ctx, claim)
			if err == nil && harness.NodeReady(node) {
				err = errors.New("it is Ready")
			}
			return err
		})
		must(t, w.controller.Start(t.Context()))
		p.bootedAgain(t, claim, was)
	})
	p.giveBack(t, claim)
}

func (w *world) foreign(t *testing.T, vmid int) harness.Guest {
	t.Helper()
	guests, err := w.api.Guests(t.Context())
	must(t, err)
	for _, guest := range guests {
		if guest.VMID == vmid {
			return guest
		}
	}
	t.Fatalf("there is no VM %d", vmid)
	return harness.Guest{}
}
