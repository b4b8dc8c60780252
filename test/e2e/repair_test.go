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

// Node conditions that request a repair.
const (
	guestUnhealthy = "ProxmoxGuestUnhealthy"
	rebootRequired = "ProxmoxRebootRequired"
)

// TestRepair checks that Karpenter repairs unhealthy Nodes according to the provider's
// policies.
func TestRepair(t *testing.T) {
	t.Parallel()
	needs(t, simulator("it makes guests unhealthy"))
	// A reboot request must precede the toleration of a silent Node. Karpenter considers it at most
	// 45 s later: a Node that is nominated for a pod is not disrupted for 20 s, and one round takes
	// up to 25 s.
	e := newEnv(t, setup{
		gracePeriod: 8 * time.Second, featureGates: "NodeRepair=true",
		args: []string{"--repair-unready-toleration", "60s", "--repair-request-toleration", "1s", "--repair-drain-timeout", "10s"},
	})
	runShared(t, map[string]func(*testing.T){
		"not_ready": func(t *testing.T) {
			e.replaced(t, "sick", func(t *testing.T, vm harness.Guest, _ *corev1.Node) {
				must(t, e.proxmox.SetGuestHealth(vm.VMID, pvesim.HealthSick))
			})
		},
		"silent": func(t *testing.T) {
			e.replaced(t, "silent", func(t *testing.T, vm harness.Guest, _ *corev1.Node) {
				must(t, e.proxmox.SetGuestHealth(vm.VMID, pvesim.HealthHung))
			})
		},
		"unhealthy_condition": func(t *testing.T) {
			e.replaced(t, "unhealthy", func(t *testing.T, _ harness.Guest, node *corev1.Node) {
				e.setCondition(t, node, guestUnhealthy, corev1.ConditionTrue)
			})
		},
		"reboot_condition_resets_hung_guest": e.hungGuestReset,
		"replaced_after_two_reboots":         e.replacedAfterReboots,
	})
}

// replaced makes a Node unhealthy and waits for its replacement.
func (e *env) replaced(t *testing.T, name string, makeUnhealthy func(*testing.T, harness.Guest, *corev1.Node)) {
	p := e.newNodePool(t, name, nil)
	first, node := p.oneNode(t)
	makeUnhealthy(t, vmOf(t, p, first), node)
	p.waitForDeletion(t, first)
	second := p.waitForClaim(t, "replaces the first", settled)
	p.waitForPods(t, 1)
	if second.UID == first.UID {
		t.Error("the claim was not replaced")
	}
	if boots := e.proxmox.BootRecorder.BootsOf(string(first.UID)); len(boots) != 1 {
		t.Errorf("the unhealthy VM was booted %d times, want once", len(boots))
	}
	p.deleteClaims(t, first, second)
}

func (e *env) hungGuestReset(t *testing.T) {
	p := e.newNodePool(t, "hung", func(kit *harness.Kit) {
		// Without capacity for another node, the evicted pod returns to this one.
		kit.Pool.Spec.Limits = karpv1.Limits{corev1.ResourceCPU: resource.MustParse("2")}
	})
	claim, was := p.oneNode(t)
	must(t, e.proxmox.SetGuestHealth(vmOf(t, p, claim).VMID, pvesim.HealthHung))
	e.setCondition(t, was, rebootRequired, corev1.ConditionTrue)
	boots := func() int { return len(e.proxmox.BootRecorder.BootsOf(string(claim.UID))) }
	e.eventually(t, "the guest to reboot", func(context.Context) error {
		if boots() == 1 {
			return errors.New("it was booted once")
		}
		return nil
	})
	// The component that requested the reboot withdraws the request when the guest boots.
	e.setCondition(t, was, rebootRequired, corev1.ConditionFalse)
	p.waitForReboot(t, claim, was)
	p.waitForPods(t, 1)
	after := p.waitForClaim(t, "is settled after the reboot", func(claim *karpv1.NodeClaim) error {
		if claim.StatusConditions().Get(karpv1.ConditionTypeRebooting).IsTrue() {
			return errors.New("it is rebooting")
		}
		return settled(claim)
	})
	if after.UID != claim.UID || after.Annotations[v1alpha1.AnnotationRebootOperation] == "" {
		t.Errorf("found claim %s with reboot operation %q, want claim %s with one", after.Name, after.Annotations[v1alpha1.AnnotationRebootOperation], claim.Name)
	}
	if n := boots(); n != 2 {
		t.Errorf("the VM was booted %d times, want twice", n)
	}
	p.deleteClaims(t, claim)
}

// replacedAfterReboots keeps the reboot request. Core tries twice, then replaces the node.
func (e *env) replacedAfterReboots(t *testing.T) {
	p := e.newNodePool(t, "reboots", nil)
	claim, node := p.oneNode(t)
	e.setCondition(t, node, rebootRequired, corev1.ConditionTrue)
	// Two drains, reboots and checks, each at core's interval.
	p.within(t, 4*timeout(), "claim "+claim.Name+" to be deleted", func(ctx context.Context) error {
		now := &karpv1.NodeClaim{}
		err := p.kube.Get(ctx, client.ObjectKeyFromObject(claim), now)
		if err == nil && now.DeletionTimestamp.IsZero() {
			err = errors.New("it is not being deleted")
		}
		return client.IgnoreNotFound(err)
	})
	if boots := e.proxmox.BootRecorder.BootsOf(string(claim.UID)); len(boots) != 3 {
		t.Errorf("the VM was booted %d times, want three: the first boot and two repairs", len(boots))
	}
	p.waitForDeletion(t, claim)
	p.waitForPods(t, 1)
	p.deleteAllClaims(t)
}

// oneNode deploys a pod and returns its NodeClaim and Node.
func (p *nodePool) oneNode(t *testing.T) (*karpv1.NodeClaim, *corev1.Node) {
	t.Helper()
	p.deployPods(t, 1)
	p.waitForPods(t, 1)
	claim := p.waitForClaim(t, "is settled", settled)
	node, err := p.node(t.Context(), claim)
	must(t, err)
	return claim, node
}

// setCondition sets a Node condition, as a node monitor would.
func (e *env) setCondition(t *testing.T, node *corev1.Node, kind corev1.NodeConditionType, status corev1.ConditionStatus) {
	t.Helper()
	patch := fmt.Appendf(nil, `{"status":{"conditions":[{"type":%q,"status":%q,"reason":"KernelDeadlock","message":"found by a test","lastTransitionTime":%q}]}}`,
		kind, status, metav1.Now().UTC().Format(time.RFC3339))
	must(t, e.kube.Status().Patch(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node.Name}}, client.RawPatch(types.StrategicMergePatchType, patch)))
}
