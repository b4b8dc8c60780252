// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"testing"
	"time"

	. "github.com/onsi/gomega"
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

// TestRepair checks that Karpenter repairs unhealthy Nodes according to the provider's
// policies.
func TestRepair(t *testing.T) {
	t.Parallel()
	needs(t, simulator("it makes guests unhealthy"))
	// The toleration is longer than a reboot takes.
	e := newEnv(t, setup{gracePeriod: 8 * time.Second, featureGates: "NodeRepair=true", durations: "repair-request-toleration=1s",
		args: []string{"--repair-unready-toleration", "20s", "--repair-drain-timeout", "10s"}})
	runShared(t, map[string]func(*testing.T){"not_ready": e.replaced, "reboot_requested": e.rebooted})
}

// replaced makes a Node not ready and waits for its replacement.
func (e *env) replaced(t *testing.T) {
	g := NewWithT(t)
	p := e.newNodePool(t, "sick", nil)
	first, _ := p.oneNode(t)
	must(t, e.proxmox.SetGuestHealth(e.vmOf(g, first).VMID, pvesim.HealthSick))
	e.waitForDeletion(t, first)
	p.waitForClaim(t, "replaces the first", e.settled)
	p.waitForPods(t, 1)
	g.Expect(e.boots(first)).To(Equal(1), "an unhealthy VM is not restarted")
}

// rebooted requests the reboot of a Node, whose VM is reset.
func (e *env) rebooted(t *testing.T) {
	g := NewWithT(t)
	p := e.newNodePool(t, "reboots", func(kit *harness.Kit) {
		// Without capacity for another node, the evicted pod returns to this one.
		kit.Pool.Spec.Limits = karpv1.Limits{corev1.ResourceCPU: resource.MustParse("2")}
	})
	claim, was := p.oneNode(t)
	e.requestReboot(t, was, corev1.ConditionTrue)
	e.eventually(t, "the guest to reboot", func(g Gomega) { g.Expect(e.boots(claim)).To(Equal(2)) })
	// The component that requested the reboot withdraws the request when the guest boots.
	e.requestReboot(t, was, corev1.ConditionFalse)
	e.waitForReboot(t, claim, was)
	p.waitForPods(t, 1)
	after := p.waitForClaim(t, "is settled after the reboot", func(claim *karpv1.NodeClaim) error {
		if claim.StatusConditions().Get(karpv1.ConditionTypeRebooting).IsTrue() {
			return fmt.Errorf("claim %s is rebooting", claim.Name)
		}
		return e.settled(claim)
	})
	g.Expect(after.UID).To(Equal(claim.UID))
	g.Expect(after.Annotations).To(HaveKey(v1alpha1.AnnotationRebootOperation))
	g.Expect(e.boots(claim)).To(Equal(2))
}

// requestReboot sets the condition of a Node that requests its reboot, as a node monitor would.
func (e *env) requestReboot(t *testing.T, node *corev1.Node, status corev1.ConditionStatus) {
	t.Helper()
	patch := fmt.Appendf(nil, `{"status":{"conditions":[{"type":"ProxmoxRebootRequired","status":%q,"reason":"KernelDeadlock","lastTransitionTime":%q}]}}`,
		status, metav1.Now().UTC().Format(time.RFC3339))
	must(t, e.kube.Status().Patch(e.ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node.Name}}, client.RawPatch(types.StrategicMergePatchType, patch)))
}
