// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package maintenance_test

import (
	"context"
	"errors"
	"testing"
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
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/host/maintenance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

const timeout = 30 * time.Minute

func controller(w *testenv.Env, kube client.Client, policy maintenance.Policy) *maintenance.Controller {
	return maintenance.NewController(maintenance.Deps{
		Kube: kube, VMs: w.Instances.VMs, Inventory: w.Inventory, Recorder: w.Events, Clock: w.Clock, Policy: policy, Timeout: timeout,
	})
}

func reconcile(w *testenv.Env, policy maintenance.Policy, claim *karpv1.NodeClaim) time.Duration {
	w.T.Helper()
	result, err := controller(w, w.Kube, policy).Reconcile(w.T.Context(), testenv.Reload(w, claim))
	w.Expect(err).NotTo(HaveOccurred())
	return result.RequeueAfter
}

func configMap(w *testenv.Env) *maintenance.ConfigMap {
	return &maintenance.ConfigMap{Namespace: w.Name, Config: w.Config, Inventory: w.Inventory, Recorder: w.Events}
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
func TestDrift(t *testing.T) {
	t.Parallel()
	w := testenv.New(t, testenv.Hosts(2), testenv.Scenario(func(s *pvesim.Scenario) { s.Version = "9.2" }))
	class := w.Class()
	w.Pool(class)
	here, elsewhere := onHost(w, "here", "pve1", class), onHost(w, "elsewhere", "pve2", class)
	cp := cloudprovider.New(cloudprovider.Deps{Kube: w.Kube, VMs: w.Instances.VMs, Types: w.Types, Clock: w.Clock, DrainMaintenance: true})
	w.StartManager(
		func(kube client.Client) testenv.Registrar { return controller(w, kube, maintenance.PolicyDrain) },
		func(kube client.Client) testenv.Registrar {
			return testenv.WithCoreOptions(coredisruption.NewController(clock.RealClock{}, kube, cp))
		},
	)
	hosts := configMap(w)
	testenv.Go(t, hosts.Start)
	drift := func(claim *karpv1.NodeClaim) string {
		condition := testenv.Reload(w, claim).StatusConditions().Get(karpv1.ConditionTypeDrifted)
		if condition == nil {
			return ""
		}
		return condition.Reason
	}

	list := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: w.Name, Name: maintenance.ConfigMapName}, Data: map[string]string{testenv.Region + ".pve1": "new disk"}}
	w.Create(list)
	w.Eventually(drift).WithArguments(here).Should(Equal("HostInMaintenance"))
	w.Eventually(w.Events.Messages).WithArguments(v1alpha1.EventHostInMaintenance).Should(And(HaveLen(2),
		HaveEach(And(ContainSubstring("pve1"), ContainSubstring(testenv.Region), ContainSubstring("new disk")))), "on the claim and its Node")
	_, reason := w.Inventory.View().Usable(testenv.Region, "pve1")
	w.Expect(reason).To(Equal("in maintenance"))
	w.Expect(drift(elsewhere)).To(BeEmpty())

	w.Expect(w.Kube.Delete(t.Context(), list)).To(Succeed())
	w.Eventually(drift).WithArguments(here).Should(BeEmpty(), "it is in service again")
	w.Eventually(func() map[string]string { return testenv.Reload(w, here).Annotations }).ShouldNot(HaveKey(v1alpha1.AnnotationHostMaintenanceSince))

	w.Expect(w.Sim.SetMaintenance("pve2", true)).To(Succeed())
	w.Eventually(drift).WithArguments(elsewhere).Should(Equal("HostInMaintenance"), "the HA manager's maintenance")
	w.Expect(drift(here)).To(BeEmpty())
	w.Expect(w.Sim.SetMaintenance("pve2", false)).To(Succeed())
	w.Eventually(drift).WithArguments(elsewhere).Should(BeEmpty())
}

