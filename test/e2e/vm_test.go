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
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/test/harness"
)

// TestVMs contains tests for any Proxmox, whether its guests can join or not: VMs match their
// class, exist once and are deleted; other guests are not touched.
func TestVMs(t *testing.T) {
	t.Parallel()
	e := newEnv(t, setup{hosts: 2, version: "9.2", args: []string{"--orphan-grace-period", orphanGrace.String()}})
	before, err := e.holdings(t.Context())
	must(t, err)
	t.Run("VM_matches_class", e.vmMatchesClass)
	t.Run("controller_killed_during_launch", e.killedDuringLaunch)
	t.Run("orphan", e.orphanDeleted)
	t.Run("VMID_reused", e.vmidReused)
	if !t.Failed() {
		e.expectUnchanged(t, before)
	}
}

func (e *env) vmMatchesClass(t *testing.T) {
	p := e.newNodePool(t, "match", nil)
	p.deployPods(t, 1)
	claim := p.waitForClaim(t, "is launched", launched)
	vms, err := p.vms(t.Context())
	must(t, err)
	if len(vms) != 1 {
		t.Fatalf("found VMs %v, want one", vmids(vms))
	}
	vm := vms[0]
	if want := (v1alpha1.ProviderID{Region: e.region, VMID: vm.VMID}).String(); claim.Status.ProviderID != want {
		t.Errorf("the provider ID of the claim is %q, want %q", claim.Status.ProviderID, want)
	}
	if vm.Status != "running" || vm.Name != claim.Name {
		t.Errorf("the VM is %s and named %s, want running and %s", vm.Status, vm.Name, claim.Name)
	}
	text := func(key string) string { return fmt.Sprint(vm.Config[key]) }
	if !strings.Contains(strings.ToLower(text("smbios1")), string(claim.UID)) {
		t.Errorf("smbios1 of the VM is %q, want it to contain the claim's UID %s", text("smbios1"), claim.UID)
	}
	if !strings.Contains(text("tags"), "karpenter") {
		t.Errorf("tags of the VM are %q, want the class's", text("tags"))
	}
	if cpu := claim.Status.Capacity.Cpu().Value(); text("cores") != strconv.FormatInt(cpu, 10) {
		t.Errorf("the VM has %s cores, want %d", text("cores"), cpu)
	}
	var disks []proxmox.Drive
	for _, key := range slices.Sorted(maps.Keys(vm.Config)) {
		if value := text(key); strings.Contains(value, "size=") && !strings.Contains(value, "media=cdrom") {
			disks = append(disks, proxmox.ParseDrive(key, value))
		}
	}
	size, err := p.kit.Class.Spec.BootDevice.Size.Bytes()
	must(t, err)
	if len(disks) != 1 || disks[0].SizeBytes < size {
		t.Errorf("the VM has disks %v, want one of at least %d bytes", disks, size)
	}
	p.deleteClaims(t, claim)
}

// killedDuringLaunch kills the controller when the VM appears in Proxmox and lets another one
// complete the launch.
func (e *env) killedDuringLaunch(t *testing.T) {
	p := e.newNodePool(t, "killed", nil)
	p.deployPods(t, 1)
	e.killWhen(t, func(t *testing.T, _ *env) bool {
		claims, err := p.claims(t.Context())
		must(t, err)
		if len(claims) == 0 || claims[0].Annotations[v1alpha1.AnnotationLaunchIntent] == "" {
			return false
		}
		return p.noVM(t.Context(), &claims[0]) != nil
	})
	was := p.waitForClaim(t, "has an intent", func(claim *karpv1.NodeClaim) error { _, err := intent(claim); return err })
	want, err := intent(was)
	must(t, err)
	must(t, e.controller.Start(t.Context()))
	claim := p.waitForClaim(t, "is launched", launched)
	if vms, err := p.vms(t.Context()); err != nil || len(vms) != 1 || vms[0].VMID != want || claim.UID != was.UID {
		t.Errorf("claim %s has VMs %v (%v), want claim %s with VM %d", claim.Name, vmids(vms), err, was.Name, want)
	}
	p.deleteClaims(t, claim)
}

