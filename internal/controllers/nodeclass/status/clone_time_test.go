// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package status_test

import (
	"testing"
	"time"

	operatorstatus "github.com/awslabs/operatorpkg/status"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance/plan"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
)

// TestReconcileSlowClones: clones that almost take as long as Karpenter's timeout cause
// a warning; slower ones exclude their Host for a while.
func TestReconcileSlowClones(t *testing.T) {
	t.Parallel()
	w := testenv.New(t, testenv.Hosts(2))
	setTemplateZones(w, "region-1/pve1/9000", "region-1/pve2/9001")
	class := reconcileClass(w, w.NewClass())
	onFirst := func(c *karpv1.NodeClaim) {
		c.Spec.Requirements = append(c.Spec.Requirements, karpv1.NodeSelectorRequirementWithMinValues{
			Key: corev1.LabelTopologyZone, Operator: corev1.NodeSelectorOpIn, Values: []string{"pve1"},
		})
	}
	w.Launched("a", class, onFirst)
	took := w.Instances.CloneTimes.Get(testenv.Region, "pve1", "local-lvm")
	w.Expect(took).To(BeNumerically(">", 0))
	launches := func() *operatorstatus.Condition {
		return reconcileClass(w, class).StatusConditions().Get(v1alpha1.ConditionLaunchesHealthy)
	}
	w.Expect(launches().IsTrue()).To(BeTrue())

	w.Instances.CloneTimes.Slow, w.Instances.CloneTimes.TooSlow = took, 2*took
	w.Expect(launches().IsFalse()).To(BeTrue())
	w.Expect(launches().Reason).To(Equal(v1alpha1.EventCloneTooSlow))
	w.Expect(launches().Message).To(And(ContainSubstring("region-1/pve1"), ContainSubstring("link clones")))
	idle := reconcileClass(w, w.NewClass(func(c *v1alpha1.ProxmoxNodeClass) { c.Name = w.Named("idle") }))
	w.Expect(idle.StatusConditions().Get(v1alpha1.ConditionLaunchesHealthy).IsFalse()).To(BeTrue())
	w.Instances.CloneTimes.Slow, w.Instances.CloneTimes.TooSlow = time.Hour, 2*time.Hour
	w.Expect(reconcileClass(w, idle).StatusConditions().Get(v1alpha1.ConditionLaunchesHealthy).IsTrue()).To(BeTrue(), "no clone is slow any more")
	w.Instances.CloneTimes.Slow, w.Instances.CloneTimes.TooSlow = took, 2*took
	w.Expect(class.Status.SelectedZones).To(HaveLen(2), "a warning excludes no host")
	w.Planned("b", class, onFirst)

	w.Instances.CloneTimes.Slow, w.Instances.CloneTimes.TooSlow = took/2, took
	class = reconcileClass(w, class)
	w.Expect(class.Status.SelectedZones).To(Equal([]string{"region-1/pve2/9001"}))
	w.Expect(class.Status.UnusableZones).To(ConsistOf(And(HaveField("Zone", "region-1/pve1"), HaveField("Reason", ContainSubstring("link clones")))))
	w.Expect(class.StatusConditions().Get(operatorstatus.ConditionReady).IsTrue()).To(BeTrue(), "there is another host")
	_, err := w.Instances.Planner.Plan(t.Context(), w.Claim("c", class, onFirst), class, plan.Options{})
	w.Expect(err).To(MatchError(ContainSubstring("pve1")))
	w.Expect(w.Intent(w.Planned("d", class)).Host).To(Equal("pve2"))

	w.Clock.Advance(2 * time.Hour)
	w.Expect(reconcileClass(w, class).Status.SelectedZones).To(HaveLen(2), "the host is retried")
}