func TestReconcileTimeout(t *testing.T) {
	t.Parallel()
	w := testenv.New(t, testenv.NoPolling(), testenv.Hosts(2))
	class := w.Class()
	here, elsewhere := onHost(w, "here", "pve1", class), onHost(w, "elsewhere", "pve2", class)
	w.Expect(reconcile(w, maintenance.PolicyDrain, here)).To(BeZero())
	w.Inventory.SetMaintenance(inventory.Maintenance{{Region: testenv.Region, Host: "pve1"}: ""})
	w.Expect(reconcile(w, maintenance.PolicyDrain, here)).To(BeNumerically("~", timeout, time.Minute))
	w.Clock.Advance(timeout - time.Minute)
	w.Expect(reconcile(w, maintenance.PolicyDrain, here)).To(And(BeNumerically(">", 0), BeNumerically("<=", time.Minute)))
	w.Expect(w.IsDeleted(here)).To(BeFalse())

	w.Restart(true)
	w.Expect(reconcile(w, maintenance.PolicyDrain, here)).To(BeZero(), "the maintenance has ended")
	w.Inventory.SetMaintenance(inventory.Maintenance{{Region: testenv.Region, Host: "pve1"}: ""})
	w.Expect(reconcile(w, maintenance.PolicyDrain, here)).To(BeNumerically("~", timeout, time.Minute), "another maintenance")
	w.Clock.Advance(timeout - time.Minute)
	w.Restart(true)
	w.Inventory.SetMaintenance(inventory.Maintenance{{Region: testenv.Region, Host: "pve1"}: ""})
	w.Expect(reconcile(w, maintenance.PolicyDrain, here)).To(And(BeNumerically(">", 0), BeNumerically("<=", 2*time.Minute)), "a restart does not extend it")
	w.Clock.Advance(2 * time.Minute)
	w.Expect(reconcile(w, maintenance.PolicyDrain, here)).To(BeZero())
	w.Expect(w.IsDeleted(here)).To(BeTrue())
	w.Expect(reconcile(w, maintenance.PolicyDrain, elsewhere)).To(BeZero())
	w.Expect(w.IsDeleted(elsewhere)).To(BeFalse())
	w.Expect(w.Events.Messages(v1alpha1.EventHostMaintenanceTimeout)).To(And(HaveLen(2), HaveEach(And(ContainSubstring("pve1"), ContainSubstring("30m")))))
}

// While no other Host is in service, nothing could replace the Node.
func TestReconcileTimeoutNoOtherHost(t *testing.T) {
	t.Parallel()
	w := testenv.New(t, testenv.NoPolling(), testenv.Hosts(2))
	claim := onHost(w, "a", "pve1", w.Class())
	here, other := inventory.HostName{Region: testenv.Region, Host: "pve1"}, inventory.HostName{Region: testenv.Region, Host: "pve2"}
	w.Inventory.SetMaintenance(inventory.Maintenance{here: "", other: ""})
	w.Expect(reconcile(w, maintenance.PolicyDrain, claim)).To(BeNumerically(">", 0))
	w.Clock.Advance(timeout + time.Minute)
	w.Expect(reconcile(w, maintenance.PolicyDrain, claim)).To(BeNumerically(">", 0))
	w.Expect(w.IsDeleted(claim)).To(BeFalse())
	w.Expect(w.Events.Messages(v1alpha1.EventHostMaintenanceBlocked)).To(And(HaveLen(2), HaveEach(ContainSubstring("no other host is in service"))))
	w.Inventory.SetMaintenance(inventory.Maintenance{here: ""})
	w.Expect(reconcile(w, maintenance.PolicyDrain, claim)).To(BeZero())
	w.Expect(w.IsDeleted(claim)).To(BeTrue())
}

// While a Cluster is unavailable, no replacement can be launched.
func TestReconcileUnavailable(t *testing.T) {
	t.Parallel()
	w := testenv.New(t, testenv.NoPolling(), testenv.Hosts(2))
	claim := onHost(w, "a", "pve1", w.Class())
	w.Inventory.SetMaintenance(inventory.Maintenance{{Region: testenv.Region, Host: "pve1"}: ""})
	w.Expect(reconcile(w, maintenance.PolicyDrain, claim)).To(BeNumerically(">", 0))
	reconnect := w.Disconnect()
	for range 2 {
		w.Expect(w.Inventory.Refresh(t.Context(), testenv.Region)).NotTo(Succeed())
	}
	w.Clock.Advance(timeout + time.Minute)
	w.Expect(reconcile(w, maintenance.PolicyDrain, claim)).To(BeNumerically(">", 0))
	w.Expect(w.IsDeleted(claim)).To(BeFalse())
	reconnect()
	w.Refresh()
	w.Expect(reconcile(w, maintenance.PolicyDrain, claim)).To(BeZero())
	w.Expect(w.IsDeleted(claim)).To(BeTrue())
}

