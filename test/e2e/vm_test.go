// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"testing"

	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/test/harness"
)

// TestVMs has what can be seen of VMs on any Proxmox, whether their guests join or
// not: they come as the class says, once, and go; other people's stay.
func TestVMs(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{hosts: 2, version: "9.2", args: []string{"--orphan-grace", orphanGrace.String()}})
	before, err := w.holdings(t.Context())
	must(t, err)
	t.Run("a pending pod gets a VM as its class says, and gives it back", w.vmAsAsked)
	t.Run("a launch outlives its controller", w.launchOutlivesController)
	t.Run("an orphan is collected, a copy of it and other people's guests are not", w.orphanCollected)
	t.Run("somebody else's VM on our VMID is left alone", w.vmidReused)
	if !t.Failed() {
		w.asBefore(t, before)
	}
}

func (w *world) vmAsAsked(t *testing.T) {
	p := w.newPool(t, "asked", nil)
	p.run(t, 1)
	claim := p.onlyClaim(t, "is launched", launched)
	vms, err := p.vms(t.Context())
	must(t, err)
	if len(vms) != 1 {
		t.Fatalf("there are VMs %v, want one", vmids(vms))
	}
	vm := vms[0]
	if want := (v1alpha1.ProviderID{Region: w.region, VMID: vm.VMID}).String(); claim.Status.ProviderID != want {
		t.Errorf("the provider ID of the claim is %q, want %q", claim.Status.ProviderID, want)
	}
	if vm.Status != "running" || vm.Name != claim.Name {
		t.Errorf("the VM is %s and named %s, want running and %s", vm.Status, vm.Name, claim.Name)
	}
	text := func(key string) string { return fmt.Sprint(vm.Config[key]) }
	if !strings.Contains(strings.ToLower(text("smbios1")), string(claim.UID)) {
		t.Errorf("smbios1 of the VM is %q, want the claim's UID %s in it", text("smbios1"), claim.UID)
	}
	if !strings.Contains(text("tags"), "karpenter") {
		t.Errorf("tags of the VM are %q, want the class's", text("tags"))
	}
	if cpu := claim.Status.Capacity.Cpu().Value(); text("cores") != strconv.FormatInt(cpu, 10) {
		t.Errorf("the VM has %s cores, want %d", text("cores"), cpu)
	}
	var disks []string
	for _, key := range slices.Sorted(maps.Keys(vm.Config)) {
		if value := text(key); strings.Contains(value, "size=") && !strings.Contains(value, "media=cdrom") {
			disks = append(disks, key+": "+value)
		}
	}
	if size := "size=" + string(p.kit.Class.Spec.BootDevice.Size); len(disks) != 1 || !strings.Contains(disks[0], size) {
		t.Errorf("the VM has the disks %q, want one with %s", disks, size)
	}
	p.giveBack(t, claim)
}

// launchOutlivesController kills the controller once Proxmox shows the VM in
// whatever state, and lets another one finish.
func (w *world) launchOutlivesController(t *testing.T) {
	p := w.newPool(t, "outlives", nil)
	p.run(t, 1)
	w.killWhen(t, func(t *testing.T, _ *world) bool {
		claims, err := p.claims(t.Context())
		must(t, err)
		if len(claims) == 0 || claims[0].Annotations[v1alpha1.AnnotationLaunchIntent] == "" {
			return false
		}
		return p.noVM(t.Context(), &claims[0]) != nil
	})
	was := p.onlyClaim(t, "has an intent", func(claim *karpv1.NodeClaim) error { _, err := intent(claim); return err })
	want, err := intent(was)
	must(t, err)
	must(t, w.controller.Start(t.Context()))
	claim := p.onlyClaim(t, "is launched", launched)
	if vms, err := p.vms(t.Context()); err != nil || len(vms) != 1 || vms[0].VMID != want || claim.UID != was.UID {
		t.Errorf("claim %s has VMs %v (%v), want claim %s with VM %d", claim.Name, vmids(vms), err, was.Name, want)
	}
	p.giveBack(t, claim)
}

