// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package plan_test

import (
	"errors"
	"fmt"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance/plan"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/placement"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
)

func TestPlanInsufficientCapacity(t *testing.T) {
	t.Parallel()
	w := testenv.NewFake(t, testenv.Hosts(2))
	p := w.StartProcess()
	launched := 0
	var refusal error
	for i := range 40 {
		_, err := p.Instances.Planner.Plan(t.Context(), w.Claim(fmt.Sprintf("pool-%d", i), w.NodeClass), w.NodeClass, plan.Options{})
		if err != nil {
			refusal = err
			break
		}
		launched++
	}
	// Two hosts with 16 CPUs, of which a guest has two each.
	w.Expect(launched).To(Equal(14))
	var insufficient *instance.InsufficientCapacityError
	w.Expect(errors.As(refusal, &insufficient)).To(BeTrue())
	w.Expect(refusal.Error()).To(And(ContainSubstring("pve1"), ContainSubstring("pve2"), ContainSubstring("CPU")))
}

// The VMs of a NodePool are counted after a restart.
func TestRestoreReservation(t *testing.T) {
	t.Parallel()
	w := testenv.NewFake(t)
	p := w.StartProcess()
	claim := p.Launched("pool-abc", w.NodeClass)
	in := w.Intent(claim)
	next := w.StartProcess()
	next.Instances.Planner.RestoreReservation(*claim)
	w.Expect(next.Inventory.View().NodePoolVMs(in.Region, in.Host, "pool")).To(Equal(1))
	next.Instances.Planner.Release(string(claim.UID))
	w.Expect(next.Inventory.View().NodePoolVMs(in.Region, in.Host, "pool")).To(BeZero())
	p.Delete(claim)
}

// A region without free VMIDs is not offered for a while.
func TestPlanNoFreeVMID(t *testing.T) {
	t.Parallel()
	w := testenv.NewFake(t, testenv.Hosts(2))
	p := w.StartProcess(testenv.Settings(func(s *instance.Settings) { s.VMIDs = placement.Range{From: 20000, To: 20001} }))
	p.Planned("pool-a", w.NodeClass)
	p.Planned("pool-b", w.NodeClass)
	_, err := p.Instances.Planner.Plan(t.Context(), w.Claim("pool-c", w.NodeClass), w.NodeClass, plan.Options{})
	w.Expect(err).To(MatchError(placement.ErrRangeFull))
	for _, it := range p.Types.List(w.NodeClass, "") {
		w.Expect(it.Offerings.Available()).To(BeEmpty(), it.Name)
	}
}
