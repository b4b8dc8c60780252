// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package deletion_test

import (
	"slices"
	"testing"

	. "github.com/onsi/gomega"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
)

// separated returns an Env with two VMs in HA that a rule keeps on separate hosts.
func separated(t *testing.T) (w *testenv.Env, p *testenv.Process, first, second *karpv1.NodeClaim) {
	t.Helper()
	w = testenv.NewFake(t, testenv.Hosts(2), testenv.HA("9.2"))
	w.NodeClass.Spec.PlacementStrategy.PoolAffinity = v1alpha1.PoolAffinitySeparateHosts
	w.NodeClass.Spec.HighAvailability = &v1alpha1.HighAvailability{SeparateHosts: true}
	p = w.StartProcess(testenv.NoPolling())
	first, second = p.Launched("first", w.NodeClass), p.Launched("second", w.NodeClass)
	p.Refresh()
	w.Expect(w.Sim.HARules()).To(HaveLen(1))
	return w, p, first, second
}

// Whenever the controller is killed during a delete, the next one leaves nothing in HA.
func TestDeleteHACrash(t *testing.T) {
	t.Parallel()
	w, p, first, _ := separated(t)
	requests := w.RecordRequests(func() { p.Delete(first) })
	for _, point := range testenv.CrashPoints(requests) {
		t.Run(point.Name, func(t *testing.T) {
			t.Parallel()
			w, killed, first, second := separated(t)
			deleted, err := killed.Instances.Deleter.Delete(testenv.KillAtRequest(w.T, w.Sim, point.Request, point.After), first)
			w.EndCrash(!deleted || err != nil)
			next := w.StartProcess()
			next.Delete(w.Stored(first))
			w.Expect(w.Sim.HAResources()).To(HaveLen(1), "the other VM stays in HA")
			next.Delete(w.Stored(second))
			w.ExpectNoOrphans()
			w.Expect(w.Sim.HAResources()).To(BeEmpty())
			w.Expect(w.Sim.HARules()).To(BeEmpty())
		})
	}
}

// The claims of VMs in HA do not exist.
func TestDeleteOrphanInHA(t *testing.T) {
	t.Parallel()
	w, p, _, _ := separated(t)
	vms, err := p.Instances.VMs.List()
	w.Expect(err).NotTo(HaveOccurred())
	w.Expect(slices.ContainsFunc(vms, func(vm instance.VM) bool { return !vm.UnderHA() })).To(BeFalse())
	for _, vm := range vms {
		w.Eventually(func() (bool, error) { return p.Instances.Deleter.DeleteOrphan(t.Context(), vm) }).Should(BeTrue())
	}
	w.Expect(w.Sim.HAResources()).To(BeEmpty())
	w.Expect(w.Sim.HARules()).To(BeEmpty())
}

// Another user's VM has the VMID of a deleted VM that was in HA.
func TestDeleteHAVMIDTaken(t *testing.T) {
	t.Parallel()
	w, p, first, _ := separated(t)
	in := w.Intent(first)
	w.Expect(w.Sim.SetHA(in.VMID, "ignored")).To(Succeed())
	w.DestroyByHand(in.Host, in.VMID)
	w.CloneByHand("pve1", in.VMID, "foreign")
	w.Expect(w.Sim.SetHA(in.VMID, "ignored")).To(Succeed())
	p.Refresh()
	p.Delete(first)
	w.Expect(w.Sim.HAResources()).To(HaveKey(in.VMID))
	w.Expect(w.Sim.HARules()).To(BeEmpty(), "the other VM would be the only one")
}

// An administrator destroys a VM, which leaves it in a resource affinity rule with one other
// resource. Proxmox refuses to remove it there, which does not block the deletion. The next VM
// replaces the stale entry.
func TestDeleteHALastInRule(t *testing.T) {
	t.Parallel()
	const db = 101
	w := testenv.NewFake(t, testenv.Hosts(2), testenv.HA("9.2"))
	w.Expect(w.Sim.SetHA(db, "ignored")).To(Succeed())
	w.Sim.AddHARule("with-db", map[string]string{"type": "resource-affinity", "affinity": "positive", "resources": proxmox.HAResourceID(db)})
	w.NodeClass.Spec.HighAvailability = &v1alpha1.HighAvailability{Rules: []string{"with-db"}}
	p := w.StartProcess(testenv.NoPolling())
	claim, next := p.Launched("pool-abc", w.NodeClass), p.Planned("pool-next", w.NodeClass)
	in := w.Intent(claim)
	w.Expect(w.Sim.SetHA(in.VMID, "ignored")).To(Succeed())
	w.DestroyByHand(in.Host, in.VMID)
	stale := []string{proxmox.HAResourceID(db), proxmox.HAResourceID(in.VMID)}
	w.Expect(w.Sim.HARules()).To(HaveKeyWithValue("with-db", ConsistOf(stale)))
	p.Refresh()

	deleted, err := p.Instances.Deleter.Delete(t.Context(), claim)
	w.Expect(err).NotTo(HaveOccurred())
	w.Expect(deleted).To(BeTrue())
	w.Expect(w.Sim.HARules()).To(HaveKeyWithValue("with-db", ConsistOf(stale)))

	p.MustLaunch(next, w.NodeClass)
	w.Expect(w.Sim.HARules()).To(HaveKeyWithValue("with-db", ConsistOf(proxmox.HAResourceID(db), proxmox.HAResourceID(w.Intent(next).VMID))))
}
