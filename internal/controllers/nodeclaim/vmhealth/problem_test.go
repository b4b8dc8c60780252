// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package vmhealth_test

import (
	"fmt"
	"testing"

	. "github.com/onsi/gomega"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
)

func TestReportStoppedAndRestarted(t *testing.T) {
	t.Parallel()
	w := testenv.New(t, testenv.NoPolling())
	claim := launched(w, 1)[0]
	node := w.Node(registered(w, claim))
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
	node := w.Node(claim)
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
	node := w.Node(claim)
	w.DestroyByHand("pve1", w.Intent(claim).VMID)
	w.Refresh()
	reconcile(w, controller(w))
	w.Expect(w.Events.Reasons(node)).To(Equal([]string{"VMNotFound"}))
	w.Expect(w.Events.Messages("VMNotFound")).To(HaveEach(ContainSubstring("it was deleted or converted to a template outside of Karpenter")))
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
