// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package controllers_test

import (
	"slices"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/karpenter/pkg/cloudprovider"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/backoff"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/nodeclaim/launch"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/nodeclass"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

// A launch that failed without a privilege is retried when the privilege is granted,
// whether or not the class is checked for it.
func TestLaunchBackoffEndsWithGrant(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		scenario func(*pvesim.Scenario)
		fault    pvesim.Fault
	}{
		"checked": {scenario: func(s *pvesim.Scenario) { s.Guests[0].Config["rng0"] = "source=/dev/hwrng" }},
		"not_checked": {scenario: func(*pvesim.Scenario) {}, fault: pvesim.Fault{
			Method: "POST", Path: "/nodes/*/qemu/*/clone", Status: 403, Message: "Permission check failed (/mapping/new, Mapping.Use)", Count: 1,
		}},
	} {
		testenv.RunSimulated(t, name, func(t *testing.T) {
			w, class := checkCase{scenario: test.scenario}.newClass(t)
			controller := nodeclass.NewController(w.Kube, w.Events, statusDeps(w))
			offered := func() bool {
				return slices.ContainsFunc(w.Types.List(class, ""), func(it *cloudprovider.InstanceType) bool { return len(it.Offerings.Available()) > 0 })
			}
			// check reads facts that are due, and checks the class.
			check := func() *v1alpha1.ProxmoxNodeClass {
				t.Helper()
				w.Clock.Advance(time.Minute)
				w.Refresh()
				w.Expect(controller.Reconcile(t.Context(), testenv.Reload(w, class))).Error().NotTo(HaveOccurred())
				return testenv.Reload(w, class)
			}
			role := pvesim.DefaultScenario(1).Roles[0]
			granted := pvesim.Role{ID: role.ID, Privileges: append(slices.Clone(role.Privileges), "Mapping.Use")}
			w.Expect(w.Sim.SetRole(granted)).To(Succeed())
			check() // the privileges were read before
			w.Expect(isReady(check())).To(BeTrue())

			// The privilege is revoked.
			w.Expect(w.Sim.SetRole(role)).To(Succeed())
			if test.fault.Status != 0 {
				w.AddFault(test.fault)
			}
			w.Expect(launch.NewController(launch.Deps{
				Kube: w.Kube, Launcher: w.Instances.Launcher, Health: w.Instances.Health, Types: w.Types, Recorder: w.Events, Clock: w.Clock,
				Pods: func(string) []types.NamespacedName { return nil }, FailureBackoff: backoff.Exponential{Initial: time.Hour, Max: time.Hour},
			}).Reconcile(t.Context(), w.Planned("a", class))).Error().NotTo(HaveOccurred())
			w.Expect(offered()).To(BeFalse(), "the launch failed")
			for range 3 {
				check()
				w.Expect(offered()).To(BeFalse(), "the privilege is still missing")
			}

			w.Expect(w.Sim.SetRole(granted)).To(Succeed())
			w.Expect(isReady(check())).To(BeTrue())
			w.Expect(offered()).To(BeTrue(), "the backoff did not end with the grant")
			w.MustLaunch(w.Planned("b", class), class)
		})
	}
}
