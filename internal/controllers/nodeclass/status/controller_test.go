// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package status_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	operatorstatus "github.com/awslabs/operatorpkg/status"
	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/nodeclass/status"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

// setTemplateZones sets the template's status like its own controller.
func setTemplateZones(w *testenv.Env, zones ...string) {
	w.T.Helper()
	template := w.Template()
	template.Status.Zones = zones
	if len(zones) > 0 {
		template.StatusConditions().SetTrue(v1alpha1.ConditionTemplateReady)
	} else {
		template.StatusConditions().SetFalse(v1alpha1.ConditionTemplateReady, v1alpha1.ReasonTemplatesNotFound, "not found on any host")
	}
	w.Expect(w.Kube.Status().Update(w.T.Context(), template)).To(Succeed())
}

// newEnvWithClass returns an environment with a template on pve1 and a class that was not
// reconciled yet. Both changes may be nil.
func newEnvWithClass(t *testing.T, scenario func(*pvesim.Scenario), change func(*v1alpha1.ProxmoxNodeClass)) (*testenv.Env, *v1alpha1.ProxmoxNodeClass) {
	t.Helper()
	options := []testenv.Option{testenv.NoPolling()}
	if scenario != nil {
		options = append(options, testenv.Scenario(scenario))
	}
	w := testenv.New(t, options...)
	setTemplateZones(w, "region-1/pve1/9000")
	if change == nil {
		change = func(*v1alpha1.ProxmoxNodeClass) {}
	}
	return w, w.NewClass(change)
}

// statusDeps returns the dependencies of the controller under test.
func statusDeps(w *testenv.Env) status.Deps {
	return status.Deps{
		Inventory: w.Inventory, Types: w.Types, RootClients: w.Roots, Boot: w.Boot,
		Health: w.Instances.Health, CloneTimes: w.Instances.CloneTimes, Clock: w.Clock,
	}
}

// reconcileClass reconciles a class once and returns it as stored in the API server.
func reconcileClass(w *testenv.Env, class *v1alpha1.ProxmoxNodeClass) *v1alpha1.ProxmoxNodeClass {
	w.T.Helper()
	controller := status.NewController(w.Kube, statusDeps(w))
	_, err := controller.Reconcile(w.T.Context(), testenv.Reload(w, class))
	w.Expect(err).NotTo(HaveOccurred())
	return testenv.Reload(w, class)
}

func conditionMessage(class *v1alpha1.ProxmoxNodeClass, condition string) string {
	if got := class.StatusConditions().Get(condition); got != nil {
		return got.Message
	}
	return ""
}

func TestReconcileReady(t *testing.T) {
	t.Parallel()
	w := testenv.New(t, testenv.Hosts(3), testenv.NoPolling())
	setTemplateZones(w, "region-1/pve1/9000", "region-1/pve3/9002")
	class := reconcileClass(w, w.NewClass())

	ready := class.StatusConditions().Get(operatorstatus.ConditionReady)
	w.Expect(ready.IsTrue()).To(BeTrue(), ready.Message)
	w.Expect(ready.ObservedGeneration).To(Equal(class.Generation))
	w.Expect(class.Status.SelectedZones).To(Equal([]string{"region-1/pve1/9000", "region-1/pve3/9002"}))
	w.Expect(class.Status.UnusableZones).To(ConsistOf(v1alpha1.UnusableZone{
		Zone: "region-1/pve2", Reason: `ProxmoxUnmanagedTemplate "` + class.Spec.InstanceTemplateRef.Name + `" is not on this host`,
	}))
	zones := class.Status.Resources[v1alpha1.ResourceZones]
	w.Expect(zones.Value()).To(BeEquivalentTo(2))
}

func TestReconcileUnknownRegion(t *testing.T) {
	t.Parallel()
	w := testenv.New(t, testenv.NoPolling(), testenv.OtherHosts(1))
	setTemplateZones(w, "region-1/pve1/9000")
	class := reconcileClass(w, w.NewClass(func(c *v1alpha1.ProxmoxNodeClass) { c.Spec.Region = "mars" }))

	reachable := class.StatusConditions().Get(v1alpha1.ConditionClustersReachable)
	w.Expect(reachable.IsFalse()).To(BeTrue())
	w.Expect(reachable.Reason).To(Equal("RegionNotFound"))
	w.Expect(reachable.Message).To(Equal(`spec.region "mars" is not in the cloud config, which has region-1, region-2`))
	w.Expect(class.StatusConditions().Get(operatorstatus.ConditionReady).IsFalse()).To(BeTrue())
	w.Expect(class.Status.SelectedZones).To(BeEmpty())
}

