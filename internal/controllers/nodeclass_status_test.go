// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package controllers_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/awslabs/operatorpkg/status"
	. "github.com/onsi/gomega"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/karpenter/pkg/cloudprovider"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/declared"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

func TestReconcileRegion(t *testing.T) {
	testenv.With(testenv.NoPolling(), testenv.OtherHosts(1)).Test(t, func(w *testenv.Env, _ *testenv.Process) {
		zones := []string{"region-1/pve1/9000", "region-2/pve1/9000"}
		setTemplateZones(w, zones...)
		inRegion := func(region string) *v1alpha1.ProxmoxNodeClass {
			return checkClass(w, w.NewClass(func(c *v1alpha1.ProxmoxNodeClass) { c.Name, c.Spec.Region = "in-"+region, region }))
		}
		everywhere := inRegion("")
		w.Expect(everywhere.Status.SelectedZones).To(Equal(zones))
		one := inRegion(testenv.OtherRegion)
		w.Expect(one.Status.SelectedZones).To(Equal(zones[1:]))
		w.Expect(one.Status.UnusableZones).To(BeEmpty(), "hosts of other regions are not listed")
		unknown := inRegion("mars")
		w.Expect(condition(unknown, v1alpha1.ConditionClustersReachable)).To(Equal(
			`False RegionNotFound: spec.region "mars" is not in the cloud config, which has region-1, region-2`))
		w.Expect(unknown.StatusConditions().Root().IsFalse()).To(BeTrue())
		w.Expect(unknown.Status.SelectedZones).To(BeEmpty())

		w.Disconnect()
		failPolls(w)
		w.Expect(checked(w, everywhere, v1alpha1.ConditionClustersReachable)).To(And(
			ContainSubstring("region region-1 since "), Not(ContainSubstring("region-2"))))
		w.Expect(isReady(everywhere)).To(BeTrue())
		w.Expect(everywhere.Status.SelectedZones).To(ContainElement(zones[1]))
	})
}

// Core keeps a claim while the readiness of its class is unknown, and provisions nothing.
func TestReconcileUnknownTimeout(t *testing.T) {
	t.Parallel()
	for name, reachable := range map[string]string{"never_polled": "Unknown ClustersNotPolled: ", "privileges_never_read": "True"} {
		testenv.RunSimulated(t, name, func(t *testing.T) {
			w, class := checkCase{}.newClass(t)
			w.Restart(false)
			if name == "privileges_never_read" {
				w.AddFault(pvesim.Fault{Method: "GET", Path: "/access/permissions", Status: 500, Message: "failed"})
				w.Refresh()
			}
			w.Expect(checked(w, class, v1alpha1.ConditionClustersReachable)).To(HavePrefix(reachable))
			w.Expect(class.StatusConditions().Root().IsUnknown()).To(BeTrue())
			w.Expect(condition(class, v1alpha1.ConditionInstanceTemplateReady)).To(HavePrefix("Unknown ClustersNotPolled: "))

			w.Clock.Advance(time.Minute)
			w.Expect(checked(w, class, status.ConditionReady)).To(And(HavePrefix("False"), ContainSubstring("read yet")))
			before := class.ResourceVersion
			w.Expect(checkClass(w, class).ResourceVersion).To(Equal(before), "it is not written again")

			w.Sim.ClearFaults()
			w.Clock.Advance(time.Hour)
			w.Refresh()
			w.Expect(isReady(checkClass(w, class))).To(BeTrue())
		})
	}
}

