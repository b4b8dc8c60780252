// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package vmhealth_test

import (
	"fmt"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
)

// withNode creates the Node of a claim.
func withNode(w *testenv.Env, claim *karpv1.NodeClaim) *corev1.Node {
	w.T.Helper()
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: claim.Name}}
	w.Create(node)
	claim.Status.NodeName = node.Name
	w.Expect(w.Kube.Status().Update(w.T.Context(), claim)).To(Succeed())
	return node
}

func TestReportStoppedAndRestarted(t *testing.T) {
	t.Parallel()
	w := testenv.New(t, testenv.NoPolling())
	claim := launched(w, 1)[0]
	node := withNode(w, registered(w, claim))
	vmid := w.Intent(claim).VMID
	w.PowerOff(claim)
	reconcile(w, controller(w))
	w.Expect(w.Events.Reasons(claim)).To(Equal([]string{"VMStopped", "VMRestarted"}))
	w.Expect(w.Events.Reasons(node)).To(Equal([]string{"VMStopped", "VMRestarted"}))
	w.Expect(w.Events.Messages("VMStopped")).To(HaveEach(fmt.Sprintf(
		"VM %d on host pve1 is stopped: it was stopped outside of Karpenter, crashed, or its host restarted; Karpenter starts it", vmid)))
	w.Expect(w.Events.Messages("VMRestarted")).To(HaveEach(fmt.Sprintf("VM %d was found stopped on host pve1 and was started again", vmid)))

	waitRunning(w, claim)
	reconcile(w, controller(w))
	w.Expect(w.Events.Reasons(claim)).To(HaveLen(2))
}

// A VM that stays stopped is reported once, also after a restart of the controller.
func TestReportStoppedOnce(t *testing.T) {
	t.Parallel()
	w := testenv.New(t, testenv.NoPolling())
	claim := launched(w, 1)[0]
	node := withNode(w, claim)
	exclude(w, true)
	w.PowerOff(claim)
	for range 3 {
		reconcile(w, controller(w))
	}
	w.Expect(w.Events.Reasons(claim)).To(Equal([]string{"VMRestartSuspended"}))
	w.Expect(testenv.Reload(w, claim).Annotations[v1alpha1.AnnotationVMProblem]).To(Equal(w.Events.Messages("VMRestartSuspended")[0]))

	// An administrator starts it.
	w.Expect(w.Client.StartVM(t.Context(), "pve1", w.Intent(claim).VMID)).Error().NotTo(HaveOccurred())
	waitRunning(w, claim)
	for range 2 {
		reconcile(w, controller(w))
	}
	w.Expect(w.Events.Reasons(node)).To(Equal([]string{"VMRestartSuspended", "VMRestarted"}))
	w.Expect(w.Events.Messages("VMRestarted")).To(HaveEach(HaveSuffix("is running again on host pve1")))
	w.Expect(testenv.Reload(w, claim).Annotations).NotTo(HaveKey(v1alpha1.AnnotationVMProblem))
}

func TestReportDestroyed(t *testing.T) {
	t.Parallel()
	w := testenv.New(t, testenv.NoPolling())
	claim := registered(w, launched(w, 1)[0])
	node := withNode(w, claim)
	w.DestroyByHand("pve1", w.Intent(claim).VMID)
	w.Refresh()
	reconcile(w, controller(w))
	w.Expect(w.Events.Reasons(node)).To(Equal([]string{"VMNotFound"}))
	w.Expect(w.Events.Messages("VMNotFound")).To(HaveEach(ContainSubstring("it was deleted outside of Karpenter")))
}

// waitRunning waits until the Snapshot shows that a claim's VM runs.
func waitRunning(w *testenv.Env, claim *karpv1.NodeClaim) {
	w.T.Helper()
	w.Eventually(func() string {
		w.Refresh()
		guest, _ := w.Inventory.View().Guest(testenv.Region, w.Intent(claim).VMID)
		return guest.Status
	}).Should(Equal("running"))
}