func TestReconcileRegion(t *testing.T) {
	t.Parallel()
	w := testenv.New(t, testenv.NoPolling(), testenv.OtherHosts(1))
	setTemplateZones(w, "region-1/pve1/9000", "region-2/pve1/9000")
	both := reconcileClass(w, w.NewClass())
	w.Expect(both.Status.SelectedZones).To(Equal([]string{"region-1/pve1/9000", "region-2/pve1/9000"}))
	one := reconcileClass(w, w.NewClass(func(c *v1alpha1.ProxmoxNodeClass) { c.Name, c.Spec.Region = w.Named("one"), testenv.OtherRegion }))
	w.Expect(one.Status.SelectedZones).To(Equal([]string{"region-2/pve1/9000"}))
	w.Expect(one.Status.UnusableZones).To(BeEmpty(), "hosts of other regions are not listed")
}

func TestReconcileClusterNotPolled(t *testing.T) {
	t.Parallel()
	w := testenv.New(t, testenv.NeverPolled())
	setTemplateZones(w, "region-1/pve1/9000")
	class := reconcileClass(w, w.NewClass())
	for _, condition := range []string{v1alpha1.ConditionClustersReachable, v1alpha1.ConditionInstanceTemplateReady} {
		got := class.StatusConditions().Get(condition)
		w.Expect(got.IsUnknown()).To(BeTrue(), condition)
		w.Expect(got.Reason).To(Equal("ClustersNotPolled"))
	}
	w.Expect(class.StatusConditions().Get(operatorstatus.ConditionReady).IsUnknown()).To(BeTrue())
}

// Core keeps a claim while the readiness of its class is unknown, and provisions nothing.
func TestReconcileUnknownTimeout(t *testing.T) {
	t.Parallel()
	for name, prepare := range map[string]func(*testenv.Env){
		"never_polled": func(*testenv.Env) {},
		"privileges_never_read": func(w *testenv.Env) {
			w.AddFault(pvesim.Fault{Method: "GET", Path: "/access/permissions", Status: 500, Message: "failed"})
			w.Refresh()
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := testenv.New(t, testenv.NeverPolled())
			setTemplateZones(w, "region-1/pve1/9000")
			prepare(w)
			class := reconcileClass(w, w.NewClass())
			ready := func() *operatorstatus.Condition { return class.StatusConditions().Get(operatorstatus.ConditionReady) }
			w.Expect(ready().IsUnknown()).To(BeTrue(), ready().Message)

			w.Clock.Advance(time.Minute)
			reconcileClass(w, class)
			w.Expect(ready().IsFalse()).To(BeTrue(), ready().Message)
			w.Expect(ready().Message).To(ContainSubstring("read yet"))
			before := class.ResourceVersion
			w.Expect(reconcileClass(w, class).ResourceVersion).To(Equal(before), "it is not written again")

			w.Sim.ClearFaults()
			w.Clock.Advance(time.Hour)
			w.Refresh()
			w.Expect(reconcileClass(w, class).StatusConditions().Root().IsTrue()).To(BeTrue(), ready().Message)
		})
	}
}

func TestReconcileClusterUnreachable(t *testing.T) {
	t.Parallel()
	w := testenv.New(t, testenv.NoPolling())
	setTemplateZones(w, "region-1/pve1/9000")
	class := reconcileClass(w, w.NewClass())
	reconnect := w.Disconnect()
	w.Expect(w.Inventory.RefreshAll(t.Context())).NotTo(Succeed())
	w.Expect(reconcileClass(w, class).StatusConditions().Get(operatorstatus.ConditionReady).IsTrue()).To(BeTrue(), "one poll may fail")
	w.Expect(w.Inventory.RefreshAll(t.Context())).NotTo(Succeed())
	reconcileClass(w, class)
	reachable := class.StatusConditions().Get(v1alpha1.ConditionClustersReachable)
	w.Expect(reachable.IsFalse()).To(BeTrue())
	w.Expect(reachable.Reason).To(Equal("ClustersUnreachable"))
	w.Expect(reachable.Message).To(And(ContainSubstring("region region-1 since "), ContainSubstring("No route to host")))
	w.Expect(class.Status.SelectedZones).To(Equal([]string{"region-1/pve1/9000"}), "selected zones are kept")

	reconnect()
	w.Refresh()
	w.Expect(reconcileClass(w, class).StatusConditions().Get(operatorstatus.ConditionReady).IsTrue()).To(BeTrue())
}

