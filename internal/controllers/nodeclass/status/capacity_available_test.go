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

func TestReconcileInsufficientCapacity(t *testing.T) {
	t.Parallel()
	w := testenv.New(t, testenv.Hosts(2), testenv.NoPolling())
	setTemplateZones(w, "region-1/pve1/9000", "region-1/pve2/9001")
	class := reconcileClass(w, w.NewClass())
	w.Expect(class.StatusConditions().Get(v1alpha1.ConditionCapacityAvailable).IsTrue()).To(BeTrue())

	settings, err := inventory.ParseSettings([]byte(`{"*": {"pve1": {"excluded": true}, "pve2": {"reservedmemory": "1Ti"}}}`))
	w.Expect(err).NotTo(HaveOccurred())
	w.Inventory.SetSettings(settings)
	class = reconcileClass(w, class)
	available := class.StatusConditions().Get(v1alpha1.ConditionCapacityAvailable)
	w.Expect(available.IsFalse()).To(BeTrue())
	w.Expect(available.Message).To(And(
		HavePrefix("no host fits c1.1VCPU-2GB, the cheapest allowed instance type: "), ContainSubstring("pve1: excluded by settings"), ContainSubstring("pve2: 0.0 GiB memory free, 2.0 GiB requested")))
	w.Expect(class.StatusConditions().Get(operatorstatus.ConditionReady).IsTrue()).To(BeTrue(), "capacity is not part of Ready")
}
