// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package plan_test

import (
	"testing"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance/plan"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

// smallHost has capacity for one VM next to its guest with two CPUs.
func smallHost(s *pvesim.Scenario) { s.Hosts[0].Cores = 4 }

// A VM that was planned before a restart, and is not in a Snapshot yet, has its capacity.
func TestPlanAfterRestart(t *testing.T) {
	t.Parallel()
	w := testenv.NewFake(t, testenv.Scenario(smallHost))
	p := w.StartProcess()
	claim := p.Planned("pool-first", w.NodeClass)

	p = w.StartProcess(testenv.NoPolling())
	_, err := p.Instances.Planner.Plan(t.Context(), w.Claim("pool-second", w.NodeClass), w.NodeClass, plan.Options{})
	var insufficient *instance.InsufficientCapacityError
	w.Expect(err).To(BeAssignableToTypeOf(insufficient), "the capacity of the first VM was planned twice")

	w.Expect(p.Launch(claim, w.NodeClass)).To(Succeed())
	p.Delete(w.Stored(claim))
	w.ExpectNoOrphans()
}
