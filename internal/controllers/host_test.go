// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package controllers_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	coredisruption "sigs.k8s.io/karpenter/pkg/controllers/nodeclaim/disruption"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/cloudprovider"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/host/consolidation"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/host/fencing"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/host/maintenance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/declared"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/observed"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

// counter counts how often consolidation was triggered.
type counter int

func (c *counter) MarkUnconsolidated() time.Time { *c++; return time.Time{} }

func TestStartTriggersConsolidation(t *testing.T) {
	testenv.With(testenv.NoPolling()).Test(t, func(w *testenv.Env, _ *testenv.Process) {
		var triggered counter
		testenv.Go(w.T, consolidation.NewController(w.Inventory, &triggered).Start)
		expect := func(times int, why string) {
			w.T.Helper()
			synctest.Wait()
			w.Expect(triggered).To(BeEquivalentTo(times), why)
		}
		expect(0, "nothing changed")
		claim := w.Planned("a", w.Class())
		expect(0, "less is free")
		w.Instances.Planner.Release(string(claim.UID))
		expect(1, "a reservation was released")
		w.Expect(w.Sim.PowerOffGuest(101)).To(Succeed())
		time.Sleep(time.Minute)
		w.Refresh()
		expect(2, "a foreign guest was stopped")
	})
}

var pve1 = observed.HostName{Region: testenv.Region, Host: "pve1"}

func newFencing(w *testenv.Env) *fencing.ConfigMap {
	return &fencing.ConfigMap{Kube: w.Kube, Namespace: w.Name, Config: w.Config, Inventory: w.Inventory, Recorder: w.Events, Clock: clock.RealClock{}}
}

// fenceHosts creates the ConfigMap with a fence of pve1.
func fenceHosts(w *testenv.Env, fence string) *corev1.ConfigMap {
	return newConfigMap(w, declared.FencingConfigMap, map[string]string{pve1.Key(): fence})
}

func newConfigMap(w *testenv.Env, name string, hosts map[string]string) *corev1.ConfigMap {
	object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: w.Name, Name: name}, Data: hosts}
	w.Create(object)
	return object
}

func since(t time.Time) string { return `{"time":"` + t.UTC().Format(time.RFC3339) + `"}` }

// A fence ends when its Host is seen online, also for a later outage and after a restart. The entry that an
// administrator wrote since is not deleted.
func TestFenceEnds(t *testing.T) {
	testenv.With(testenv.NoPolling(), testenv.Hosts(2)).Test(t, func(w *testenv.Env, _ *testenv.Process) {
		down := func() {
			w.Expect(w.Sim.HostDown("pve1", "noroute")).To(Succeed())
			w.Refresh()
		}
		fences := fenceHosts(w, since(time.Now()))
		expectFenced := func(fenced bool, why string) {
			w.T.Helper()
			w.Expect(w.Inventory.View().IsFenced(pve1)).To(Equal(fenced), why)
		}
		apply := func(fenced bool, why string) {
			w.T.Helper()
			newFencing(w).Apply(w.Context(), testenv.Reload(w, fences))
			testenv.Reload(w, fences)
			expectFenced(fenced, why)
		}
		w.Clock.Advance(30 * time.Second)
		w.Refresh()
		apply(true, "Proxmox may not have noticed yet that it is off")
		down()
		w.Clock.Advance(time.Hour)
		w.Restart(true)
		apply(true, "after a restart of the controller")
		w.Expect(w.Inventory.View().IsFenced(observed.HostName{Region: testenv.Region, Host: "pve2"})).To(BeFalse())

		w.Expect(w.Sim.HostUp("pve1")).To(Succeed())
		w.Clock.Advance(time.Minute) // it boots
		w.Refresh()
		expectFenced(false, "it is online")
		down()
		stale := fences.DeepCopy()
		apply(false, "another outage")
		w.Expect(fences.Data).To(BeEmpty())
		w.Restart(true)
		apply(false, "another outage, after a restart of the controller")

		renewed := map[string]string{pve1.Key(): "time: " + time.Now().UTC().Format(time.RFC3339)}
		testenv.Modify(w, fences, func(c *corev1.ConfigMap) { c.Data = renewed })
		newFencing(w).Apply(w.Context(), stale)
		apply(true, "it was declared again, in YAML")
		w.Expect(fences.Data).To(Equal(renewed))
		w.Expect(w.Events.Messages(v1alpha1.EventHostFencingEnded)).To(ConsistOf(ContainSubstring(pve1.String())))
		newFencing(w).Apply(w.Context(), nil)
		expectFenced(false, "the ConfigMap was deleted")
	})
}