func TestReconcileClusterUnreachable(t *testing.T) {
	checkCase{hosts: 3, zones: testenv.Zones(2)}.test(t, func(w *testenv.Env, class *v1alpha1.ProxmoxNodeClass) {
		before := checkClass(w, class).DeepCopy()
		reconnect := w.Disconnect()
		w.Expect(w.Inventory.RefreshAll(w.Context())).NotTo(Succeed())
		w.Expect(isReady(checkClass(w, class))).To(BeTrue(), "one poll may fail")
		w.Expect(w.Inventory.RefreshAll(w.Context())).NotTo(Succeed())
		w.Expect(checked(w, class, v1alpha1.ConditionClustersReachable)).To(And(
			HavePrefix("False ClustersUnreachable: region region-1 since "), ContainSubstring("No route to host")))
		w.Expect(class.Status.SelectedZones).To(Equal(testenv.Zones(2)), "selected zones are kept")

		reconnect()
		w.Refresh()
		w.Expect(isReady(checkClass(w, class))).To(BeTrue())
		w.Expect(w.Sim.Partition("pve1")).To(Succeed())
		w.Expect(w.Inventory.RefreshAll(w.Context())).NotTo(Succeed())
		w.Expect(checked(w, class, v1alpha1.ConditionClustersReachable)).To(And(HavePrefix("False NoQuorum: "),
			ContainSubstring("the Proxmox cluster has no quorum"), ContainSubstring("host pve1 reports that it has no quorum"), ContainSubstring("pvecm status")))
		w.Expect(class.Status.SelectedZones).To(HaveLen(2), "selected zones are kept")

		w.Sim.Heal()
		w.Eventually(func() error { return w.Inventory.RefreshAll(w.Context()) }).Should(Succeed())
		w.Expect(isReady(checkClass(w, class))).To(BeTrue())
		w.Restart(false)
		w.Expect(isReady(checkClass(w, class))).To(BeTrue(), "after a restart")
		w.Expect(class.Status.SelectedZones).To(Equal(before.Status.SelectedZones), "removing a zone would drift its nodes")
		w.Expect(class.Status.UnusableZones).To(Equal(before.Status.UnusableZones))
	})
}

func TestReconcileFailingLaunches(t *testing.T) {
	checkCase{}.test(t, func(w *testenv.Env, class *v1alpha1.ProxmoxNodeClass) {
		launches := func() string { return checked(w, class, v1alpha1.ConditionLaunchesHealthy) }
		w.Expect(launches()).To(Or(BeEmpty(), HavePrefix("Unknown")), "nothing was launched yet")
		for range 3 {
			w.Instances.Health.RecordFailure(class.Name, testenv.Region, v1alpha1.EventStartFailed, errors.New("bridge 'vmbr7' does not exist"))
		}
		w.Expect(launches()).To(And(HavePrefix("False StartFailed: "), ContainSubstring("3 launches in a row"), ContainSubstring("bridge 'vmbr7' does not exist")))
		w.Expect(isReady(class)).To(BeTrue(), "launches may succeed on another host")

		w.Launched("a", class)
		w.Expect(launches()).To(HavePrefix("True"))
	})
}