func TestReconcileNoQuorum(t *testing.T) {
	t.Parallel()
	w := testenv.New(t, testenv.NoPolling(), testenv.Hosts(3))
	setTemplateZones(w, "region-1/pve1/9000", "region-1/pve2/9001", "region-1/pve3/9002")
	class := reconcileClass(w, w.NewClass())
	w.Expect(w.Sim.Partition("pve1")).To(Succeed())
	w.Expect(w.Inventory.RefreshAll(t.Context())).NotTo(Succeed())
	reconcileClass(w, class)
	reachable := class.StatusConditions().Get(v1alpha1.ConditionClustersReachable)
	w.Expect(reachable.IsFalse()).To(BeTrue())
	w.Expect(reachable.Reason).To(Equal("NoQuorum"))
	w.Expect(reachable.Message).To(And(ContainSubstring("the Proxmox cluster has no quorum"), ContainSubstring("host pve1 reports that it has no quorum"), ContainSubstring("pvecm status")))
	w.Expect(class.Status.SelectedZones).To(HaveLen(3), "selected zones are kept")

	w.Sim.Heal()
	w.Eventually(func() error { return w.Inventory.RefreshAll(t.Context()) }).Should(Succeed())
	w.Expect(reconcileClass(w, class).StatusConditions().Get(operatorstatus.ConditionReady).IsTrue()).To(BeTrue())
}

func TestReconcileOneClusterUnreachable(t *testing.T) {
	t.Parallel()
	w := testenv.New(t, testenv.NoPolling(), testenv.OtherHosts(1))
	setTemplateZones(w, "region-1/pve1/9000", "region-2/pve1/9000")
	w.Disconnect()
	for range 2 {
		w.Expect(w.Inventory.RefreshAll(t.Context())).NotTo(Succeed())
	}
	class := reconcileClass(w, w.NewClass())
	w.Expect(class.StatusConditions().Get(operatorstatus.ConditionReady).IsTrue()).To(BeTrue())
	w.Expect(conditionMessage(class, v1alpha1.ConditionClustersReachable)).To(And(ContainSubstring("region region-1 since "), Not(ContainSubstring("region-2"))))
	w.Expect(class.Status.SelectedZones).To(ContainElement("region-2/pve1/9000"))
}

func TestReconcileAfterRestart(t *testing.T) {
	t.Parallel()
	w := testenv.New(t, testenv.NoPolling(), testenv.Hosts(2))
	setTemplateZones(w, "region-1/pve1/9000")
	class := reconcileClass(w, w.NewClass())
	before := class.DeepCopy()
	w.Restart(false)
	reconcileClass(w, class)
	w.Expect(class.Status.SelectedZones).To(Equal(before.Status.SelectedZones), "removing a zone would drift its nodes")
	w.Expect(class.Status.UnusableZones).To(Equal(before.Status.UnusableZones))
	w.Expect(class.StatusConditions().Get(operatorstatus.ConditionReady).IsTrue()).To(BeTrue())
}