func TestFenceInvalid(t *testing.T) {
	testenv.With(testenv.NoPolling()).Test(t, func(w *testenv.Env, _ *testenv.Process) {
		now := time.Now()
		newFencing(w).Apply(w.Context(), &corev1.ConfigMap{Data: map[string]string{
			"pve1": since(now), "a.b": "", "a.c": "yes", "a.d": since(now.Add(time.Hour)), "a.e": "{}", "a.f": since(now),
		}})
		w.Expect(w.Events.Messages(v1alpha1.EventInvalidHostFencing)).To(ConsistOf(
			ContainSubstring(`"pve1": want REGION.HOST`), ContainSubstring(`"a.b"`), ContainSubstring(`"a.c": found "yes"`),
			ContainSubstring("in the future"), ContainSubstring(`"a.e"`)))
		w.Expect(w.Inventory.View().IsFenced(observed.HostName{Region: "a", Host: "f"})).To(BeTrue())
	})
}

func TestFencingWatch(t *testing.T) {
	t.Parallel()
	w := testenv.NewWithAPIServer(t, testenv.NoPolling(), testenv.Hosts(2))
	testenv.Go(t, newFencing(w).Start)
	fences := fenceHosts(w, since(time.Now()))
	w.Eventually(func() bool { return w.Inventory.View().IsFenced(pve1) }).Should(BeTrue())
	w.Expect(w.Kube.Delete(t.Context(), fences)).To(Succeed())
	w.Eventually(func() bool { return w.Inventory.View().IsFenced(pve1) }).Should(BeFalse())
}

const timeout = 30 * time.Minute

func maintenanceController(w *testenv.Env, kube client.Client, policy maintenance.Policy) *maintenance.Controller {
	return maintenance.NewController(maintenance.Deps{
		Kube: kube, VMs: w.Instances.VMs, Inventory: w.Inventory, Recorder: w.Events, Clock: w.Clock, Policy: policy, Timeout: timeout,
	})
}

func drain(w *testenv.Env, claim *karpv1.NodeClaim) time.Duration {
	w.T.Helper()
	return testenv.Reconcile(w, maintenanceController(w, w.Kube, maintenance.PolicyDrain), claim).RequeueAfter
}

// maintain puts Hosts into maintenance, and ends that of the others.
func maintain(w *testenv.Env, hosts ...string) {
	list := declared.Maintenance{}
	for _, host := range hosts {
		list[observed.HostName{Region: testenv.Region, Host: host}] = ""
	}
	w.Inventory.SetMaintenance(list)
}

func configMap(w *testenv.Env) *maintenance.ConfigMap {
	return &maintenance.ConfigMap{Namespace: w.Name, Config: w.Config, Inventory: w.Inventory, Recorder: w.Events}
}

func draining(d *cloudprovider.Deps) { d.DrainMaintenance = true }

// onHost returns a claim with a Node, planned on a Host.
func onHost(w *testenv.Env, name, host string, class *v1alpha1.ProxmoxNodeClass) *karpv1.NodeClaim {
	w.T.Helper()
	claim := w.Planned(name, class, testenv.OnHost(host), func(c *karpv1.NodeClaim) {
		c.Labels[corev1.LabelInstanceTypeStable] = testenv.InstanceType
	})
	w.Expect(w.Intent(claim).Host).To(Equal(host))
	claim.StatusConditions().SetTrue(karpv1.ConditionTypeLaunched)
	w.Node(claim)
	return claim
}

// Core evaluates drift only every five minutes unless the claim changes.
func TestMaintenanceDrift(t *testing.T) {
	t.Parallel()
	w := testenv.NewWithAPIServer(t, testenv.Hosts(2))
	class := w.Class()
	w.Pool(class)
	claim := onHost(w, "a", "pve1", class)
	w.StartManager(
		func(kube client.Client) testenv.Registrar {
			return maintenanceController(w, kube, maintenance.PolicyDrain)
		},
		func(kube client.Client) testenv.Registrar {
			return testenv.WithCoreOptions(coredisruption.NewController(clock.RealClock{}, kube, w.CloudProvider(draining)))
		},
	)
	testenv.Go(t, configMap(w).Start)
	drift := func() string { return condition(testenv.Reload(w, claim), karpv1.ConditionTypeDrifted) }

	list := newConfigMap(w, maintenance.ConfigMapName, map[string]string{testenv.Region + ".pve1": "new disk"})
	w.Eventually(drift).Should(HavePrefix("True HostInMaintenance"))
	w.Eventually(w.Events.Messages).WithArguments(v1alpha1.EventHostInMaintenance).Should(And(HaveLen(2),
		HaveEach(And(ContainSubstring("pve1"), ContainSubstring(testenv.Region), ContainSubstring("new disk")))), "on the claim and its Node")
	host, _ := w.Inventory.View().Host(testenv.Region, "pve1")
	w.Expect(host.Obstacle(inventory.Launch).Reason).To(Equal(inventory.InMaintenance))

	w.Expect(w.Kube.Delete(t.Context(), list)).To(Succeed())
	w.Eventually(drift).Should(BeEmpty(), "it is in service again")
	w.Eventually(func() map[string]string { return testenv.Reload(w, claim).Annotations }).ShouldNot(HaveKey(v1alpha1.AnnotationHostMaintenanceSince))
}

