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

// directories are those that are mapped, and may be used.
func directories(mappings ...pvesim.Mapping) func(*pvesim.Scenario) {
	return func(s *pvesim.Scenario) {
		s.Mappings = mappings
		s.Roles[0].Privileges = append(s.Roles[0].Privileges, "Mapping.Use")
	}
}

func sharing(mappings ...string) func(*v1alpha1.ProxmoxNodeClass) {
	return func(c *v1alpha1.ProxmoxNodeClass) {
		for _, mapping := range mappings {
			c.Spec.Shares = append(c.Spec.Shares, v1alpha1.Share{Mapping: mapping})
		}
	}
}

func TestHostsWithoutTheDirectoryAreLeftOut(t *testing.T) {
	t.Parallel()
	w := testenv.New(t, testenv.NoPolling(), testenv.Hosts(3), testenv.Scenario(directories(
		pvesim.Mapping{Kind: "dir", ID: "data", Map: []string{"node=pve2,path=/tank/data"}})))
	found(w, "region-1/pve1/9000", "region-1/pve2/9001", "region-1/pve3/9002")
	class := checked(w, w.NewClass(sharing("data")))
	w.Expect(class.StatusConditions().Get(v1alpha1.ConditionSharesReady).IsUnknown()).To(BeTrue(), "mappings are looked up once somebody asks")
	w.Refresh()
	class = checked(w, class)
	w.Expect(class.StatusConditions().Root().IsTrue()).To(BeTrue(), message(class, v1alpha1.ConditionSharesReady))
	w.Expect(class.Status.SelectedZones).To(Equal([]string{"region-1/pve2/9001"}))
	const reason = `spec.shares[0].mapping: directory mapping "data" has no directory on this host; add one (Datacenter, Resource Mappings)`
	w.Expect(class.Status.UnusableZones).To(ConsistOf(
		v1alpha1.UnusableZone{Zone: "region-1/pve1", Reason: reason}, v1alpha1.UnusableZone{Zone: "region-1/pve3", Reason: reason}))
	available := map[string]bool{}
	for _, it := range w.Types.List(class) {
		for _, offering := range it.Offerings.Available() {
			available[offering.Zone()] = true
		}
	}
	w.Expect(available).To(Equal(map[string]bool{"pve2": true}))

	class.Spec.Shares = nil
	w.Expect(w.Kube.Update(t.Context(), class)).To(Succeed())
	w.Expect(checked(w, class).Status.SelectedZones).To(HaveLen(3))
}

func TestADirectoryThatWasMappedIsNoticed(t *testing.T) {
	t.Parallel()
	w := testenv.New(t, testenv.NoPolling(), testenv.Scenario(directories()))
	found(w, "region-1/pve1/9000")
	class := checked(w, w.NewClass(sharing("data")))
	w.Refresh()
	w.Expect(checked(w, class).StatusConditions().Get(v1alpha1.ConditionSharesReady).IsFalse()).To(BeTrue())
	w.Sim.AddMapping(pvesim.Mapping{Kind: "dir", ID: "data", Map: []string{"node=pve1,path=/tank/data"}})
	w.Clock.Advance(time.Minute) // what is doubted is believed for a moment
	w.Refresh()
	w.Expect(checked(w, class).StatusConditions().Root().IsTrue()).To(BeTrue())
}

func TestPlan9NeedsALoginOfRootAndAPlainPath(t *testing.T) {
	t.Parallel()
	w := testenv.New(t, testenv.NoPolling(), testenv.Hosts(2), testenv.Scenario(directories(
		pvesim.Mapping{Kind: "dir", ID: "data", Map: []string{"node=pve1,path=/tank/data", "node=pve2,path=/tank/my data"}})))
	found(w, "region-1/pve1/9000", "region-1/pve2/9001")
	class := checked(w, w.NewClass(sharing("data"), func(c *v1alpha1.ProxmoxNodeClass) { c.Spec.Shares[0].Type = v1alpha1.ShareTypePlan9 }))
	w.Expect(message(class, v1alpha1.ConditionPrivilegesSufficient)).To(Equal("region-1: spec.shares[0].type plan9 sets arguments of QEMU, and Proxmox lets only " +
		"a login of root@pam do that; give this region a root login in the cloud config (docs/shares.md), or use type virtiofs"))

	w.Roots = map[string]proxmox.Root{testenv.Region: nil}
	checked(w, class) // mappings are looked up once somebody asks
	w.Refresh()
	class = checked(w, class)
	w.Expect(class.StatusConditions().Root().IsTrue()).To(BeTrue(), class.StatusConditions().Root().Message)
	w.Expect(class.Status.UnusableZones).To(ConsistOf(And(
		HaveField("Zone", "region-1/pve2"), HaveField("Reason", ContainSubstring(`"/tank/my data" of mapping data cannot be named in QEMU's arguments`)))))
}
