// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package deletion_test

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

// createNode creates the Node of a claim as its kubelet and core do.
func createNode(w *testenv.Env, claim *karpv1.NodeClaim, ready corev1.ConditionStatus) *corev1.Node {
	w.T.Helper()
	node := w.Node(claim)
	node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: ready}}
	w.Expect(w.Kube.Status().Update(w.T.Context(), node)).To(Succeed())
	return node
}

// Only the guest of a ready Node is asked to shut down.
func TestDeleteShutdown(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		timeout time.Duration
		ready   corev1.ConditionStatus // empty: there is no Node
		hung    bool
		call    string
	}{
		"ready":     {10 * time.Second, corev1.ConditionTrue, false, "shutdown"},
		"disabled":  {0, corev1.ConditionTrue, false, "stop"},
		"not_ready": {10 * time.Second, corev1.ConditionFalse, false, "stop"},
		"unknown":   {10 * time.Second, corev1.ConditionUnknown, true, "stop"},
		"no_node":   {10 * time.Second, "", false, "stop"},
		// The Node is ready until the kubelet's lease has expired. Proxmox stops the guest
		// after the timeout.
		"just_hung": {10 * time.Second, corev1.ConditionTrue, true, "shutdown"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := testenv.NewFake(t)
			p := w.StartProcess(testenv.Settings(func(s *instance.Settings) { s.ShutdownTimeout = test.timeout }))
			claim := p.Launched("pool-abc", w.NodeClass)
			if test.ready != "" {
				createNode(w, claim, test.ready)
			}
			if test.hung {
				w.Expect(w.Sim.SetGuestHealth(w.Intent(claim).VMID, pvesim.HealthHung)).To(Succeed())
			}
			w.Sim.ResetRequests()
			p.Delete(claim)
			for _, call := range []string{"shutdown", "stop"} {
				want := 0
				if call == test.call {
					want = 1
				}
				w.Expect(w.Sim.CountRequests("POST", "/nodes/{node}/qemu/{vmid}/status/"+call)).To(Equal(want), call)
			}
			w.ExpectNoOrphans()
		})
	}
}

// The shutdown takes longer than one Delete. The Node becomes not ready meanwhile, and the
// next Delete waits for the shutdown.
func TestDeleteLongShutdown(t *testing.T) {
	t.Parallel()
	w := testenv.NewFake(t)
	p := w.StartProcess(testenv.Settings(func(s *instance.Settings) {
		// The shutdown takes 12 seconds of real time. The first Delete must send it within its timeout.
		s.ShutdownTimeout, s.OperationTimeout = 2*time.Minute, 8*time.Second
	}))
	claim := p.Launched("pool-abc", w.NodeClass)
	node := createNode(w, claim, corev1.ConditionTrue)
	w.Expect(w.Sim.SetGuestHealth(w.Intent(claim).VMID, pvesim.HealthHung)).To(Succeed())
	w.Sim.ResetRequests()
	deleted, err := p.Instances.Deleter.Delete(t.Context(), claim)
	w.Expect(err).NotTo(HaveOccurred())
	w.Expect(deleted).To(BeFalse())
	node.Status.Conditions[0].Status = corev1.ConditionUnknown
	w.Expect(w.Kube.Status().Update(t.Context(), node)).To(Succeed())
	p.Delete(claim)
	w.Expect(w.Sim.CountRequests("POST", "/nodes/{node}/qemu/{vmid}/status/shutdown")).To(Equal(1))
	w.Expect(w.Sim.CountRequests("POST", "/nodes/{node}/qemu/{vmid}/status/stop")).To(BeZero())
	w.ExpectNoOrphans()
}
