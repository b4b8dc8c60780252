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

func TestList(t *testing.T) {
	t.Parallel()
	testenv.With().Subtest(t, "copies", func(w *testenv.Env, p *testenv.Process) {
		claim, in := launchVM(w, p)
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
	testenv.With(testenv.NoPolling()).Subtest(t, "other_Kubernetes_cluster", func(w *testenv.Env, own *testenv.Process) {
		other := w.StartProcess(testenv.KubeCluster("another-kubernetes-cluster"))
		claim := own.Launched("pool-abc", w.NodeClass)
		other.Refresh()
		own.Refresh()
		w.Expect(own.Instances.VMs.List()).To(HaveLen(1))
		w.Expect(other.Instances.VMs.List()).To(BeEmpty())
		w.Expect(own.Instances.Deleter.ListBootDrives(w.Context())).To(ConsistOf(HaveField("ClaimUID", string(claim.UID))))
		w.Expect(other.Instances.Deleter.ListBootDrives(w.Context())).To(BeEmpty())
		expectBlocked(w, other, claim, v1alpha1.EventOwnershipMarkLost) // a copy of the claim in another cluster
		w.Expect(w.VMs()).To(HaveLen(1), "it still exists")
	})
}

func TestGet(t *testing.T) {
	t.Parallel()
	// The VM is migrated after it was listed and before its configuration is read.
	testenv.With(testenv.Hosts(2), testenv.NoPolling()).Subtest(t, "migrated", func(w *testenv.Env, p *testenv.Process) {
		_, in := launchVM(w, p)
		p.Refresh()
		w.AddFault(pvesim.Fault{Method: "GET", Path: fmt.Sprintf("/nodes/%s/qemu/%d/config", in.Host, in.VMID), Count: 1, Status: 500,
			Message: fmt.Sprintf("Configuration file 'nodes/%s/qemu-server/%d.conf' does not exist", in.Host, in.VMID)})
		w.Expect(p.Instances.VMs.Get(w.Context(), in.ID())).To(HaveField("VMID", in.VMID))
	})
	testenv.With().Subtest(t, "unreachable_cluster", func(w *testenv.Env, p *testenv.Process) {
		claim, in := launchVM(w, p)
		// An unreachable Cluster does not mean that the VM is deleted.
		w.AddFault(pvesim.Fault{Path: "/cluster/resources", Status: 596, Message: "Connection timed out"})
		ctx, cancel := context.WithTimeout(w.Context(), 5*time.Second)
		defer cancel()
		_, err := p.Instances.VMs.Get(ctx, in.ID())
		w.Expect(err).To(And(HaveOccurred(), Not(MatchError(proxmox.ErrNotFound))))
		w.Sim.ClearFaults()
		p.Delete(claim)
		_, err = p.Instances.VMs.Get(w.Context(), in.ID())
		w.Expect(err).To(MatchError(proxmox.ErrNotFound))
	})
}

func TestReboot(t *testing.T) {
	testenv.With().Test(t, func(w *testenv.Env, p *testenv.Process) {
		claim := p.Launched("pool-abc", w.NodeClass)
		w.Expect(p.Instances.Power.PowerOn(w.Context(), claim)).To(BeFalse(), "it already runs")
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