func TestReconcileTimeout(t *testing.T) {
	testenv.With(testenv.NoPolling(), testenv.Hosts(2)).Test(t, func(w *testenv.Env, _ *testenv.Process) {
		class := w.Class()
		here, elsewhere := onHost(w, "here", "pve1", class), onHost(w, "elsewhere", "pve2", class)
		lastMinute := And(BeNumerically(">", time.Minute-time.Second), BeNumerically("<=", time.Minute)) // seconds are recorded
		w.Expect(drain(w, here)).To(BeZero())
		maintain(w, "pve1")
		w.Expect(drain(w, here)).To(Equal(timeout))
		w.Clock.Advance(timeout - time.Minute)
		w.Expect(drain(w, here)).To(lastMinute)
		w.Clock.Advance(time.Hour)
		w.Expect(testenv.Reconcile(w, maintenanceController(w, w.Kube, maintenance.PolicyKeep), here)).To(BeZero())
		w.Expect(testenv.Reload(w, here).Annotations).NotTo(HaveKey(v1alpha1.AnnotationHostMaintenanceSince), "the policy was changed")
		w.Expect(drain(w, here)).To(Equal(timeout))
		w.Expect(w.IsDeleted(here)).To(BeFalse())

		w.Restart(true)
		w.Expect(drain(w, here)).To(BeZero(), "the maintenance has ended")
		maintain(w, "pve1")
		w.Expect(drain(w, here)).To(Equal(timeout), "another maintenance")
		w.Clock.Advance(timeout - time.Minute)
		w.Restart(true)
		maintain(w, "pve1")
		w.Expect(drain(w, here)).To(lastMinute, "a restart does not extend it")
		w.Clock.Advance(time.Minute)
		w.Expect(drain(w, here)).To(BeZero())
		w.Expect(w.IsDeleted(here)).To(BeTrue())
		w.Expect(drain(w, elsewhere)).To(BeZero())
		w.Expect(w.IsDeleted(elsewhere)).To(BeFalse())
		w.Expect(w.Events.Messages(v1alpha1.EventHostMaintenanceTimeout)).To(And(HaveLen(2), HaveEach(And(ContainSubstring("pve1"), ContainSubstring("30m")))))
	})
}

// A Node is not deleted while nothing could replace it, or while its Host is unknown.
func TestReconcileTimeoutBlocked(t *testing.T) {
	testenv.With(testenv.NoPolling(), testenv.Hosts(2)).Test(t, func(w *testenv.Env, _ *testenv.Process) {
		claim := onHost(w, "a", "pve1", w.Class())
		maintain(w, "pve1", "pve2")
		w.Expect(drain(w, claim)).To(Equal(timeout))
		w.Clock.Advance(timeout)
		expectBlocked := func(why string) {
			w.T.Helper()
			drain(w, claim)
			w.Expect(w.IsDeleted(claim)).To(BeFalse(), why)
		}
		expectBlocked("no other host is in service")
		maintain(w, "pve1")
		reconnect := w.Disconnect()
		failPolls(w)
		expectBlocked("the cluster is unavailable")
		w.Restart(false)
		expectBlocked("the cluster was not polled since a restart")
		w.Expect(w.Events.Messages(v1alpha1.EventHostMaintenanceBlocked)).To(And(HaveLen(2), HaveEach(ContainSubstring("no other host is in service"))))
		reconnect()
		w.Refresh()
		maintain(w, "pve1")
		w.Expect(drain(w, claim)).To(BeZero())
		w.Expect(w.IsDeleted(claim)).To(BeTrue())
	})
}

// unreadable is an API server that fails.
type unreadable struct{ client.Reader }

func (unreadable) Get(context.Context, client.ObjectKey, client.Object, ...client.GetOption) error {
	return apierrors.NewInternalError(errors.New("etcdserver: request timed out"))
}

