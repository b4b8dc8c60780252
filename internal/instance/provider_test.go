// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package instance_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

func TestListIgnoresCopies(t *testing.T) {
	testenv.With().Test(t, func(w *testenv.Env, p *testenv.Process) {
		claim := p.Launched("pool-abc", w.NodeClass)
		in := w.Intent(claim)
		cfg := w.VMConfig(in)
		// A copy keeps the notes; a restored backup keeps notes and UUID.
		w.CloneByHand(in.Host, 30000, "copy")
		w.Expect(w.Client.UpdateVM(w.Context(), in.Host, 30000, proxmox.ConfigChange{Set: map[string]string{
			"description": cfg.Description(), "smbios1": cfg.SMBIOS().Encode(),
		}})).To(Succeed())
		w.Clock.Advance(time.Minute)
		w.Expect(p.Instances.VMs.List()).To(ConsistOf(HaveField("VMID", in.VMID)))
		p.Delete(claim)
		w.Expect(w.Client.VMConfig(w.Context(), in.Host, 30000)).To(HaveField("Name()", "copy"), "it still exists")
	})
}

func TestListOtherKubernetesCluster(t *testing.T) {
	testenv.With(testenv.NoPolling()).Test(t, func(w *testenv.Env, own *testenv.Process) {
		other := w.StartProcess(testenv.KubeCluster("another-kubernetes-cluster"))
		claim := own.Launched("pool-abc", w.NodeClass)
		other.Refresh()
		own.Refresh()
		w.Expect(own.Instances.VMs.List()).To(HaveLen(1))
		w.Expect(other.Instances.VMs.List()).To(BeEmpty())
		expectBlocked(w, other, claim, v1alpha1.EventOwnershipMarkLost) // a copy of the claim in another cluster
		w.Expect(w.VMs()).To(HaveLen(1), "it still exists")
	})
}

// The VM is migrated after it was listed and before its configuration is read.
func TestGetMigratedVM(t *testing.T) {
	testenv.With(testenv.Hosts(2), testenv.NoPolling()).Test(t, func(w *testenv.Env, p *testenv.Process) {
		claim := p.Launched("pool-abc", w.NodeClass)
		in := w.Intent(claim)
		p.Refresh()
		w.AddFault(pvesim.Fault{Method: "GET", Path: fmt.Sprintf("/nodes/%s/qemu/%d/config", in.Host, in.VMID), Count: 1, Status: 500,
			Message: fmt.Sprintf("Configuration file 'nodes/%s/qemu-server/%d.conf' does not exist", in.Host, in.VMID)})
		w.Expect(p.Instances.VMs.Get(w.Context(), v1alpha1.ProviderID{Region: in.Region, VMID: in.VMID})).To(HaveField("VMID", in.VMID))
	})
}

func TestGetUnreachableCluster(t *testing.T) {
	testenv.With().Test(t, func(w *testenv.Env, p *testenv.Process) {
		claim := p.Launched("pool-abc", w.NodeClass)
		in := w.Intent(claim)
		id := v1alpha1.ProviderID{Region: in.Region, VMID: in.VMID}
		_, err := p.Instances.VMs.Get(w.Context(), id)
		w.Expect(err).NotTo(HaveOccurred())
		// An unreachable Cluster does not mean that the VM is deleted.
		w.AddFault(pvesim.Fault{Path: "/cluster/resources", Status: 596, Message: "Connection timed out"})
		ctx, cancel := context.WithTimeout(w.Context(), 5*time.Second)
		defer cancel()
		_, err = p.Instances.VMs.Get(ctx, id)
		w.Expect(err).To(And(HaveOccurred(), Not(MatchError(proxmox.ErrNotFound))))
		w.Sim.ClearFaults()
		p.Delete(claim)
		_, err = p.Instances.VMs.Get(w.Context(), id)
		w.Expect(err).To(MatchError(proxmox.ErrNotFound))
	})
}

func TestRebootAccepted(t *testing.T) {
	testenv.With().Test(t, func(w *testenv.Env, p *testenv.Process) {
		claim := p.Launched("pool-abc", w.NodeClass)
		w.AddFault(pvesim.Fault{Method: "GET", Path: "/nodes/*/tasks/*qmreset*/status", Status: 403, Message: "Permission check failed", Count: 1})
		w.Expect(p.Instances.Power.Reboot(w.Context(), claim, "op-1")).To(Succeed())
		w.Expect(p.Instances.Power.Reboot(w.Context(), w.Stored(claim), "op-1")).To(Succeed())
		resets := func() int { return w.Sim.CountRequests("POST", "/nodes/{node}/qemu/{vmid}/status/reset") }
		w.Expect(resets()).To(Equal(1))

		w.AddFault(pvesim.Fault{Task: "qmreset", Fail: "VM is locked", Count: 1})
		w.Expect(p.Instances.Power.Reboot(w.Context(), w.Stored(claim), "op-2")).To(MatchError(ContainSubstring("locked")))
		w.Expect(p.Instances.Power.Reboot(w.Context(), w.Stored(claim), "op-2")).To(Succeed(), "a failed reset is retried")
		w.Expect(resets()).To(Equal(3))
	})
}

func TestPowerOnAndReboot(t *testing.T) {
	testenv.With().Test(t, func(w *testenv.Env, p *testenv.Process) {
		claim := p.Launched("pool-abc", w.NodeClass)
		w.Expect(p.Instances.Power.PowerOn(w.Context(), claim)).To(BeFalse(), "it already runs")
		w.Expect(w.Sim.PowerOffGuest(w.Intent(claim).VMID)).To(Succeed())
		w.Eventually(func() (bool, error) { return p.Instances.Power.PowerOn(w.Context(), claim) }).Should(BeTrue())

		w.Sim.ResetRequests()
		w.Expect(p.Instances.Power.Reboot(w.Context(), claim, "op-1")).To(Succeed())
		w.Expect(p.Instances.Power.Reboot(w.Context(), w.Stored(claim), "op-1")).To(Succeed())
		w.Expect(w.Sim.CountRequests("POST", "/nodes/{node}/qemu/{vmid}/status/reset")).To(Equal(1))
	})
}