// A Cluster that was not polled yet may have the host in maintenance.
func TestReconcileUnknownHost(t *testing.T) {
	t.Parallel()
	w := testenv.New(t, testenv.NoPolling())
	class := w.Class()
	claim := onHost(w, "a", "pve1", class)
	w.Inventory.SetMaintenance(inventory.Maintenance{{Region: testenv.Region, Host: "pve1"}: ""})
	reconcile(w, maintenance.PolicyDrain, claim)
	w.Restart(false)
	reconcile(w, maintenance.PolicyDrain, claim)
	w.Expect(testenv.Reload(w, claim).Annotations).To(HaveKey(v1alpha1.AnnotationHostMaintenanceSince))
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
			begin: func(w *testenv.Env) {
				w.Inventory.SetMaintenance(inventory.Maintenance{{Region: testenv.Region, Host: "pve1"}: ""})
			},
			fail: func(w *testenv.Env) {
				w.Restart(true)
				w.Expect(configMap(w).Read(w.T.Context(), unreadable{})).NotTo(Succeed())
			},
			restore: func(w *testenv.Env) { w.Expect(configMap(w).Read(w.T.Context(), w.Kube)).To(Succeed()) },
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := testenv.New(t, testenv.NoPolling())
			claim := onHost(w, "a", "pve1", w.Class())
			drift := func() string {
				cp := cloudprovider.New(cloudprovider.Deps{Kube: w.Kube, VMs: w.Instances.VMs, Types: w.Types, Clock: w.Clock, DrainMaintenance: true})
				reason, err := cp.IsDrifted(t.Context(), testenv.Reload(w, claim))
				w.Expect(err).NotTo(HaveOccurred())
				return string(reason)
			}
			test.begin(w)
			w.Expect(reconcile(w, maintenance.PolicyDrain, claim)).To(BeNumerically(">", 0))
			since := testenv.Reload(w, claim).Annotations[v1alpha1.AnnotationHostMaintenanceSince]
			w.Expect(since).NotTo(BeEmpty())
			test.fail(w)
			w.Expect(reconcile(w, maintenance.PolicyDrain, claim)).To(BeNumerically(">", 0))
			w.Expect(testenv.Reload(w, claim).Annotations).To(HaveKeyWithValue(v1alpha1.AnnotationHostMaintenanceSince, since))
			w.Expect(drift()).To(Equal("HostInMaintenance"))
			test.restore(w)
			w.Expect(reconcile(w, maintenance.PolicyDrain, claim)).To(BeZero())
			w.Expect(testenv.Reload(w, claim).Annotations).NotTo(HaveKey(v1alpha1.AnnotationHostMaintenanceSince))
			w.Expect(drift()).To(BeEmpty())
		})
	}
}

func TestReconcileKeep(t *testing.T) {
	t.Parallel()
	w := testenv.New(t, testenv.NoPolling())
	claim := onHost(w, "a", "pve1", w.Class())
	w.Inventory.SetMaintenance(inventory.Maintenance{{Region: testenv.Region, Host: "pve1"}: ""})
	w.Expect(reconcile(w, maintenance.PolicyDrain, claim)).To(BeNumerically(">", 0))
	w.Clock.Advance(time.Hour)
	w.Expect(reconcile(w, maintenance.PolicyKeep, claim)).To(BeZero())
	w.Expect(testenv.Reload(w, claim).Annotations).NotTo(HaveKey(v1alpha1.AnnotationHostMaintenanceSince), "the policy was changed")
	w.Expect(w.IsDeleted(claim)).To(BeFalse())
}

func TestConfigMapInvalid(t *testing.T) {
	t.Parallel()
	w := testenv.New(t, testenv.NoPolling(), testenv.Hosts(2))
	hosts := configMap(w)
	w.Expect(hosts.Read(t.Context(), w.Kube)).To(Succeed(), "it does not exist")
	w.Create(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: w.Name, Name: maintenance.ConfigMapName}, Data: map[string]string{
		"pve1": "", "other.pve1": "", testenv.Region + ".pve9": "", testenv.Region + ".pve2": "",
	}})
	w.Expect(hosts.Read(t.Context(), w.Kube)).To(Succeed())
	w.Expect(w.Events.Messages(v1alpha1.EventInvalidHostMaintenance)).To(ConsistOf(
		And(ContainSubstring(`"pve1"`), ContainSubstring("REGION.HOST")),
		And(ContainSubstring(`"other.pve1"`), ContainSubstring(testenv.Region)),
		And(ContainSubstring(`"`+testenv.Region+`.pve9"`), ContainSubstring("pve1"), ContainSubstring("pve2")),
	))
	state, _ := w.Inventory.View().Host(testenv.Region, "pve2")
	w.Expect(state.Maintenance).NotTo(BeEmpty(), "valid entries apply")
	state, _ = w.Inventory.View().Host(testenv.Region, "pve1")
	w.Expect(state.Maintenance).To(BeEmpty())
}
