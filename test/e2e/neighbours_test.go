// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"testing"

	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/test/harness"
)

// orphanRounds is how many rounds the collector of orphans needs at one a
// second, and some more, to remove a VM that it takes for an orphan.
const orphanRounds = 40

// TestTwoKubernetesClusters share one Proxmox cluster, with the same names
// everywhere, and leave each other's VMs alone.
func TestTwoKubernetesClusters(t *testing.T) {
	t.Parallel()
	binaries(t)
	proxmox := newProxmox(t, setup{})
	one, other := newWorld(t, setup{proxmox: proxmox}), newWorld(t, setup{proxmox: proxmox})
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
		b.nothingLeft(t, claims...)
	})
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
	if boots := p.proxmox.Witness.BootsOf(string(claim.UID)); len(boots) != 1 {
		t.Errorf("the other cluster's VM was booted %d times, want once", len(boots))
	}
	node, err := p.node(t.Context(), claim)
	if err != nil || !harness.NodeReady(node) {
		t.Errorf("the other cluster's node is not Ready (%v)", err)
	}
}
