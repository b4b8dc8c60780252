// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/test/harness"
)

const (
	orphanGrace = 5 * time.Second
	// orphanRounds is how many rounds, at one a second, a collector needs to
	// remove what it takes for an orphan, and some more.
	orphanRounds = 12
)

// TestTwoKubernetesClusters share one Proxmox cluster, with the same names
// everywhere, and leave each other's VMs alone.
func TestTwoKubernetesClusters(t *testing.T) {
	t.Parallel()
	binaries(t)
	needs(t, guestsThatJoin(), room(2))
	var proxmox *harness.Proxmox
	if suite.lab == nil {
		proxmox = newProxmox(t, setup{})
	}
	usual := setup{proxmox: proxmox, args: []string{"--orphan-grace", orphanGrace.String()}}
	one, other := newWorld(t, usual), newWorld(t, usual)
	a, b := one.newPool(t, "same", nil), other.newPool(t, "same", nil)
	for _, p := range []*pool{a, b} {
		p.run(t, 2)
	}
	var claims []*karpv1.NodeClaim
	for _, p := range []*pool{a, b} {
		p.podsRun(t, 2)
		claims = append(claims, p.onlyClaim(t, "is settled", settled))
		// By now the boot drive is gone: from here on the VM does not change.
		p.eventually(t, "the boot drive to be taken back", func(ctx context.Context) error { return p.noBootData(ctx, claims[len(claims)-1]) })
	}
	theirs := vmOf(t, b, claims[1])

	t.Run("collecting orphans", func(t *testing.T) {
		a.tearOut(t, claims[0])
		a.eventually(t, "the orphan's VM to be removed", func(ctx context.Context) error { return a.noVM(ctx, claims[0]) })
		fromA, fromB := a.rounds(t), b.rounds(t)
		a.eventually(t, "both collectors to pass often enough", func(context.Context) error {
			if n := min(a.rounds(t)-fromA, b.rounds(t)-fromB); n < orphanRounds {
				return fmt.Errorf("one passed %.0f times", n)
			}
			return nil
		})
		untouched(t, b, claims[1], theirs)
	})
	t.Run("scaling one of them down", func(t *testing.T) {
		a.scaleToZero(t)
		a.eventually(t, "the one cluster's claims to be gone", func(ctx context.Context) error {
			left, err := a.claims(ctx)
			if err == nil && len(left) > 0 {
				err = fmt.Errorf("%d are left", len(left))
			}
			return err
		})
		untouched(t, b, claims[1], theirs)
	})
	t.Run("scaling the other down", func(t *testing.T) {
		b.scaleToZero(t)
		b.nothingLeft(t, claims[1])
	})
}

// tearOut removes a claim by force, so that nobody removes its VM.
func (p *pool) tearOut(t *testing.T, claim *karpv1.NodeClaim) {
	t.Helper()
	torn := claim.DeepCopy()
	must(t, p.kube.Delete(t.Context(), claim))
	must(t, client.IgnoreNotFound(p.kube.Patch(t.Context(), torn, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`)))))
}

// noVM: nothing is left under the claim's VMID.
func (p *pool) noVM(ctx context.Context, claim *karpv1.NodeClaim) error {
	vmid, err := intent(claim)
	if err != nil {
		return err
	}
	guests, err := p.api.Guests(ctx)
	if err != nil {
		return err
	}
	for _, guest := range guests {
		if guest.VMID == vmid {
			return fmt.Errorf("VM %d is %s on host %s", vmid, guest.Status, guest.Host)
		}
	}
	return nil
}

// rounds that the collector of orphans made.
func (w *world) rounds(t *testing.T) float64 {
	t.Helper()
	n, err := w.controller.Metric(t.Context(), "controller_runtime_reconcile_total", map[string]string{"controller": "nodeclaim.garbagecollection.proxmox"})
	must(t, err)
	return n
}

func vmOf(t *testing.T, p *pool, claim *karpv1.NodeClaim) harness.Guest {
	t.Helper()
	vmid, err := intent(claim)
	must(t, err)
	return p.foreign(t, vmid)
}

// untouched: the other cluster's VM is as it was, was booted once, and its Node
// is Ready.
func untouched(t *testing.T, p *pool, claim *karpv1.NodeClaim, was harness.Guest) {
	t.Helper()
	now := vmOf(t, p, claim)
	if left := (harness.Holdings{Guests: []harness.Guest{was}}).Leftovers(harness.Holdings{Guests: []harness.Guest{now}}); len(left) > 0 {
		t.Errorf("the other cluster's VM was touched: %v", left)
	}
	if p.proxmox != nil {
		if boots := p.proxmox.Witness.BootsOf(string(claim.UID)); len(boots) != 1 {
			t.Errorf("the other cluster's VM was booted %d times, want once", len(boots))
		}
	}
	node, err := p.node(t.Context(), claim)
	if err != nil || !harness.NodeReady(node) {
		t.Errorf("the other cluster's node is not Ready (%v)", err)
	}
}
