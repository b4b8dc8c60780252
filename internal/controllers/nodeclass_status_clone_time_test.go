// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package controllers_test

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
)

// TestReconcileSlowClones: clones that almost take as long as Karpenter's timeout cause
// a warning; slower ones exclude their Host for a while.
func TestReconcileSlowClones(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w, class := checkCase{hosts: 2}.newClass(t)
		onFirst := testenv.OnHost("pve1")
		w.Launched("a", nodeClassStatusReconcileClass(w, class), onFirst)
		times := w.Instances.Health
		took := times.CloneTime(testenv.Region, "pve1", "local-lvm")
		w.Expect(took).To(BeNumerically(">", 0))
		launches := func(class *v1alpha1.ProxmoxNodeClass) string {
			return nodeClassStatusCondition(nodeClassStatusReconcileClass(w, class), v1alpha1.ConditionLaunchesHealthy)
		}
		w.Expect(launches(class)).To(HavePrefix("True"))

		times.Slow, times.TooSlow = took, 2*took
		w.Expect(launches(class)).To(And(HavePrefix("False CloneTooSlow: region-1/pve1: "), ContainSubstring("link clones")))
		idle := w.NewClass(func(c *v1alpha1.ProxmoxNodeClass) { c.Name = "idle" })
		w.Expect(launches(idle)).To(HavePrefix("False"))
		times.Slow, times.TooSlow = time.Hour, 2*time.Hour
		w.Expect(launches(idle)).To(HavePrefix("True"), "no clone is slow any more")
		times.Slow, times.TooSlow = took, 2*took
		w.Expect(class.Status.SelectedZones).To(HaveLen(2), "a warning excludes no host")
		w.Planned("b", class, onFirst)

		times.Slow, times.TooSlow = took/2, took
		w.Expect(nodeClassStatusReconcileClass(w, class).Status.SelectedZones).To(Equal([]string{"region-1/pve2/9001"}))
		w.Expect(class.Status.UnusableZones).To(ConsistOf(And(HaveField("Zone", "region-1/pve1"), HaveField("Reason", ContainSubstring("link clones")))))
		w.Expect(isReady(class)).To(BeTrue(), "there is another host")
		w.Expect(w.Instances.Planner.Plan(t.Context(), w.Claim("c", class, onFirst), class, false)).Error().To(MatchError(ContainSubstring("pve1")))
		w.Expect(w.Intent(w.Planned("d", class)).Host).To(Equal("pve2"))

		w.Clock.Advance(2 * time.Hour)
		w.Expect(nodeClassStatusReconcileClass(w, class).Status.SelectedZones).To(HaveLen(2), "the host is retried")
	})
}
