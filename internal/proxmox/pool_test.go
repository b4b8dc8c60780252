// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox_test

import (
	"testing"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

// The caller may not know that an earlier request moved the VM.
func TestMoveToPoolTwice(t *testing.T) {
	t.Parallel()
	for _, release := range []string{"8.4", "9.2"} {
		runSimulated(t, release, func(t *testing.T, g *WithT) {
			ctx := t.Context()
			_, c := simulate(t, release, func(s *pvesim.Scenario) {
				s.Pools = append(s.Pools, pvesim.Pool{ID: "old"}, pvesim.Pool{ID: "new"})
				s.Roles[0].Privileges = append(s.Roles[0].Privileges, "Pool.Audit", "Pool.Allocate")
			})
			for _, move := range []struct{ from, pool string }{{"", "old"}, {"old", "new"}, {"new", "old"}, {"old", ""}} {
				for range 2 {
					g.Expect(c.MoveToPool(ctx, templateID, move.from, move.pool)).To(Succeed())
					g.Expect(c.Resources(ctx)).To(HaveField("Guests", ContainElement(And(HaveField("VMID", templateID), HaveField("Pool", move.pool)))))
				}
			}
			g.Expect(c.MoveToPool(ctx, templateID, "", "missing")).To(MatchError(ContainSubstring("does not exist")))
		})
	}
}