func TestReconcileUnderManager(t *testing.T) {
	t.Parallel()
	w := testenv.NewWithAPIServer(t, testenv.Hosts(2))
	w.StartManager(func(kube client.Client) testenv.Registrar { return newNodeClassController(w, kube) })
	class := w.NewClass()
	// Creating the template later must trigger a reconcile of the class.
	w.Eventually(func() string {
		return condition(testenv.Reload(w, class), v1alpha1.ConditionInstanceTemplateReady)
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
	checkCase{}.test(t, func(w *testenv.Env, class *v1alpha1.ProxmoxNodeClass) {
		setSize := func(size int) (sizes []string) {
			resize(w, class, v1alpha1.DiskSize(fmt.Sprintf("%dG", size)))
			w.Expect(checkClass(w, class).Status.Versions[0].Hash).To(Equal(class.Hash()))
			for _, version := range class.Status.Versions {
				sizes = append(sizes, version.Fields["bootDevice.size"])
			}
			return sizes
		}
		for n := range 11 {
			setSize(40 + n)
		}
		w.Expect(setSize(51)).To(HaveExactElements("51G", "50G", "49G", "48G", "47G", "46G", "45G", "44G", "43G", "42G"))
		w.Expect(setSize(48)).To(HaveExactElements("48G", "51G", "50G", "49G", "47G", "46G", "45G", "44G", "43G", "42G"))
		before := class.ResourceVersion
		w.Expect(checkClass(w, class).ResourceVersion).To(Equal(before), "it is not written again")
	})
}

// TestReconcileSlowClones: clones that almost take as long as Karpenter's timeout cause
// a warning; slower ones exclude their Host for a while.
func TestReconcileSlowClones(t *testing.T) {
	checkCase{hosts: 2}.test(t, func(w *testenv.Env, class *v1alpha1.ProxmoxNodeClass) {
		onFirst := testenv.OnHost("pve1")
		w.Launched("a", checkClass(w, class), onFirst)
		times := w.Instances.Health
		took := times.CloneTime(testenv.Region, "pve1", "local-lvm")
		w.Expect(took).To(BeNumerically(">", 0))
		launches := func(class *v1alpha1.ProxmoxNodeClass) string {
			return checked(w, class, v1alpha1.ConditionLaunchesHealthy)
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
		w.Expect(checkClass(w, class).Status.SelectedZones).To(Equal([]string{"region-1/pve2/9001"}))
		w.Expect(class.Status.UnusableZones).To(ConsistOf(And(HaveField("Zone", "region-1/pve1"), HaveField("Reason", ContainSubstring("link clones")))))
		w.Expect(isReady(class)).To(BeTrue(), "there is another host")
		w.Expect(w.Instances.Planner.Plan(w.Context(), w.Claim("c", class, onFirst), class, false)).Error().To(MatchError(ContainSubstring("pve1")))
		w.Expect(w.Intent(w.Planned("d", class)).Host).To(Equal("pve2"))

		w.Clock.Advance(2 * time.Hour)
		w.Expect(checkClass(w, class).Status.SelectedZones).To(HaveLen(2), "the host is retried")
	})
}

// A launch that failed without a privilege is retried when the privilege is granted,
// whether or not the class is checked for it.
func TestLaunchBackoffEndsWithGrant(t *testing.T) {
	t.Parallel()
	for name, scenario := range map[string]func(*pvesim.Scenario){
		"checked": func(s *pvesim.Scenario) { s.Guests[0].Config["rng0"] = "source=/dev/hwrng" }, "not_checked": nil,
	} {
		testenv.RunSimulated(t, name, func(t *testing.T) {
			w, class := checkCase{scenario: scenario}.newClass(t)
			controller := newNodeClassController(w, w.Kube)
			offered := func() bool {
				return slices.ContainsFunc(w.Types.List(class, ""), func(it *cloudprovider.InstanceType) bool { return len(it.Offerings.Available()) > 0 })
			}
			// check reads facts that are due, and checks the class.
			check := func() *v1alpha1.ProxmoxNodeClass {
				t.Helper()
				w.Clock.Advance(time.Minute)
				w.Refresh()
				testenv.Reconcile(w, controller, class)
				return testenv.Reload(w, class)
			}
			role := pvesim.DefaultScenario(1).Roles[0]
			granted := pvesim.Role{ID: role.ID, Privileges: append(slices.Clone(role.Privileges), "Mapping.Use")}
			w.Expect(w.Sim.SetRole(granted)).To(Succeed())
			check() // the privileges were read before
			w.Expect(isReady(check())).To(BeTrue())

			// The privilege is revoked.
			w.Expect(w.Sim.SetRole(role)).To(Succeed())
			if scenario == nil {
				w.AddFault(pvesim.Fault{
					Method: "POST", Path: "/nodes/*/qemu/*/clone", Status: 403, Message: "Permission check failed (/mapping/new, Mapping.Use)", Count: 1,
				})
			}
			testenv.Reconcile(w, newNodeClaimLaunchController(w, w.Kube), w.Planned("a", class))
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

// waitOnline waits until the Snapshot shows that pve2 is online or offline.
func waitOnline(w *testenv.Env, online bool) inventory.HostState {
	w.T.Helper()
	var state inventory.HostState
	w.Eventually(func() bool {
		w.Refresh()
		state, _ = w.Inventory.View().Host(testenv.Region, "pve2")
		return !state.Has(inventory.Off)
	}).Should(Equal(online))
	return state
}

func TestReconcileHostOffline(t *testing.T) {
	checkCase{hosts: 3}.test(t, func(w *testenv.Env, class *v1alpha1.ProxmoxNodeClass) {
		expectUsable := func(usable int, unusable ...any) {
			w.T.Helper()
			w.Expect(checkClass(w, class).Status.UnusableZones).To(ConsistOf(unusable...))
			w.Expect(usableZones(class)).To(BeEquivalentTo(usable))
		}
		expectUsable(3)
		w.Expect(w.Sim.HostDown("pve2", "noroute")).To(Succeed())
		since := waitOnline(w, false).Obstacle(inventory.Keep).Since.Truncate(time.Second)
		expectUsable(2, And(
			HaveField("Zone", "region-1/pve2"), HaveField("Reason", "the host is offline"), HaveField("Since.Time", BeTemporally("==", since))))
		w.Expect(class.Status.SelectedZones).To(Equal(testenv.Zones(3)), "its template is still there")
		w.Expect(isReady(class)).To(BeTrue())

		written := class.ResourceVersion
		w.Restart(true)
		w.Expect(checkClass(w, class).ResourceVersion).To(Equal(written), "a restart changes nothing")
		w.Expect(w.Sim.HostUp("pve2")).To(Succeed())
		waitOnline(w, true)
		expectUsable(3)

		w.Inventory.SetMaintenance(declared.Maintenance{{Region: testenv.Region, Host: "pve1"}: "new disk"})
		expectUsable(2, v1alpha1.UnusableZone{Zone: "region-1/pve1", Reason: "the host is in maintenance (requested in Kubernetes: new disk)"})
		w.Inventory.SetMaintenance(nil)
		w.ApplySettings(`{"*": {"pve2": {"excluded": true}}}`)
		expectUsable(2, v1alpha1.UnusableZone{Zone: "region-1/pve2", Reason: "the host is excluded by settings"})
	})
}

func TestNodeClassStatusReconcileInsufficientCapacity(t *testing.T) {
	checkCase{hosts: 2}.test(t, func(w *testenv.Env, class *v1alpha1.ProxmoxNodeClass) {
		w.Expect(checked(w, class, v1alpha1.ConditionCapacityAvailable)).To(HavePrefix("True"))
		w.ApplySettings(`{"*": {"pve1": {"excluded": true}, "pve2": {"reservedmemory": "1Ti"}}}`)
		w.Expect(checked(w, class, v1alpha1.ConditionCapacityAvailable)).To(And(
			HavePrefix("False InsufficientCapacity: no host fits c1.1VCPU-2GB, the cheapest allowed instance type: "),
			ContainSubstring("pve1: excluded by settings"), ContainSubstring("pve2: 0.0 GiB memory free, 2.0 GiB requested")))
		w.Expect(isReady(class)).To(BeTrue(), "capacity is not part of Ready")
	})
}

func TestNodeClassStatusReconcileReserve(t *testing.T) {
	checkCase{hosts: 3}.test(t, func(w *testenv.Env, class *v1alpha1.ProxmoxNodeClass) {
		reserve := func() string { return checked(w, class, v1alpha1.ConditionReserveAvailable) }
		w.Expect(reserve()).To(BeEmpty(), "neither class nor region keep a reserve")

		testenv.Modify(w, class, func(c *v1alpha1.ProxmoxNodeClass) { c.Spec.PlacementStrategy.Reserve = v1alpha1.ReserveLargestHost })
		w.Expect(reserve()).To(HavePrefix("True"))

		// The guest of each host has 4 GiB.
		w.ApplySettings(`{"*": {"pve1": {"reservedmemory": "57Gi"}, "*": {"reservedmemory": "59Gi"}}}`)
		const violation = "False InsufficientReserve: region region-1: if pve1 failed, its guests with 2 CPUs and 4.0 GiB would not fit on the other hosts " +
			"with 28 CPUs and 2.0 GiB free: no capacity for 101 with 2 CPUs and 4.0 GiB; nor would the guests of pve2, pve3"
		w.Expect(reserve()).To(Equal(violation))
		w.Expect(class.StatusConditions().Get(v1alpha1.ConditionReserveAvailable).ObservedGeneration).To(Equal(class.Generation))
		w.Expect(isReady(class)).To(BeTrue(), "the reserve is not part of Ready")
		w.Expect(condition(class, v1alpha1.ConditionCapacityAvailable)).To(ContainSubstring("insufficient reserve: if pve1 failed"))

		w.Restart(false)
		w.Expect(reserve()).To(Equal(violation), "the region was not read yet")
		w.Restart(true)
		w.ApplySettings(`{"*": {"*": {"reservedmemory": "59Gi"}}}`)
		w.Inventory.SetMaintenance(declared.Maintenance{{Region: testenv.Region, Host: "pve3"}: "new disk"})
		w.Expect(reserve()).To(And(HavePrefix("False"), ContainSubstring("on the other hosts with 14 CPUs"),
			HaveSuffix("; new VMs can use the reserve until these hosts are available: pve3")))

		w.Inventory.SetMaintenance(nil)
		w.ApplySettings(`{}`)
		w.Expect(reserve()).To(HavePrefix("True"))
		testenv.Modify(w, class, func(c *v1alpha1.ProxmoxNodeClass) { c.Spec.PlacementStrategy.Reserve = "" })
		w.Expect(reserve()).To(BeEmpty())
		w.ApplySettings(`{"region-1": {"*": {"reserve": "LargestHost"}}}`)
		w.Expect(reserve()).To(HavePrefix("True"), "the region keeps a reserve")
	})
}

func TestReconcileAddressPoolExhausted(t *testing.T) {
	checkCase{class: withNet0(v1alpha1.AddressSource{CIDR: "10.0.0.5/24"})}.test(t, func(w *testenv.Env, class *v1alpha1.ProxmoxNodeClass) {
		available := func() string { return checked(w, class, v1alpha1.ConditionAddressesAvailable) }
		w.Expect(available()).To(HavePrefix("True"))
		claim := w.Planned("a", class)
		w.Expect(available()).To(Equal("False AddressPoolExhausted: spec.network.interfaces[0].address4: all 1 addresses of 10.0.0.0/24 are taken"))
		w.Expect(isReady(class)).To(BeTrue())
		w.Instances.Planner.Release(string(claim.UID))
		w.Expect(available()).To(HavePrefix("True"))

		testenv.Modify(w, class, func(c *v1alpha1.ProxmoxNodeClass) { c.Spec.Network = nil })
		w.Expect(available()).To(BeEmpty(), "there is no condition without address pools")
	})
}

func TestReconcileAddressPoolConflict(t *testing.T) {
	checkCase{class: withNet0(v1alpha1.AddressSource{CIDR: "10.0.0.0/16"})}.test(t, func(w *testenv.Env, class *v1alpha1.ProxmoxNodeClass) {
		consistent := func() string { return checked(w, class, v1alpha1.ConditionAddressPoolsConsistent) }
		another := func(source v1alpha1.AddressSource) *v1alpha1.ProxmoxNodeClass {
			return checkClass(w, w.NewClass(func(c *v1alpha1.ProxmoxNodeClass) { c.Name = "another" }, withNet0(source)))
		}
		remove := func(class *v1alpha1.ProxmoxNodeClass) {
			w.Expect(w.Kube.Delete(w.Context(), class)).To(Succeed())
			testenv.Reconcile(w, newNodeClassController(w, w.Kube), class)
		}
		w.Expect(consistent()).To(HavePrefix("True"))

		shared := another(v1alpha1.AddressSource{CIDR: "10.0.0.0/16", Ranges: []string{"10.0.7.0/24"}, Gateway: "10.0.0.2"})
		w.Expect(consistent()).To(HavePrefix("True"), "a subnet may be shared, and may have two routers")
		remove(shared)

		narrow := another(v1alpha1.AddressSource{CIDR: "10.0.7.0/24"})
		w.Expect(consistent()).To(Equal("False SubnetsOverlap: spec.network.interfaces[0].address4 (10.0.0.0/16) and spec.network.interfaces[0].address4 " +
			`of ProxmoxNodeClass "another" (10.0.7.0/24) are different subnets on one network (bridge vmbr0 in region region-1): ` +
			"use the same cidr and divide it with ranges, or subnets that do not overlap"))
		w.Expect(isReady(class)).To(BeTrue(), "VMs still get addresses")

		remove(narrow)
		w.Expect(consistent()).To(HavePrefix("True"))
	})
}