func TestReconcileFailingLaunches(t *testing.T) {
	t.Parallel()
	w := testenv.New(t)
	setTemplateZones(w, "region-1/pve1/9000")
	class := reconcileClass(w, w.NewClass())
	w.Expect(class.StatusConditions().Get(v1alpha1.ConditionLaunchesHealthy)).To(Or(BeNil(), HaveField("Status", Equal(metav1.ConditionUnknown))), "nothing was launched yet")
	for range 3 {
		w.Instances.Health.RecordFailure(class.Name, testenv.Region, v1alpha1.EventStartFailed, errors.New("bridge 'vmbr7' does not exist"))
	}
	reconcileClass(w, class)
	got := class.StatusConditions().Get(v1alpha1.ConditionLaunchesHealthy)
	w.Expect(got.IsFalse()).To(BeTrue())
	w.Expect(got.Reason).To(Equal(v1alpha1.EventStartFailed))
	w.Expect(got.Message).To(And(ContainSubstring("3 launches in a row"), ContainSubstring("bridge 'vmbr7' does not exist")))
	w.Expect(class.StatusConditions().Get(operatorstatus.ConditionReady).IsTrue()).To(BeTrue(), "launches may succeed on another host")

	w.Launched("a", class)
	w.Expect(reconcileClass(w, class).StatusConditions().Get(v1alpha1.ConditionLaunchesHealthy).IsTrue()).To(BeTrue())
}

func TestReconcileTemplateNotFound(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		prepare func(*testenv.Env)
		class   func(*v1alpha1.ProxmoxNodeClass)
		want    string
	}{
		"unknown_template": {
			prepare: func(*testenv.Env) {},
			want:    `spec.instanceTemplateRef names ProxmoxUnmanagedTemplate "NAME-ubuntu", which does not exist; create it, or set one that is listed by: kubectl get proxmoxunmanagedtemplates`,
		},
		"unknown_managed_template": {
			prepare: func(*testenv.Env) {},
			class:   func(c *v1alpha1.ProxmoxNodeClass) { c.Spec.InstanceTemplateRef.Kind = "ProxmoxTemplate" },
			want:    `spec.instanceTemplateRef names ProxmoxTemplate "NAME-ubuntu", which does not exist; create it, or set one that is listed by: kubectl get proxmoxtemplates`,
		},
		"on_no_host": {
			prepare: func(w *testenv.Env) { setTemplateZones(w) },
			want:    `ProxmoxUnmanagedTemplate "NAME-ubuntu" is on no host yet: not found on any host`,
		},
		"on_other_hosts_only": {
			prepare: func(w *testenv.Env) { setTemplateZones(w, "region-1/pve7/9000") },
			want:    `region-1/pve1: ProxmoxUnmanagedTemplate "NAME-ubuntu" is not on this host`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := testenv.New(t, testenv.NoPolling())
			c.prepare(w)
			changes := []func(*v1alpha1.ProxmoxNodeClass){}
			if c.class != nil {
				changes = append(changes, c.class)
			}
			class := reconcileClass(w, w.NewClass(changes...))
			got := class.StatusConditions().Get(v1alpha1.ConditionInstanceTemplateReady)
			w.Expect(got.IsFalse()).To(BeTrue())
			w.Expect(got.Reason).To(Equal(v1alpha1.ReasonTemplatesNotFound))
			w.Expect(got.Message).To(Equal(replaceName(c.want, w.Name)))
			w.Expect(class.StatusConditions().Get(operatorstatus.ConditionReady).IsFalse()).To(BeTrue())
			zones := class.Status.Resources[v1alpha1.ResourceZones]
			w.Expect(zones.Value()).To(BeZero())
		})
	}
}