// After a restart the maintenance cannot be read. A Node that is being drained because of
// it must not be kept, and its timeout must not restart.
func TestReconcileUnknownMaintenance(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		begin, fail, restore func(*testenv.Env)
	}{
		"HA_manager": {
			begin: func(w *testenv.Env) {
				w.Expect(w.Sim.SetMaintenance("pve1", true)).To(Succeed())
				w.Restart(true)
			},
			fail: func(w *testenv.Env) {
				w.AddFault(pvesim.Fault{Path: "/cluster/ha/status/manager_status", Count: 1, Status: 500, Message: "got timeout"})
				w.Restart(true)
			},
			restore: func(w *testenv.Env) {
				w.Expect(w.Sim.SetMaintenance("pve1", false)).To(Succeed())
				w.Clock.Advance(2 * time.Minute)
				w.Refresh()
			},
		},
		"ConfigMap": {
			begin: func(w *testenv.Env) { maintain(w, "pve1") },
			fail: func(w *testenv.Env) {
				w.Restart(true)
				w.Expect(configMap(w).Read(w.T.Context(), unreadable{})).NotTo(Succeed())
			},
			restore: func(w *testenv.Env) { w.Expect(configMap(w).Read(w.T.Context(), w.Kube)).To(Succeed()) },
		},
	} {
		testenv.With(testenv.NoPolling()).Subtest(t, name, func(w *testenv.Env, _ *testenv.Process) {
			claim := onHost(w, "a", "pve1", w.Class())
			expectDrift := func(want string) {
				w.T.Helper()
				w.Expect(w.CloudProvider(draining).IsDrifted(w.Context(), testenv.Reload(w, claim))).To(BeEquivalentTo(want))
			}
			test.begin(w)
			w.Expect(drain(w, claim)).To(BeNumerically(">", 0))
			since := testenv.Reload(w, claim).Annotations[v1alpha1.AnnotationHostMaintenanceSince]
			w.Expect(since).NotTo(BeEmpty())
			test.fail(w)
			w.Expect(drain(w, claim)).To(BeZero())
			w.Expect(testenv.Reload(w, claim).Annotations).To(HaveKeyWithValue(v1alpha1.AnnotationHostMaintenanceSince, since))
			expectDrift("HostInMaintenance")
			test.restore(w)
			w.Expect(drain(w, claim)).To(BeZero())
			w.Expect(testenv.Reload(w, claim).Annotations).NotTo(HaveKey(v1alpha1.AnnotationHostMaintenanceSince))
			expectDrift("")
		})
	}
}

// A Claim is reconciled when its Host becomes known, without a change of the Claim.
func TestReconcileKnownAgain(t *testing.T) {
	t.Parallel()
	w := testenv.NewWithAPIServer(t, testenv.NoPolling(), testenv.Hosts(2))
	claim := onHost(w, "a", "pve1", w.Class())
	w.Annotate(claim, map[string]string{v1alpha1.AnnotationHostMaintenanceSince: "2026-11-16T00:00:00Z"})
	reconnect := w.Disconnect()
	failPolls(w)
	w.StartManager(func(kube client.Client) testenv.Registrar {
		return maintenanceController(w, kube, maintenance.PolicyDrain)
	})
	since := func() map[string]string { return testenv.Reload(w, claim).Annotations }
	w.Consistently(since).WithTimeout(500*time.Millisecond).Should(HaveKey(v1alpha1.AnnotationHostMaintenanceSince), "the cluster is unavailable")
	reconnect()
	w.Refresh()
	w.Eventually(since).ShouldNot(HaveKey(v1alpha1.AnnotationHostMaintenanceSince))
}

func TestConfigMapInvalid(t *testing.T) {
	testenv.With(testenv.NoPolling(), testenv.Hosts(2)).Test(t, func(w *testenv.Env, _ *testenv.Process) {
		hosts := configMap(w)
		w.Expect(hosts.Read(w.Context(), w.Kube)).To(Succeed(), "it does not exist")
		newConfigMap(w, maintenance.ConfigMapName, map[string]string{"pve1": "", "other.pve1": "", testenv.Region + ".pve9": "", testenv.Region + ".pve2": ""})
		w.Expect(hosts.Read(w.Context(), w.Kube)).To(Succeed())
		w.Expect(w.Events.Messages(v1alpha1.EventInvalidHostMaintenance)).To(ConsistOf(
			And(ContainSubstring(`"pve1"`), ContainSubstring("REGION.HOST")),
			And(ContainSubstring(`"other.pve1"`), ContainSubstring(testenv.Region)),
			And(ContainSubstring(`"`+testenv.Region+`.pve9"`), ContainSubstring("pve1"), ContainSubstring("pve2")),
		))
		w.Expect(w.Inventory.View().Hosts()).To(ConsistOf(
			And(HaveField("Name", "pve1"), HaveField("Conditions", BeEmpty())), And(HaveField("Name", "pve2"), HaveField("Conditions", ConsistOf(HaveField("Reason", inventory.InMaintenance))))))
	})
}
