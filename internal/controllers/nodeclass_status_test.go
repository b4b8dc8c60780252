// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package controllers_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/nodeclass"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

func TestReconcileRegion(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w := testenv.New(t, testenv.NoPolling(), testenv.OtherHosts(1))
		setTemplateZones(w, "region-1/pve1/9000", "region-2/pve1/9000")
		inRegion := func(region string) *v1alpha1.ProxmoxNodeClass {
			return nodeClassStatusReconcileClass(w, w.NewClass(func(c *v1alpha1.ProxmoxNodeClass) { c.Name, c.Spec.Region = "in-"+region, region }))
		}
		w.Expect(inRegion("").Status.SelectedZones).To(Equal([]string{"region-1/pve1/9000", "region-2/pve1/9000"}))
		one := inRegion(testenv.OtherRegion)
		w.Expect(one.Status.SelectedZones).To(Equal([]string{"region-2/pve1/9000"}))
		w.Expect(one.Status.UnusableZones).To(BeEmpty(), "hosts of other regions are not listed")
		unknown := inRegion("mars")
		w.Expect(nodeClassStatusCondition(unknown, v1alpha1.ConditionClustersReachable)).To(Equal(
			`False RegionNotFound: spec.region "mars" is not in the cloud config, which has region-1, region-2`))
		w.Expect(unknown.StatusConditions().Root().IsFalse()).To(BeTrue())
		w.Expect(unknown.Status.SelectedZones).To(BeEmpty())
	})
}

// Core keeps a claim while the readiness of its class is unknown, and provisions nothing.
func TestReconcileUnknownTimeout(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		prepare   func(*testenv.Env)
		reachable string
	}{
		"never_polled": {func(*testenv.Env) {}, "Unknown ClustersNotPolled: "},
		"privileges_never_read": {func(w *testenv.Env) {
			w.AddFault(pvesim.Fault{Method: "GET", Path: "/access/permissions", Status: 500, Message: "failed"})
			w.Refresh()
		}, "True"},
	} {
		testenv.RunSimulated(t, name, func(t *testing.T) {
			w, class := checkCase{}.newClass(t)
			w.Restart(false)
			test.prepare(w)
			nodeClassStatusReconcileClass(w, class)
			w.Expect(class.StatusConditions().Root().IsUnknown()).To(BeTrue())
			w.Expect(nodeClassStatusCondition(class, v1alpha1.ConditionClustersReachable)).To(HavePrefix(test.reachable))
			w.Expect(nodeClassStatusCondition(class, v1alpha1.ConditionInstanceTemplateReady)).To(HavePrefix("Unknown ClustersNotPolled: "))

			w.Clock.Advance(time.Minute)
			ready := nodeClassStatusReconcileClass(w, class).StatusConditions().Root()
			w.Expect(ready.IsFalse()).To(BeTrue(), ready.Message)
			w.Expect(ready.Message).To(ContainSubstring("read yet"))
			before := class.ResourceVersion
			w.Expect(nodeClassStatusReconcileClass(w, class).ResourceVersion).To(Equal(before), "it is not written again")

			w.Sim.ClearFaults()
			w.Clock.Advance(time.Hour)
			w.Refresh()
			w.Expect(isReady(nodeClassStatusReconcileClass(w, class))).To(BeTrue())
		})
	}
}

func TestReconcileClusterUnreachable(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w, class := checkCase{}.newClass(t)
		nodeClassStatusReconcileClass(w, class)
		reconnect := w.Disconnect()
		w.Expect(w.Inventory.RefreshAll(t.Context())).NotTo(Succeed())
		w.Expect(isReady(nodeClassStatusReconcileClass(w, class))).To(BeTrue(), "one poll may fail")
		w.Expect(w.Inventory.RefreshAll(t.Context())).NotTo(Succeed())
		w.Expect(nodeClassStatusCondition(nodeClassStatusReconcileClass(w, class), v1alpha1.ConditionClustersReachable)).To(And(
			HavePrefix("False ClustersUnreachable: region region-1 since "), ContainSubstring("No route to host")))
		w.Expect(class.Status.SelectedZones).To(Equal(testenv.Zones(1)), "selected zones are kept")

		reconnect()
		w.Refresh()
		w.Expect(isReady(nodeClassStatusReconcileClass(w, class))).To(BeTrue())
	})
}

func TestReconcileNoQuorum(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w, class := checkCase{hosts: 3}.newClass(t)
		nodeClassStatusReconcileClass(w, class)
		w.Expect(w.Sim.Partition("pve1")).To(Succeed())
		w.Expect(w.Inventory.RefreshAll(t.Context())).NotTo(Succeed())
		w.Expect(nodeClassStatusCondition(nodeClassStatusReconcileClass(w, class), v1alpha1.ConditionClustersReachable)).To(And(HavePrefix("False NoQuorum: "),
			ContainSubstring("the Proxmox cluster has no quorum"), ContainSubstring("host pve1 reports that it has no quorum"), ContainSubstring("pvecm status")))
		w.Expect(class.Status.SelectedZones).To(HaveLen(3), "selected zones are kept")

		w.Sim.Heal()
		w.Eventually(func() error { return w.Inventory.RefreshAll(t.Context()) }).Should(Succeed())
		w.Expect(isReady(nodeClassStatusReconcileClass(w, class))).To(BeTrue())
	})
}

