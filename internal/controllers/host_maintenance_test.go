// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package controllers_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/awslabs/operatorpkg/status"
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
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/host/maintenance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

const timeout = 30 * time.Minute

func maintenanceController(w *testenv.Env, kube client.Client, policy maintenance.Policy) *maintenance.Controller {
	return maintenance.NewController(maintenance.Deps{
		Kube: kube, VMs: w.Instances.VMs, Inventory: w.Inventory, Recorder: w.Events, Clock: w.Clock, Policy: policy, Timeout: timeout,
	})
}

func maintenanceReconcile(w *testenv.Env, policy maintenance.Policy, claim *karpv1.NodeClaim) time.Duration {
	w.T.Helper()
	result, err := maintenanceController(w, w.Kube, policy).Reconcile(w.T.Context(), testenv.Reload(w, claim))
	w.Expect(err).NotTo(HaveOccurred())
	return result.RequeueAfter
}

func drain(w *testenv.Env, claim *karpv1.NodeClaim) time.Duration {
	w.T.Helper()
	return maintenanceReconcile(w, maintenance.PolicyDrain, claim)
}

// maintain puts Hosts into maintenance, and ends that of the others.
func maintain(w *testenv.Env, hosts ...string) {
	list := inventory.Maintenance{}
	for _, host := range hosts {
		list[inventory.HostName{Region: testenv.Region, Host: host}] = ""
	}
	w.Inventory.SetMaintenance(list)
}

func configMap(w *testenv.Env) *maintenance.ConfigMap {
	return &maintenance.ConfigMap{Namespace: w.Name, Config: w.Config, Inventory: w.Inventory, Recorder: w.Events}
}

func draining(d *cloudprovider.Deps) { d.DrainMaintenance = true }

// newList creates the ConfigMap with the Hosts in maintenance.
func newList(w *testenv.Env, hosts map[string]string) *corev1.ConfigMap {
	list := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: w.Name, Name: maintenance.ConfigMapName}, Data: hosts}
	w.Create(list)
	return list
}

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
	hosts := configMap(w)
	testenv.Go(t, hosts.Start)
	drift := func() *status.Condition {
		return testenv.Reload(w, claim).StatusConditions().Get(karpv1.ConditionTypeDrifted)
	}

	list := newList(w, map[string]string{testenv.Region + ".pve1": "new disk"})
	w.Eventually(drift).Should(HaveField("Reason", "HostInMaintenance"))
	w.Eventually(w.Events.Messages).WithArguments(v1alpha1.EventHostInMaintenance).Should(And(HaveLen(2),
		HaveEach(And(ContainSubstring("pve1"), ContainSubstring(testenv.Region), ContainSubstring("new disk")))), "on the claim and its Node")
	_, reason := w.Inventory.View().Usable(testenv.Region, "pve1")
	w.Expect(reason).To(Equal("in maintenance"))

	w.Expect(w.Kube.Delete(t.Context(), list)).To(Succeed())
	w.Eventually(drift).Should(BeNil(), "it is in service again")
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
		w.Expect(maintenanceReconcile(w, maintenance.PolicyKeep, here)).To(BeZero())
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
		for range 2 {
			w.Expect(w.Inventory.RefreshAll(w.Context())).NotTo(Succeed())
		}
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
			drift := func() string {
				reason, err := w.CloudProvider(draining).IsDrifted(w.Context(), testenv.Reload(w, claim))
				w.Expect(err).NotTo(HaveOccurred())
				return string(reason)
			}
			test.begin(w)
			w.Expect(drain(w, claim)).To(BeNumerically(">", 0))
			since := testenv.Reload(w, claim).Annotations[v1alpha1.AnnotationHostMaintenanceSince]
			w.Expect(since).NotTo(BeEmpty())
			test.fail(w)
			w.Expect(drain(w, claim)).To(BeZero())
			w.Expect(testenv.Reload(w, claim).Annotations).To(HaveKeyWithValue(v1alpha1.AnnotationHostMaintenanceSince, since))
			w.Expect(drift()).To(Equal("HostInMaintenance"))
			test.restore(w)
			w.Expect(drain(w, claim)).To(BeZero())
			w.Expect(testenv.Reload(w, claim).Annotations).NotTo(HaveKey(v1alpha1.AnnotationHostMaintenanceSince))
			w.Expect(drift()).To(BeEmpty())
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
	for range 2 {
		w.Expect(w.Inventory.RefreshAll(w.Context())).NotTo(Succeed())
	}
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
		newList(w, map[string]string{"pve1": "", "other.pve1": "", testenv.Region + ".pve9": "", testenv.Region + ".pve2": ""})
		w.Expect(hosts.Read(w.Context(), w.Kube)).To(Succeed())
		w.Expect(w.Events.Messages(v1alpha1.EventInvalidHostMaintenance)).To(ConsistOf(
			And(ContainSubstring(`"pve1"`), ContainSubstring("REGION.HOST")),
			And(ContainSubstring(`"other.pve1"`), ContainSubstring(testenv.Region)),
			And(ContainSubstring(`"`+testenv.Region+`.pve9"`), ContainSubstring("pve1"), ContainSubstring("pve2")),
		))
		w.Expect(w.Inventory.View().Hosts()).To(ConsistOf(
			And(HaveField("Name", "pve1"), HaveField("Maintenance", BeEmpty())), And(HaveField("Name", "pve2"), HaveField("Maintenance", Not(BeEmpty())))))
	})
}
