// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package launch_test

import (
	"os"
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance/plan"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
)

func olderIntent(w *testenv.Env) string {
	w.T.Helper()
	raw, err := os.ReadFile("../testdata/formats/intent-v1.json")
	w.Expect(err).NotTo(HaveOccurred())
	return string(raw)
}

func TestLaunchOlderIntent(t *testing.T) {
	t.Parallel()
	for name, intent := range map[string]func(string) string{
		"unchanged": func(s string) string { return s },
		// After a downgrade: a newer release added a field that can be ignored.
		"with_additional_field": func(s string) string { return strings.Replace(s, `"v": 1,`, `"v": 1, "later": {"a": ["b"]},`, 1) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := testenv.NewFake(t, testenv.Hosts(2))
			p := w.StartProcess()
			claim := w.ClaimWithIntent("pool-abc", intent(olderIntent(w)))
			planned, err := p.Instances.Planner.Plan(t.Context(), claim, w.NodeClass, plan.Options{})
			w.Expect(err).NotTo(HaveOccurred())
			w.Expect(planned.VMID).To(Equal(20123), "an existing plan is kept")
			w.Expect(p.Launch(claim, w.NodeClass)).To(Succeed())
			w.Expect(w.VMs()).To(ConsistOf(HaveField("VMID", 20123)))
			p.Delete(w.Stored(claim))
			w.ExpectNoOrphans()
		})
	}
}

func TestLaunchNewerIntent(t *testing.T) {
	t.Parallel()
	w := testenv.NewFake(t, testenv.Hosts(2))
	p := w.StartProcess()
	claim := w.ClaimWithIntent("pool-abc", testenv.NewerIntent)
	p.Instances.Planner.RestoreReservation(*claim)
	w.Sim.ResetRequests()
	_, err := p.Instances.Planner.Plan(t.Context(), claim, w.NodeClass, plan.Options{})
	w.Expect(err).To(MatchError(instance.ErrNewerVersion), "another VMID would be a second VM")
	err = p.Launch(claim, w.NodeClass)
	w.Expect(err).To(MatchError(instance.ErrNewerVersion))
	w.Expect(err).NotTo(BeAssignableToTypeOf(&instance.LaunchError{}), "a failure would delete the VM of the newer release")
	for _, call := range w.Sim.Requests() {
		w.Expect(call.Method).To(Equal("GET"), call.Path)
	}
	w.Expect(w.Stored(claim).Annotations).To(HaveKeyWithValue(v1alpha1.AnnotationLaunchIntent, testenv.NewerIntent))
	w.Expect(p.Instances.VMs.MayExist(claim)).To(BeTrue())
	w.Expect(p.Inventory.View().Reservations).To(HaveKeyWithValue(string(claim.UID), HaveField("VMID", 20123)), "its VMID is reserved")

	p.Delete(claim)
	w.ExpectNoOrphans()
}