func TestReconcileOneClusterUnreachable(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w := testenv.New(t, testenv.NoPolling(), testenv.OtherHosts(1))
		setTemplateZones(w, "region-1/pve1/9000", "region-2/pve1/9000")
		w.Disconnect()
		for range 2 {
			w.Expect(w.Inventory.RefreshAll(t.Context())).NotTo(Succeed())
		}
		class := nodeClassStatusReconcileClass(w, w.NewClass())
		w.Expect(isReady(class)).To(BeTrue())
		w.Expect(nodeClassStatusCondition(class, v1alpha1.ConditionClustersReachable)).To(And(
			ContainSubstring("region region-1 since "), Not(ContainSubstring("region-2"))))
		w.Expect(class.Status.SelectedZones).To(ContainElement("region-2/pve1/9000"))
	})
}

func TestReconcileAfterRestart(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w, class := checkCase{hosts: 2, zones: testenv.Zones(1)}.newClass(t)
		before := nodeClassStatusReconcileClass(w, class).DeepCopy()
		w.Restart(false)
		nodeClassStatusReconcileClass(w, class)
		w.Expect(class.Status.SelectedZones).To(Equal(before.Status.SelectedZones), "removing a zone would drift its nodes")
		w.Expect(class.Status.UnusableZones).To(Equal(before.Status.UnusableZones))
		w.Expect(isReady(class)).To(BeTrue())
	})
}

func TestReconcileFailingLaunches(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w, class := checkCase{}.newClass(t)
		nodeClassStatusReconcileClass(w, class)
		w.Expect(nodeClassStatusCondition(class, v1alpha1.ConditionLaunchesHealthy)).To(Or(BeEmpty(), HavePrefix("Unknown")), "nothing was launched yet")
		for range 3 {
			w.Instances.Health.RecordFailure(class.Name, testenv.Region, v1alpha1.EventStartFailed, errors.New("bridge 'vmbr7' does not exist"))
		}
		w.Expect(nodeClassStatusCondition(nodeClassStatusReconcileClass(w, class), v1alpha1.ConditionLaunchesHealthy)).To(And(
			HavePrefix("False StartFailed: "), ContainSubstring("3 launches in a row"), ContainSubstring("bridge 'vmbr7' does not exist")))
		w.Expect(isReady(class)).To(BeTrue(), "launches may succeed on another host")

		w.Launched("a", class)
		w.Expect(nodeClassStatusCondition(nodeClassStatusReconcileClass(w, class), v1alpha1.ConditionLaunchesHealthy)).To(HavePrefix("True"))
	})
}

func TestReconcileUnderManager(t *testing.T) {
	t.Parallel()
	w := testenv.NewWithAPIServer(t, testenv.Hosts(2))
	w.StartManager(func(kube client.Client) testenv.Registrar {
		return nodeclass.NewController(kube, w.Events, statusDeps(w))
	})
	class := w.NewClass()
	// Creating the template later must trigger a reconcile of the class.
	w.Eventually(func() string {
		return nodeClassStatusCondition(testenv.Reload(w, class), v1alpha1.ConditionInstanceTemplateReady)
	}).Should(ContainSubstring("does not exist"))
	setTemplateZones(w, "region-1/pve1/9000", "region-1/pve2/9001")
	ready := func() bool { return isReady(testenv.Reload(w, class)) }
	w.Eventually(ready).WithTimeout(19*time.Second).Should(BeTrue(), "before it is checked again without a change")
	expectNoWrite := func(why string) {
		t.Helper()
		before := class.ResourceVersion
		w.Consistently(func() string { return testenv.Reload(w, class).ResourceVersion }).WithTimeout(time.Second).Should(Equal(before), why)
	}
	expectNoWrite("the inventory polls ten times a second")

	// A change of the Cluster triggers a reconcile without a change of the class.
	reconnect := w.Disconnect()
	w.Eventually(ready).Should(BeFalse())
	expectNoWrite("a long outage is reported once")
	reconnect()
	w.Eventually(ready).Should(BeTrue())
}

func TestReconcileVersions(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w, class := checkCase{}.newClass(t)
		var sizes []string
		resize := func(size v1alpha1.DiskSize) {
			class.Spec.BootDevice.Size = size
			w.Expect(w.Kube.Update(t.Context(), class)).To(Succeed())
			nodeClassStatusReconcileClass(w, class)
			w.Expect(class.Status.Versions[0].Hash).To(Equal(class.Hash()))
			sizes = nil
			for _, version := range class.Status.Versions {
				sizes = append(sizes, version.Fields["bootDevice.size"])
			}
		}
		for n := range 12 {
			resize(v1alpha1.DiskSize(fmt.Sprintf("%dG", 40+n)))
		}
		w.Expect(sizes).To(HaveExactElements("51G", "50G", "49G", "48G", "47G", "46G", "45G", "44G", "43G", "42G"))
		resize("48G")
		w.Expect(sizes).To(HaveExactElements("48G", "51G", "50G", "49G", "47G", "46G", "45G", "44G", "43G", "42G"))
		before := class.ResourceVersion
		w.Expect(nodeClassStatusReconcileClass(w, class).ResourceVersion).To(Equal(before), "it is not written again")
	})
}
