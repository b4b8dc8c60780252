// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package cloudprovider_test

import (
	"fmt"
	"testing"

	. "github.com/onsi/gomega"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	corecloudprovider "sigs.k8s.io/karpenter/pkg/cloudprovider"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
)

// Core creates no Nodes that would use the reserve, until it replaces those of a Host in
// maintenance.
func TestScheduleReserve(t *testing.T) {
	t.Parallel()
	k := newKarpenter(t, testenv.NoPolling(), testenv.Hosts(2))
	class := k.readyPool(func(class *v1alpha1.ProxmoxNodeClass, _ *karpv1.NodePool) {
		class.Spec.PlacementStrategy.Reserve = v1alpha1.ReserveLargestHost
	})
	// Two hosts with 16 CPUs, of which a guest has two each: a host can hold eight.
	for n := range 6 {
		k.Planned(fmt.Sprint("planned-", n), class)
	}
	k.PendingPod("pod", "500m")
	schedule := func() int {
		results, err := k.provisioner.Schedule(k.ctx)
		k.Expect(err).NotTo(HaveOccurred())
		k.Expect(len(results.NewNodeClaims) + len(results.PodErrors)).To(Equal(1))
		return len(results.NewNodeClaims)
	}
	k.Expect(schedule()).To(BeZero())
	_, err := provider(k.Env).Create(k.ctx, k.Claim("refused", class))
	k.Expect(corecloudprovider.IsInsufficientCapacityError(err)).To(BeTrue())
	k.Expect(err).To(MatchError(And(ContainSubstring("insufficient reserve: if pve"),
		ContainSubstring("would not fit on the other hosts with 8 CPUs"))))

	k.Inventory.SetMaintenance(inventory.Maintenance{{Region: testenv.Region, Host: "pve2"}: "new disk"})
	k.Expect(schedule()).To(Equal(1))
}
