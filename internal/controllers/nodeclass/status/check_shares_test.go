// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package status_test

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

// withDirectories adds directory mappings and the privilege to use them.
func withDirectories(mappings ...pvesim.Mapping) func(*pvesim.Scenario) {
	return func(s *pvesim.Scenario) {
		s.Mappings = mappings
		s.Roles[0].Privileges = append(s.Roles[0].Privileges, "Mapping.Use")
	}
}

func withShares(mappings ...string) func(*v1alpha1.ProxmoxNodeClass) {
	return func(c *v1alpha1.ProxmoxNodeClass) {
		for _, mapping := range mappings {
			c.Spec.Shares = append(c.Spec.Shares, v1alpha1.Share{Mapping: mapping})
		}
	}
}

func TestCheckShares(t *testing.T) {
	t.Parallel()
	w := testenv.New(t, testenv.NoPolling(), testenv.Hosts(3), testenv.Scenario(withDirectories(
		pvesim.Mapping{Kind: "dir", ID: "data", Map: []string{"node=pve2,path=/tank/data"}})))
	setTemplateZones(w, "region-1/pve1/9000", "region-1/pve2/9001", "region-1/pve3/9002")
	class := reconcileClass(w, w.NewClass(withShares("data")))
	w.Expect(class.StatusConditions().Get(v1alpha1.ConditionSharesReady).IsUnknown()).To(BeTrue(), "mappings are read once a class refers to them")
	w.Refresh()
	class = reconcileClass(w, class)
	w.Expect(class.StatusConditions().Root().IsTrue()).To(BeTrue(), conditionMessage(class, v1alpha1.ConditionSharesReady))
	w.Expect(class.Status.SelectedZones).To(Equal([]string{"region-1/pve2/9001"}))
	const reason = `spec.shares[0].mapping: directory mapping "data" has no directory on this host; add one (Datacenter, Resource Mappings)`
	w.Expect(class.Status.UnusableZones).To(ConsistOf(
		v1alpha1.UnusableZone{Zone: "region-1/pve1", Reason: reason}, v1alpha1.UnusableZone{Zone: "region-1/pve3", Reason: reason}))
	available := map[string]bool{}
	for _, it := range w.Types.List(class, "") {
		for _, offering := range it.Offerings.Available() {
			available[offering.Zone()] = true
		}
	}
	w.Expect(available).To(Equal(map[string]bool{"pve2": true}))

	class.Spec.Shares = nil
	w.Expect(w.Kube.Update(t.Context(), class)).To(Succeed())
	w.Expect(reconcileClass(w, class).Status.SelectedZones).To(HaveLen(3))
}

func TestCheckSharesAfterFix(t *testing.T) {
	t.Parallel()
	w := testenv.New(t, testenv.NoPolling(), testenv.Scenario(withDirectories()))
	setTemplateZones(w, "region-1/pve1/9000")
	class := reconcileClass(w, w.NewClass(withShares("data")))
	w.Refresh()
	w.Expect(reconcileClass(w, class).StatusConditions().Get(v1alpha1.ConditionSharesReady).IsFalse()).To(BeTrue())
	w.Sim.AddMapping(pvesim.Mapping{Kind: "dir", ID: "data", Map: []string{"node=pve1,path=/tank/data"}})
	w.Clock.Advance(time.Minute) // invalidated facts are read after a delay
	w.Refresh()
	w.Expect(reconcileClass(w, class).StatusConditions().Root().IsTrue()).To(BeTrue())
}

func TestCheckSharesPlan9(t *testing.T) {
	t.Parallel()
	w := testenv.New(t, testenv.NoPolling(), testenv.Hosts(2), testenv.Scenario(withDirectories(
		pvesim.Mapping{Kind: "dir", ID: "data", Map: []string{"node=pve1,path=/tank/data", "node=pve2,path=/tank/my data"}})))
	setTemplateZones(w, "region-1/pve1/9000", "region-1/pve2/9001")
	class := reconcileClass(w, w.NewClass(withShares("data"), func(c *v1alpha1.ProxmoxNodeClass) { c.Spec.Shares[0].Type = v1alpha1.ShareTypePlan9 }))
	w.Expect(conditionMessage(class, v1alpha1.ConditionPrivilegesSufficient)).To(Equal("region-1: spec.shares[0].type plan9 sets QEMU arguments, which only root@pam may do; " +
		"add a root login for this region to the cloud config (docs/shares.md), or use type virtiofs"))

	w.Roots = map[string]proxmox.Root{testenv.Region: nil}
	reconcileClass(w, class) // mappings are read once a class refers to them
	w.Refresh()
	class = reconcileClass(w, class)
	w.Expect(class.StatusConditions().Root().IsTrue()).To(BeTrue(), class.StatusConditions().Root().Message)
	w.Expect(class.Status.UnusableZones).To(ConsistOf(And(
		HaveField("Zone", "region-1/pve2"), HaveField("Reason", ContainSubstring(`"/tank/my data" of mapping data cannot be named in QEMU's arguments`)))))
}
