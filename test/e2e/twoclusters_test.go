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
	// orphanRounds is more than the number of rounds, at one per second, after which the
	// garbage collector deletes an orphan.
	orphanRounds = 12
)

// TestTwoKubernetesClusters checks that two Kubernetes clusters with the same names on one
// Proxmox cluster do not touch each other's VMs.
func TestTwoKubernetesClusters(t *testing.T) {
	t.Parallel()
	binaries(t)
	needs(t, guestsThatJoin(), capacity(2))
	var proxmox *harness.Proxmox
	if suite.lab == nil {
		proxmox = newProxmox(t, setup{})
	}
	usual := setup{proxmox: proxmox, args: []string{"--orphan-grace-period", orphanGrace.String()}}
	one, other := newEnv(t, usual), newEnv(t, usual)
	a, b := one.newNodePool(t, "same", nil), other.newNodePool(t, "same", nil)
	for _, p := range []*nodePool{a, b} {
		p.deployPods(t, 2)
	}
	var claims []*karpv1.NodeClaim
	for _, p := range []*nodePool{a, b} {
		p.waitForPods(t, 2)
		claims = append(claims, p.waitForClaim(t, "is settled", settled))
		// After the boot drive was deleted, the VM no longer changes.
		p.eventually(t, "the boot drive to be deleted", func(ctx context.Context) error { return p.noBootData(ctx, claims[len(claims)-1]) })
	}
	theirs := vmOf(t, b, claims[1])

	t.Run("orphan_deletion", func(t *testing.T) {
		a.orphan(t, claims[0])
		a.eventually(t, "the orphaned VM to be deleted", func(ctx context.Context) error { return a.noVM(ctx, claims[0]) })
		fromA, fromB := a.rounds(t), b.rounds(t)
		a.eventually(t, "rounds of both garbage collectors", func(context.Context) error {
			if n := min(a.rounds(t)-fromA, b.rounds(t)-fromB); n < orphanRounds {
				return fmt.Errorf("%.0f rounds", n)
			}
			return nil
		})
		expectUnchangedVM(t, b, claims[1], theirs)
	})
	t.Run("scale_down_first", func(t *testing.T) {
		a.scaleToZero(t)
		a.eventually(t, "the first cluster's claims to be deleted", func(ctx context.Context) error {
			left, err := a.claims(ctx)
			if err == nil && len(left) > 0 {
				err = fmt.Errorf("%d claims exist", len(left))
			}
			return err
		})
		expectUnchangedVM(t, b, claims[1], theirs)
	})
	t.Run("scale_down_second", func(t *testing.T) {
		b.scaleToZero(t)
		b.waitUntilGone(t, claims[1])
	})
}

// orphan deletes a NodeClaim without its finalizer, so its VM remains.
func (p *nodePool) orphan(t *testing.T, claim *karpv1.NodeClaim) {
	t.Helper()
	orphaned := claim.DeepCopy()
	must(t, p.kube.Delete(t.Context(), claim))
	must(t, client.IgnoreNotFound(p.kube.Patch(t.Context(), orphaned, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`)))))
}

// noVM fails if a guest has the NodeClaim's VMID.
func (p *nodePool) noVM(ctx context.Context, claim *karpv1.NodeClaim) error {
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

// rounds returns the number of the garbage collector's reconciles.
func (e *env) rounds(t *testing.T) float64 {
	t.Helper()
	n, err := e.controller.Metric(t.Context(), "controller_runtime_reconcile_total", map[string]string{"controller": "nodeclaim.garbagecollection.proxmox"})
	must(t, err)
	return n
}

func vmOf(t *testing.T, p *nodePool, claim *karpv1.NodeClaim) harness.Guest {
	t.Helper()
	vmid, err := intent(claim)
	must(t, err)
	return p.guest(t, vmid)
}

// expectUnchangedVM checks that the other cluster's VM is unchanged, was booted once, and its
// Node is ready.
func expectUnchangedVM(t *testing.T, p *nodePool, claim *karpv1.NodeClaim, was harness.Guest) {
	t.Helper()
	now := vmOf(t, p, claim)
	if left := (harness.Holdings{Guests: []harness.Guest{was}}).Diff(harness.Holdings{Guests: []harness.Guest{now}}); len(left) > 0 {
		t.Errorf("the other cluster's VM was changed: %v", left)
	}
	if p.proxmox != nil {
		if boots := p.proxmox.BootRecorder.BootsOf(string(claim.UID)); len(boots) != 1 {
			t.Errorf("the other cluster's VM was booted %d times, want once", len(boots))
		}
	}
	node, err := p.node(t.Context(), claim)
	if err != nil || !harness.NodeReady(node) {
		t.Errorf("the other cluster's node is not Ready (%v)", err)
	}
}