func TestReconcileStorageUnsuitable(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		scenario func(*pvesim.Scenario)
		class    func(*v1alpha1.ProxmoxNodeClass)
		want     string
	}{
		"unknown_boot_device_storage": {
			class: func(c *v1alpha1.ProxmoxNodeClass) { c.Spec.BootDevice.Storage = "ceph" },
			want:  `spec.bootDevice.storage "ceph" is not on this host, which has local, local-lvm`,
		},
		"boot_device_storage_without_images": {
			scenario: func(s *pvesim.Scenario) { s.Storages[0].Content = []string{"iso"} },
			class:    func(c *v1alpha1.ProxmoxNodeClass) { c.Spec.BootDevice.Storage = "local" },
			want:     `spec.bootDevice.storage "local" has the content types iso, but not images; run: pvesm set local --content images,iso`,
		},
		"no_storage_for_boot_drives": {
			scenario: func(s *pvesim.Scenario) { s.Storages[0].Content = []string{"images"} },
			want:     "no storage takes iso content, which the boot drive needs; run: pvesm set local --content iso,images",
		},
		"unknown_boot_drive_storage": {
			class: func(c *v1alpha1.ProxmoxNodeClass) { c.Spec.MetadataOptions.Storage = "nas" },
			want:  `spec.metadataOptions.storage "nas" is not on this host, which has local, local-lvm`,
		},
		"boot_drive_storage_without_iso": {
			scenario: func(s *pvesim.Scenario) {
				s.Storages = append(s.Storages, pvesim.Storage{ID: "nas", Type: "nfs", Content: []string{"backup"}, Shared: true, Size: pvesim.TiB})
			},
			class: func(c *v1alpha1.ProxmoxNodeClass) { c.Spec.MetadataOptions.Storage = "nas" },
			want:  `spec.metadataOptions.storage "nas" has the content types backup, but not iso; run: pvesm set nas --content iso,backup`,
		},
		"boot_drive_storage_type_without_iso": {
			class: func(c *v1alpha1.ProxmoxNodeClass) { c.Spec.MetadataOptions.Storage = "local-lvm" },
			want:  `spec.metadataOptions.storage "local-lvm" is of type lvmthin, which takes no iso content; name one that holds files`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, class := newEnvWithClass(t, c.scenario, c.class)
			reconcileClass(w, class)
			w.Expect(class.Status.UnusableZones).To(ConsistOf(v1alpha1.UnusableZone{Zone: "region-1/pve1", Reason: c.want}))
			got := class.StatusConditions().Get(v1alpha1.ConditionStorageReady)
			w.Expect(got.IsFalse()).To(BeTrue())
			w.Expect(got.Reason).To(Equal(v1alpha1.ReasonStorageUnsuitable))
			w.Expect(got.Message).To(Equal("region-1/pve1: " + c.want))
			ready := class.StatusConditions().Get(operatorstatus.ConditionReady)
			w.Expect(ready.IsFalse()).To(BeTrue())
			w.Expect(ready.Message).To(Equal("StorageReady: region-1/pve1: "+c.want), "Ready contains the cause")
		})
	}
}

func TestReconcileWithoutBootDrive(t *testing.T) {
	t.Parallel()
	w := testenv.New(t, testenv.NoPolling(), testenv.Scenario(func(s *pvesim.Scenario) { s.Storages[0].Content = []string{"images"} }))
	setTemplateZones(w, "region-1/pve1/9000")
	class := reconcileClass(w, w.NewClass(func(c *v1alpha1.ProxmoxNodeClass) {
		c.Spec.MetadataOptions = v1alpha1.MetadataOptions{Type: v1alpha1.MetadataTypeNone}
	}))
	w.Expect(class.StatusConditions().Get(operatorstatus.ConditionReady).IsTrue()).To(BeTrue())
}

func TestReconcileUnderManager(t *testing.T) {
	t.Parallel()
	w := testenv.New(t, testenv.Hosts(2))
	w.StartManager(func(kube client.Client) testenv.Registrar {
		return status.NewController(kube, statusDeps(w))
	})
	class := w.NewClass()
	// Creating the template later must trigger a reconcile of the class.
	w.Eventually(func() string {
		return conditionMessage(testenv.Reload(w, class), v1alpha1.ConditionInstanceTemplateReady)
	}).Should(ContainSubstring("does not exist"))
	setTemplateZones(w, "region-1/pve1/9000", "region-1/pve2/9001")
	ready := func() bool {
		return testenv.Reload(w, class).StatusConditions().Get(operatorstatus.ConditionReady).IsTrue()
	}
	w.Eventually(ready).WithTimeout(19*time.Second).Should(BeTrue(), "before it is checked again without a change")

	// The inventory polls ten times a second: polls must not write the status.
	settled := class.ResourceVersion
	w.Consistently(func() string { return testenv.Reload(w, class).ResourceVersion }).WithTimeout(time.Second).Should(Equal(settled))

	// A change of the Cluster triggers a reconcile without a change of the class.
	reconnect := w.Disconnect()
	w.Eventually(ready).Should(BeFalse())
	down := class.ResourceVersion
	w.Consistently(func() string { return testenv.Reload(w, class).ResourceVersion }).WithTimeout(time.Second).Should(Equal(down), "a long outage is reported once")
	reconnect()
	w.Eventually(ready).Should(BeTrue())
}

// replaceName replaces NAME in an expectation by the name of the environment.
func replaceName(text, name string) string { return strings.ReplaceAll(text, "NAME", name) }
