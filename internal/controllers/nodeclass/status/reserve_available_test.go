// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package status_test

import (
	"testing"

	operatorstatus "github.com/awslabs/operatorpkg/status"
	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
)

func setHostSettings(w *testenv.Env, text string) {
	w.T.Helper()
	settings, err := inventory.ParseSettings([]byte(text))
	w.Expect(err).NotTo(HaveOccurred())
	w.Inventory.SetSettings(settings)
}

func TestReconcileReserve(t *testing.T) {
	t.Parallel()
	w := testenv.New(t, testenv.Hosts(3), testenv.NoPolling())
	setTemplateZones(w, testenv.Zones(3)...)
	class := reconcileClass(w, w.NewClass())
	reserve := func() *operatorstatus.Condition {
		class = reconcileClass(w, class)
		return class.StatusConditions().Get(v1alpha1.ConditionReserveAvailable)
	}
	w.Expect(reserve()).To(BeNil(), "neither class nor region keep a reserve")

	class.Spec.PlacementStrategy.Reserve = v1alpha1.ReserveLargestHost
	w.Expect(w.Kube.Update(t.Context(), class)).To(Succeed())
	w.Expect(reserve().IsTrue()).To(BeTrue())

	// The guest of each host has 4 GiB.
	setHostSettings(w, `{"*": {"pve1": {"reservedmemory": "57Gi"}, "*": {"reservedmemory": "59Gi"}}}`)
	w.Expect(reserve().IsFalse()).To(BeTrue())
	w.Expect(reserve().Reason).To(Equal(v1alpha1.ReasonInsufficientReserve))
	w.Expect(reserve().ObservedGeneration).To(Equal(class.Generation))
	const violation = "region region-1: if pve1 failed, its guests with 2 CPUs and 4.0 GiB would not fit on the other hosts with 28 CPUs and 2.0 GiB free: " +
		"no capacity for 101 with 2 CPUs and 4.0 GiB; nor would the guests of pve2, pve3"
	w.Expect(reserve().Message).To(Equal(violation))
	w.Expect(class.StatusConditions().Get(operatorstatus.ConditionReady).IsTrue()).To(BeTrue(), "the reserve is not part of Ready")
	w.Expect(class.StatusConditions().Get(v1alpha1.ConditionCapacityAvailable).Message).To(ContainSubstring("insufficient reserve: if pve1 failed"))

	w.Restart(false)
	w.Expect(reserve().Message).To(Equal(violation), "the region was not read yet")
	w.Restart(true)
	setHostSettings(w, `{"*": {"*": {"reservedmemory": "59Gi"}}}`)
	w.Inventory.SetMaintenance(inventory.Maintenance{{Region: testenv.Region, Host: "pve3"}: "new disk"})
	w.Expect(reserve().IsFalse()).To(BeTrue())
	w.Expect(reserve().Message).To(And(ContainSubstring("on the other hosts with 14 CPUs"), HaveSuffix("; new VMs can use the reserve until these hosts are available: pve3")))

	w.Inventory.SetMaintenance(nil)
	setHostSettings(w, `{}`)
	w.Expect(reserve().IsTrue()).To(BeTrue())
	class.Spec.PlacementStrategy.Reserve = ""
	w.Expect(w.Kube.Update(t.Context(), class)).To(Succeed())
	w.Expect(reserve()).To(BeNil())
	setHostSettings(w, `{"region-1": {"*": {"reserve": "LargestHost"}}}`)
	w.Expect(reserve().IsTrue()).To(BeTrue(), "the region keeps a reserve")
}
