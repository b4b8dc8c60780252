// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package instance_test

import (
	"testing"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

func TestRebootAccepted(t *testing.T) {
	t.Parallel()
	w := testenv.NewFake(t)
	p := w.StartProcess()
	claim := p.Launched("pool-abc", w.NodeClass)
	w.AddFault(pvesim.Fault{Method: "GET", Path: "/nodes/*/tasks/*qmreset*/status", Status: 403, Message: "Permission check failed", Count: 1})
	w.Expect(p.Instances.Power.Reboot(t.Context(), claim, "op-1")).To(Succeed())
	w.Expect(p.Instances.Power.Reboot(t.Context(), w.Stored(claim), "op-1")).To(Succeed())
	resets := func() int { return w.Sim.CountRequests("POST", "/nodes/{node}/qemu/{vmid}/status/reset") }
	w.Expect(resets()).To(Equal(1))

	w.AddFault(pvesim.Fault{Task: "qmreset", Fail: "VM is locked", Count: 1})
	w.Expect(p.Instances.Power.Reboot(t.Context(), w.Stored(claim), "op-2")).To(MatchError(ContainSubstring("locked")))
	w.Expect(p.Instances.Power.Reboot(t.Context(), w.Stored(claim), "op-2")).To(Succeed(), "a failed reset is retried")
	w.Expect(resets()).To(Equal(3))
}

func TestPowerOnAndReboot(t *testing.T) {
	t.Parallel()
	w := testenv.NewFake(t)
	p := w.StartProcess()
	claim := p.Launched("pool-abc", w.NodeClass)
	started, err := p.Instances.Power.PowerOn(t.Context(), claim)
	w.Expect(err).NotTo(HaveOccurred())
	w.Expect(started).To(BeFalse(), "it already runs")
	w.Expect(w.Sim.PowerOffGuest(w.Intent(claim).VMID)).To(Succeed())
	w.Eventually(func() (bool, error) { return p.Instances.Power.PowerOn(t.Context(), claim) }).Should(BeTrue())

	w.Sim.ResetRequests()
	w.Expect(p.Instances.Power.Reboot(t.Context(), claim, "op-1")).To(Succeed())
	w.Expect(p.Instances.Power.Reboot(t.Context(), w.Stored(claim), "op-1")).To(Succeed())
	w.Expect(w.Sim.CountRequests("POST", "/nodes/{node}/qemu/{vmid}/status/reset")).To(Equal(1))
	p.Delete(w.Stored(claim))
}
