// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package controllers_test

import (
	"fmt"
	"testing"

	. "github.com/onsi/gomega"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
)

func TestReportStoppedAndRestarted(t *testing.T) {
	vmHealthSimulated(t, testenv.With(), func(w *health, claim *karpv1.NodeClaim) {
		node, vmid := w.Node(w.register(claim)), w.Intent(claim).VMID
		w.PowerOff(claim)
		w.reconcile()
		for _, object := range []client.Object{claim, node} {
			w.Expect(w.Events.Reasons(object)).To(Equal([]string{"VMStopped", "VMRestarted"}))
		}
		w.Expect(w.Events.Messages("VMStopped")).To(HaveEach(fmt.Sprintf(
			"VM %d on host pve1 is stopped: it was stopped outside of Karpenter, crashed, or its host restarted; Karpenter starts it", vmid)))
		w.Expect(w.Events.Messages("VMRestarted")).To(HaveEach(fmt.Sprintf("VM %d was found stopped on host pve1 and was started again", vmid)))

		w.WaitStatus(vmid, "running")
		w.restart()
		w.reconcile()
		w.Expect(w.Events.Reasons(claim)).To(HaveLen(2))
	})
}

// A VM that stays stopped is reported once.
func TestReportStoppedOnce(t *testing.T) {
	vmHealthSimulated(t, testenv.With(), func(w *health, claim *karpv1.NodeClaim) {
		node, vmid := w.Node(claim), w.Intent(claim).VMID
		// repeat reconciles with new controllers, and returns the recorded problem.
		repeat := func() string {
			for range 3 {
				w.restart()
				w.reconcile()
			}
			return w.Instances.Launches.Reported(string(claim.UID), "problem")
		}
		w.ApplySettings(excluded)
		w.PowerOff(claim)
		w.Expect(repeat()).To(Equal(w.Events.Messages("VMRestartSuspended")[0]))
		w.Expect(w.Events.Reasons(claim)).To(Equal([]string{"VMRestartSuspended"}))

		// An administrator starts it.
		w.Wait(w.Client.StartVM(w.Context(), "pve1", vmid))
		w.WaitStatus(vmid, "running")
		w.Expect(repeat()).To(BeEmpty())
		w.Expect(w.Events.Reasons(node)).To(Equal([]string{"VMRestartSuspended", "VMRestarted"}))
		w.Expect(w.Events.Messages("VMRestarted")).To(HaveEach(HaveSuffix("is running again on host pve1")))
	})
}