func (e *env) orphanDeleted(t *testing.T) {
	p := e.newNodePool(t, "orphan", nil)
	p.deployPods(t, 1)
	claim := p.waitForClaim(t, "is launched", launched)
	vm := vmOf(t, p, claim)
	office := e.createForeignGuest(t, vm.Host, 0, url.Values{"name": {"office"}})
	// A copy has the same notes and UUID as the original.
	copied := e.createForeignGuest(t, vm.Host, 0, url.Values{"name": {"copied"}, "description": {vm.Notes()}, "smbios1": {fmt.Sprint(vm.Config["smbios1"])}})

	p.scaleToZero(t) // otherwise Karpenter creates another one
	p.orphan(t, claim)
	p.eventually(t, "the orphan to be deleted", func(ctx context.Context) error { return p.noVM(ctx, claim) })
	from := p.rounds(t)
	p.eventually(t, "rounds of the garbage collector", func(context.Context) error {
		if n := p.rounds(t) - from; n < orphanRounds {
			return fmt.Errorf("%.0f rounds", n)
		}
		return nil
	})
	e.expectUnchangedGuests(t, office, copied)
	p.waitUntilGone(t)
	for _, guest := range []harness.Guest{office, copied} {
		must(t, e.api.Destroy(t.Context(), guest))
	}
}

// vmidReused deletes the VM while no controller runs and creates another guest with its VMID.
func (e *env) vmidReused(t *testing.T) {
	p := e.newNodePool(t, "reused", nil)
	p.deployPods(t, 1)
	first := p.waitForClaim(t, "is launched", launched)
	vm := vmOf(t, p, first)
	e.controller.Stop()
	must(t, e.api.Destroy(t.Context(), vm))
	theirs := e.createForeignGuest(t, vm.Host, vm.VMID, url.Values{"name": {"foreign"}})
	must(t, e.controller.Start(t.Context()))
	p.waitForDeletion(t, first)
	second := p.waitForClaim(t, "replaces the first", launched)
	p.deleteClaims(t, first, second)
	e.expectUnchangedGuests(t, theirs)
	must(t, e.api.Destroy(t.Context(), theirs))
}

// createForeignGuest creates a guest that does not belong to the controller, without disk or
// network. With VMID 0 it uses a free one.
func (e *env) createForeignGuest(t *testing.T, host string, vmid int, config url.Values) harness.Guest {
	t.Helper()
	if vmid == 0 {
		vmid = e.freeVMID(t)
	}
	config.Set("vmid", strconv.Itoa(vmid))
	config.Set("memory", "128")
	config.Set("description", config.Get("description")+"\n\n"+harness.TestNotes(e.cluster, vmid))
	if suite.lab != nil && suite.lab.ResourcePool != "" {
		config.Set("pool", suite.lab.ResourcePool) // otherwise the token has no permission
	}
	must(t, e.api.Run(t.Context(), http.MethodPost, "/nodes/"+host+"/qemu", config))
	return e.guest(t, vmid)
}

// freeVMID returns the highest unused VMID, which the controller is unlikely to choose.
func (e *env) freeVMID(t *testing.T) int {
	t.Helper()
	highest := 99999
	if suite.lab != nil {
		highest = suite.lab.VMIDs.To
	}
	guests, err := e.api.Guests(t.Context())
	must(t, err)
	for slices.Contains(vmids(guests), highest) {
		highest--
	}
	return highest
}

// expectUnchangedGuests checks that guests are exactly as before.
func (e *env) expectUnchangedGuests(t *testing.T, guests ...harness.Guest) {
	t.Helper()
	for _, was := range guests {
		now := e.guest(t, was.VMID)
		if left := (harness.Holdings{Guests: []harness.Guest{was}}).Diff(harness.Holdings{Guests: []harness.Guest{now}}); len(left) > 0 {
			t.Errorf("another guest was changed: %v", left)
		}
	}
}
