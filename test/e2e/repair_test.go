// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/test/harness"
)

// The conditions of Nodes by which anybody can ask for a repair.
const (
	guestUnhealthy = "ProxmoxGuestUnhealthy"
	rebootRequired = "ProxmoxRebootRequired"
)

// TestRepair: Karpenter mends sick Nodes as the provider's policies say.
func TestRepair(t *testing.T) {
	t.Parallel()
	needs(t, simulator("its guests fall ill at will"))
	// A request to reboot has to come before the patience with a silent Node ends:
	// 8 s until it counts as silent, and 20 more.
	w := newWorld(t, setup{
		gracePeriod: 8 * time.Second, featureGates: "NodeRepair=true",
		args: []string{"--repair-unready-toleration", "20s", "--repair-request-toleration", "1s", "--repair-drain-timeout", "10s"},
	})
	t.Run("shared", func(t *testing.T) {
		t.Run("a node that is not ready is replaced", func(t *testing.T) {
			t.Parallel()
			w.replaced(t, "sick", func(t *testing.T, vm harness.Guest, _ *corev1.Node) {
				must(t, w.proxmox.SetGuestHealth(vm.VMID, pvesim.HealthSick))
			})
		})
		t.Run("a node that is silent is replaced", func(t *testing.T) {
			t.Parallel()
			w.replaced(t, "silent", func(t *testing.T, vm harness.Guest, _ *corev1.Node) {
				must(t, w.proxmox.SetGuestHealth(vm.VMID, pvesim.HealthHung))
			})
		})
		t.Run("a node that is said to be unhealthy is replaced", func(t *testing.T) {
			t.Parallel()
			w.replaced(t, "unhealthy", func(t *testing.T, _ harness.Guest, node *corev1.Node) {
				w.setCondition(t, node, guestUnhealthy, corev1.ConditionTrue)
			})
		})
		t.Run("a guest that hangs is reset when somebody asks for a reboot", func(t *testing.T) { t.Parallel(); w.hungGuestReset(t) })
		t.Run("a node that reboots do not help is replaced", func(t *testing.T) { t.Parallel(); w.rebootsInVain(t) })
	})
}

// replaced makes a Node ill and waits for another one in its place.
func (w *world) replaced(t *testing.T, name string, fallIll func(*testing.T, harness.Guest, *corev1.Node)) {
	p := w.newPool(t, name, nil)
	first, node := p.oneNode(t)
	fallIll(t, vmOf(t, p, first), node)
	p.claimGoes(t, first)
	second := p.onlyClaim(t, "replaces the first", settled)
	p.podsRun(t, 1)
	if second.UID == first.UID {
		t.Error("the claim was not replaced")
	}
	if boots := w.proxmox.Witness.BootsOf(string(first.UID)); len(boots) != 1 {
		t.Errorf("the sick VM was booted %d times, want once: it was to be replaced", len(boots))
	}
	p.giveBack(t, first, second)
}

func (w *world) hungGuestReset(t *testing.T) {
	p := w.newPool(t, "hung", func(kit *harness.Kit) {
		// No other node for the pod that is drained: it comes back to this one.
		kit.Pool.Spec.Limits = karpv1.Limits{corev1.ResourceCPU: resource.MustParse("2")}
	})
	claim, was := p.oneNode(t)
	must(t, w.proxmox.SetGuestHealth(vmOf(t, p, claim).VMID, pvesim.HealthHung))
	w.setCondition(t, was, rebootRequired, corev1.ConditionTrue)
	w.eventually(t, "the guest to boot again", func(ctx context.Context) error {
		node, err := p.node(ctx, claim)
		if err == nil && node.Status.NodeInfo.BootID == was.Status.NodeInfo.BootID {
			err = errors.New("it has the same boot ID")
		}
		return err
	})
	// Whoever asked for it is content.
	w.setCondition(t, was, rebootRequired, corev1.ConditionFalse)
	p.bootedAgain(t, claim, was)
	p.podsRun(t, 1)
	after := p.onlyClaim(t, "is settled again", func(claim *karpv1.NodeClaim) error {
		if claim.StatusConditions().Get(karpv1.ConditionTypeRebooting).IsTrue() {
			return errors.New("it reboots")
		}
		return settled(claim)
	})
	if after.UID != claim.UID || after.Annotations[v1alpha1.AnnotationRebootOperation] == "" {
		t.Errorf("claim %s with reboot operation %q is there, want claim %s with one", after.Name, after.Annotations[v1alpha1.AnnotationRebootOperation], claim.Name)
	}
	if boots := w.proxmox.Witness.BootsOf(string(claim.UID)); len(boots) != 2 {
		t.Errorf("the VM was booted %d times, want twice", len(boots))
	}
	p.giveBack(t, claim)
}

// rebootsInVain leaves the request standing. Core tries twice, then replaces.
func (w *world) rebootsInVain(t *testing.T) {
	p := w.newPool(t, "vain", nil)
	claim, node := p.oneNode(t)
	w.setCondition(t, node, rebootRequired, corev1.ConditionTrue)
	// Two times drain, reboot and look, each at core's own pace.
	p.within(t, 4*patience(), "claim "+claim.Name+" to be given up", func(ctx context.Context) error {
		now := &karpv1.NodeClaim{}
		err := p.kube.Get(ctx, client.ObjectKeyFromObject(claim), now)
		if err == nil && now.DeletionTimestamp.IsZero() {
			err = errors.New("it is still wanted")
		}
		return client.IgnoreNotFound(err)
	})
	if boots := w.proxmox.Witness.BootsOf(string(claim.UID)); len(boots) != 3 {
		t.Errorf("the VM was booted %d times, want three times: at first, and for two repairs", len(boots))
	}
	p.claimGoes(t, claim)
	p.podsRun(t, 1)
	p.giveAllBack(t)
}

// oneNode runs a pod and gives the claim and the Node that came for it.
func (p *pool) oneNode(t *testing.T) (*karpv1.NodeClaim, *corev1.Node) {
	t.Helper()
	p.run(t, 1)
	p.podsRun(t, 1)
	claim := p.onlyClaim(t, "is settled", settled)
	node, err := p.node(t.Context(), claim)
	must(t, err)
	return claim, node
}

// setCondition writes what something that watches Nodes would.
func (w *world) setCondition(t *testing.T, node *corev1.Node, kind corev1.NodeConditionType, status corev1.ConditionStatus) {
	t.Helper()
	patch := fmt.Appendf(nil, `{"status":{"conditions":[{"type":%q,"status":%q,"reason":"KernelDeadlock","message":"found by a test","lastTransitionTime":%q}]}}`,
		kind, status, metav1.Now().UTC().Format(time.RFC3339))
	must(t, w.kube.Status().Patch(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node.Name}}, client.RawPatch(types.StrategicMergePatchType, patch)))
}
