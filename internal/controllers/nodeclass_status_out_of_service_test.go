// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package controllers_test

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
)

func setHostSettings(w *testenv.Env, text string) {
	w.T.Helper()
	settings, err := inventory.ParseSettings([]byte(text))
	w.Expect(err).NotTo(HaveOccurred())
	w.Inventory.SetSettings(settings)
}

// waitOnline waits until the Snapshot shows that a Host is online or offline.
func waitOnline(w *testenv.Env, host string, online bool) inventory.HostState {
	w.T.Helper()
	var state inventory.HostState
	w.Eventually(func() bool {
		w.Refresh()
		state, _ = w.Inventory.View().Host(testenv.Region, host)
		return state.OfflineSince.IsZero()
	}).Should(Equal(online))
	return state
}

func TestReconcileHostOffline(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w, class := checkCase{hosts: 3}.newClass(t)
		w.Expect(nodeClassStatusReconcileClass(w, class).Status.UnusableZones).To(BeEmpty())
		w.Expect(usableZones(class)).To(Equal(int64(3)))

		w.Expect(w.Sim.HostDown("pve2", "noroute")).To(Succeed())
		since := waitOnline(w, "pve2", false).OfflineSince.Truncate(time.Second)
		w.Expect(nodeClassStatusReconcileClass(w, class).Status.UnusableZones).To(ConsistOf(And(
			HaveField("Zone", "region-1/pve2"), HaveField("Reason", "the host is offline"), HaveField("Since.Time", BeTemporally("==", since)))))
		w.Expect(class.Status.SelectedZones).To(Equal(testenv.Zones(3)), "its template is still there")
		w.Expect(usableZones(class)).To(Equal(int64(2)))
		w.Expect(isReady(class)).To(BeTrue())

		written := class.ResourceVersion
		w.Restart(true)
		w.Expect(nodeClassStatusReconcileClass(w, class).ResourceVersion).To(Equal(written), "a restart changes nothing")

		w.Expect(w.Sim.HostUp("pve2")).To(Succeed())
		waitOnline(w, "pve2", true)
		w.Expect(nodeClassStatusReconcileClass(w, class).Status.UnusableZones).To(BeEmpty())
		w.Expect(usableZones(class)).To(Equal(int64(3)))
	})
}

func TestReconcileHostOutOfService(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w, class := checkCase{hosts: 2}.newClass(t)
		w.Inventory.SetMaintenance(inventory.Maintenance{{Region: testenv.Region, Host: "pve1"}: "new disk"})
		w.Expect(nodeClassStatusReconcileClass(w, class).Status.UnusableZones).To(ConsistOf(v1alpha1.UnusableZone{
			Zone: "region-1/pve1", Reason: "the host is in maintenance (requested in Kubernetes: new disk)",
		}))
		w.Inventory.SetMaintenance(nil)
		setHostSettings(w, `{"*": {"pve2": {"excluded": true}}}`)
		w.Expect(nodeClassStatusReconcileClass(w, class).Status.UnusableZones).To(ConsistOf(v1alpha1.UnusableZone{
			Zone: "region-1/pve2", Reason: "the host is excluded by settings",
		}))
		w.Expect(usableZones(class)).To(Equal(int64(1)))
	})
}

// An excluded host gets no template.
func TestReconcileExcludedHostWithoutTemplate(t *testing.T) {
	runChecks(t, v1alpha1.ConditionInstanceTemplateReady, v1alpha1.ReasonTemplatesNotFound, map[string]checkCase{"excluded": {
		hosts: 2, zones: testenv.Zones(1), prepare: func(w *testenv.Env) { setHostSettings(w, `{"*": {"pve2": {"excluded": true}}}`) },
		unusable: map[string]string{"pve2": `ProxmoxUnmanagedTemplate "ubuntu" is not on this host: the host is excluded by settings`},
	}})
}

func TestNodeClassStatusReconcileInsufficientCapacity(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w, class := checkCase{hosts: 2}.newClass(t)
		w.Expect(nodeClassStatusCondition(nodeClassStatusReconcileClass(w, class), v1alpha1.ConditionCapacityAvailable)).To(HavePrefix("True"))
		setHostSettings(w, `{"*": {"pve1": {"excluded": true}, "pve2": {"reservedmemory": "1Ti"}}}`)
		w.Expect(nodeClassStatusCondition(nodeClassStatusReconcileClass(w, class), v1alpha1.ConditionCapacityAvailable)).To(And(
			HavePrefix("False InsufficientCapacity: no host fits c1.1VCPU-2GB, the cheapest allowed instance type: "),
			ContainSubstring("pve1: excluded by settings"), ContainSubstring("pve2: 0.0 GiB memory free, 2.0 GiB requested")))
		w.Expect(isReady(class)).To(BeTrue(), "capacity is not part of Ready")
	})
}

func TestNodeClassStatusReconcileReserve(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w, class := checkCase{hosts: 3}.newClass(t)
		reserve := func() string {
			return nodeClassStatusCondition(nodeClassStatusReconcileClass(w, class), v1alpha1.ConditionReserveAvailable)
		}
		w.Expect(reserve()).To(BeEmpty(), "neither class nor region keep a reserve")

		testenv.Modify(w, class, func(c *v1alpha1.ProxmoxNodeClass) { c.Spec.PlacementStrategy.Reserve = v1alpha1.ReserveLargestHost })
		w.Expect(reserve()).To(HavePrefix("True"))

		// The guest of each host has 4 GiB.
		setHostSettings(w, `{"*": {"pve1": {"reservedmemory": "57Gi"}, "*": {"reservedmemory": "59Gi"}}}`)
		const violation = "False InsufficientReserve: region region-1: if pve1 failed, its guests with 2 CPUs and 4.0 GiB would not fit on the other hosts " +
			"with 28 CPUs and 2.0 GiB free: no capacity for 101 with 2 CPUs and 4.0 GiB; nor would the guests of pve2, pve3"
		w.Expect(reserve()).To(Equal(violation))
		w.Expect(class.StatusConditions().Get(v1alpha1.ConditionReserveAvailable).ObservedGeneration).To(Equal(class.Generation))
		w.Expect(isReady(class)).To(BeTrue(), "the reserve is not part of Ready")
		w.Expect(nodeClassStatusCondition(class, v1alpha1.ConditionCapacityAvailable)).To(ContainSubstring("insufficient reserve: if pve1 failed"))

		w.Restart(false)
		w.Expect(reserve()).To(Equal(violation), "the region was not read yet")
		w.Restart(true)
		setHostSettings(w, `{"*": {"*": {"reservedmemory": "59Gi"}}}`)
		w.Inventory.SetMaintenance(inventory.Maintenance{{Region: testenv.Region, Host: "pve3"}: "new disk"})
		w.Expect(reserve()).To(And(HavePrefix("False"), ContainSubstring("on the other hosts with 14 CPUs"),
			HaveSuffix("; new VMs can use the reserve until these hosts are available: pve3")))

		w.Inventory.SetMaintenance(nil)
		setHostSettings(w, `{}`)
		w.Expect(reserve()).To(HavePrefix("True"))
		testenv.Modify(w, class, func(c *v1alpha1.ProxmoxNodeClass) { c.Spec.PlacementStrategy.Reserve = "" })
		w.Expect(reserve()).To(BeEmpty())
		setHostSettings(w, `{"region-1": {"*": {"reserve": "LargestHost"}}}`)
		w.Expect(reserve()).To(HavePrefix("True"), "the region keeps a reserve")
	})
}