func (w *world) orphanCollected(t *testing.T) {
	p := w.newPool(t, "orphan", nil)
	p.run(t, 1)
	claim := p.onlyClaim(t, "is launched", launched)
	vm := vmOf(t, p, claim)
	office := w.somebodys(t, vm.Host, 0, url.Values{"name": {"office"}})
	// What a copy has in common with the original.
	copied := w.somebodys(t, vm.Host, 0, url.Values{"name": {"copied"}, "description": {vm.Notes()}, "smbios1": {fmt.Sprint(vm.Config["smbios1"])}})

	p.scaleToZero(t) // else Karpenter makes another one at once
	p.tearOut(t, claim)
	p.eventually(t, "the orphan to be removed", func(ctx context.Context) error { return p.noVM(ctx, claim) })
	from := p.rounds(t)
	p.eventually(t, "the collector to pass often enough", func(context.Context) error {
		if n := p.rounds(t) - from; n < orphanRounds {
			return fmt.Errorf("it passed %.0f times", n)
		}
		return nil
	})
	w.stillThere(t, office, copied)
	p.nothingLeft(t)
	for _, guest := range []harness.Guest{office, copied} {
		must(t, w.api.Destroy(t.Context(), guest))
	}
}

// vmidReused: while no controller runs, the VM is removed and somebody takes its VMID.
func (w *world) vmidReused(t *testing.T) {
	p := w.newPool(t, "reused", nil)
	p.run(t, 1)
	first := p.onlyClaim(t, "is launched", launched)
	vm := vmOf(t, p, first)
	w.controller.Stop()
	must(t, w.api.Destroy(t.Context(), vm))
	theirs := w.somebodys(t, vm.Host, vm.VMID, url.Values{"name": {"theirs"}})
	must(t, w.controller.Start(t.Context()))
	p.claimGoes(t, first)
	second := p.onlyClaim(t, "replaces the first", launched)
	p.giveBack(t, first, second)
	w.stillThere(t, theirs)
	must(t, w.api.Destroy(t.Context(), theirs))
}

// somebodys makes a guest that is none of the controller's, without disk or
// network; VMID 0 takes a free one.
func (w *world) somebodys(t *testing.T, host string, vmid int, config url.Values) harness.Guest {
	t.Helper()
	if vmid == 0 {
		vmid = w.freeVMID(t)
	}
	config.Set("vmid", strconv.Itoa(vmid))
	config.Set("memory", "128")
	config.Set("description", config.Get("description")+"\n\n"+harness.Mark(w.cluster, vmid))
	if suite.lab != nil && suite.lab.ResourcePool != "" {
		config.Set("pool", suite.lab.ResourcePool) // else the token may not
	}
	must(t, w.api.Run(t.Context(), http.MethodPost, "/nodes/"+host+"/qemu", config))
	return w.foreign(t, vmid)
}

// freeVMID is the highest that nobody has: the controller is unlikely to want it.
func (w *world) freeVMID(t *testing.T) int {
	t.Helper()
	highest := 99999
	if suite.lab != nil {
		highest = suite.lab.VMIDs.To
	}
	guests, err := w.api.Guests(t.Context())
	must(t, err)
	for slices.Contains(vmids(guests), highest) {
		highest--
	}
	return highest
}

// stillThere: guests are exactly as they were.
func (w *world) stillThere(t *testing.T, guests ...harness.Guest) {
	t.Helper()
	for _, was := range guests {
		now := w.foreign(t, was.VMID)
		if left := (harness.Holdings{Guests: []harness.Guest{was}}).Leftovers(harness.Holdings{Guests: []harness.Guest{now}}); len(left) > 0 {
			t.Errorf("somebody else's guest was touched: %v", left)
		}
	}
}
