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
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

// found writes what the template's own controller would have found.
func found(w *testenv.Env, zones ...string) {
	w.T.Helper()
	template := w.Template()
	template.Status.Zones = zones
	if len(zones) > 0 {
		template.StatusConditions().SetTrue(v1alpha1.ConditionTemplateReady)
	} else {
		template.StatusConditions().SetFalse(v1alpha1.ConditionTemplateReady, v1alpha1.ReasonTemplatesNotFound, "nobody has it")
	}
	w.Expect(w.Kube.Status().Update(w.T.Context(), template)).To(Succeed())
}

func statusDeps(w *testenv.Env) status.Deps {
	return status.Deps{
		Inventory: w.Inventory, Types: w.Types, Roots: w.Roots, Boot: w.Boot,
		Health: w.Instances.Health, CloneTimes: w.Instances.CloneTimes, Clock: w.Clock,
	}
}

// checked reconciles a class once and gives it as the API server then has it.
func checked(w *testenv.Env, class *v1alpha1.ProxmoxNodeClass) *v1alpha1.ProxmoxNodeClass {
	w.T.Helper()
	controller := status.NewController(w.Kube, statusDeps(w))
	_, err := controller.Reconcile(w.T.Context(), testenv.Reload(w, class))
	w.Expect(err).NotTo(HaveOccurred())
	return testenv.Reload(w, class)
}

func message(class *v1alpha1.ProxmoxNodeClass, condition string) string {
	if got := class.StatusConditions().Get(condition); got != nil {
		return got.Message
	}
	return ""
}

func TestAClassThatCanBeUsedIsReady(t *testing.T) {
	t.Parallel()
	w := testenv.New(t, testenv.Hosts(3), testenv.NoPolling())
	found(w, "region-1/pve1/9000", "region-1/pve3/9002")
	class := checked(w, w.NewClass())

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

func TestAnUnknownRegionNamesTheKnownOnes(t *testing.T) {
	t.Parallel()
	w := testenv.New(t, testenv.NoPolling(), testenv.OtherHosts(1))
	found(w, "region-1/pve1/9000")
	class := checked(w, w.NewClass(func(c *v1alpha1.ProxmoxNodeClass) { c.Spec.Region = "mars" }))

	reachable := class.StatusConditions().Get(v1alpha1.ConditionClustersReachable)
	w.Expect(reachable.IsFalse()).To(BeTrue())
	w.Expect(reachable.Reason).To(Equal("RegionNotFound"))
	w.Expect(reachable.Message).To(Equal(`spec.region "mars" is not in the cloud config, which has region-1, region-2`))
	w.Expect(class.StatusConditions().Get(operatorstatus.ConditionReady).IsFalse()).To(BeTrue())
	w.Expect(class.Status.SelectedZones).To(BeEmpty())
}

func TestARegionLimitsTheZones(t *testing.T) {
	t.Parallel()
	w := testenv.New(t, testenv.NoPolling(), testenv.OtherHosts(1))
	found(w, "region-1/pve1/9000", "region-2/pve1/9000")
	both := checked(w, w.NewClass())
	w.Expect(both.Status.SelectedZones).To(Equal([]string{"region-1/pve1/9000", "region-2/pve1/9000"}))
	one := checked(w, w.NewClass(func(c *v1alpha1.ProxmoxNodeClass) { c.Name, c.Spec.Region = w.Named("one"), testenv.OtherRegion }))
	w.Expect(one.Status.SelectedZones).To(Equal([]string{"region-2/pve1/9000"}))
	w.Expect(one.Status.UnusableZones).To(BeEmpty(), "hosts of other regions are none of its business")
}

func TestNothingIsSaidAboutAClusterThatWasNeverRead(t *testing.T) {
	t.Parallel()
	w := testenv.New(t, testenv.NeverPolled())
	found(w, "region-1/pve1/9000")
	class := checked(w, w.NewClass())
	for _, condition := range []string{v1alpha1.ConditionClustersReachable, v1alpha1.ConditionInstanceTemplateReady} {
		got := class.StatusConditions().Get(condition)
		w.Expect(got.IsUnknown()).To(BeTrue(), condition)
		w.Expect(got.Reason).To(Equal("ClustersNotRead"))
	}
	w.Expect(class.StatusConditions().Get(operatorstatus.ConditionReady).IsUnknown()).To(BeTrue())
}

func TestAClusterThatIsDownMakesTheClassNotReadyAndKeepsItsZones(t *testing.T) {
	t.Parallel()
	w := testenv.New(t, testenv.NoPolling())
	found(w, "region-1/pve1/9000")
	class := checked(w, w.NewClass())
	mend := w.Disconnect()
	w.Expect(w.Inventory.RefreshAll(t.Context())).NotTo(Succeed())
	checked(w, class)
	reachable := class.StatusConditions().Get(v1alpha1.ConditionClustersReachable)
	w.Expect(reachable.IsFalse()).To(BeTrue())
	w.Expect(reachable.Reason).To(Equal("ClustersUnreachable"))
	w.Expect(reachable.Message).To(And(ContainSubstring("region region-1 since "), ContainSubstring("No route to host")))
	w.Expect(class.Status.SelectedZones).To(Equal([]string{"region-1/pve1/9000"}), "what was known is not forgotten")

	mend()
	w.Refresh()
	w.Expect(checked(w, class).StatusConditions().Get(operatorstatus.ConditionReady).IsTrue()).To(BeTrue())
}

func TestOneOfTwoClustersDownIsToldButDoesNotStopTheOther(t *testing.T) {
	t.Parallel()
	w := testenv.New(t, testenv.NoPolling(), testenv.OtherHosts(1))
	found(w, "region-1/pve1/9000", "region-2/pve1/9000")
	w.Disconnect()
	w.Expect(w.Inventory.RefreshAll(t.Context())).NotTo(Succeed())
	class := checked(w, w.NewClass())
	w.Expect(class.StatusConditions().Get(operatorstatus.ConditionReady).IsTrue()).To(BeTrue())
	w.Expect(message(class, v1alpha1.ConditionClustersReachable)).To(And(ContainSubstring("region region-1 since "), Not(ContainSubstring("region-2"))))
	w.Expect(class.Status.SelectedZones).To(ContainElement("region-2/pve1/9000"))
}

func TestARestartForgetsNothingThatWasKnown(t *testing.T) {
	t.Parallel()
	w := testenv.New(t, testenv.NoPolling(), testenv.Hosts(2))
	found(w, "region-1/pve1/9000")
	class := checked(w, w.NewClass())
	before := class.DeepCopy()
	w.Restart(false)
	checked(w, class)
	w.Expect(class.Status.SelectedZones).To(Equal(before.Status.SelectedZones), "a zone that vanishes would drift its nodes")
	w.Expect(class.Status.UnusableZones).To(Equal(before.Status.UnusableZones))
	w.Expect(class.StatusConditions().Get(operatorstatus.ConditionReady).IsTrue()).To(BeTrue())
}

func TestLaunchesThatKeepFailingAreToldAndDoNotStopTheClass(t *testing.T) {
	t.Parallel()
	w := testenv.New(t)
	found(w, "region-1/pve1/9000")
	class := checked(w, w.NewClass())
	w.Expect(class.StatusConditions().Get(v1alpha1.ConditionLaunchesHealthy)).To(Or(BeNil(), HaveField("Status", Equal(metav1.ConditionUnknown))), "nothing was launched yet")
	for range 3 {
		w.Instances.Health.Failed(class.Name, instance.ReasonStart, errors.New("bridge 'vmbr7' does not exist"))
	}
	checked(w, class)
	got := class.StatusConditions().Get(v1alpha1.ConditionLaunchesHealthy)
	w.Expect(got.IsFalse()).To(BeTrue())
	w.Expect(got.Reason).To(Equal(instance.ReasonStart))
	w.Expect(got.Message).To(And(ContainSubstring("3 launches in a row"), ContainSubstring("bridge 'vmbr7' does not exist")))
	w.Expect(class.StatusConditions().Get(operatorstatus.ConditionReady).IsTrue()).To(BeTrue(), "another host may do")

	w.Launched("a", class)
	w.Expect(checked(w, class).StatusConditions().Get(v1alpha1.ConditionLaunchesHealthy).IsTrue()).To(BeTrue())
}

func TestTheTemplateIsMissedInWords(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		prepare func(*testenv.Env)
		class   func(*v1alpha1.ProxmoxNodeClass)
		want    string
	}{
		"no such object": {
			prepare: func(*testenv.Env) {},
			want:    `spec.instanceTemplateRef names ProxmoxUnmanagedTemplate "NAME-ubuntu", which does not exist`,
		},
		"no such managed object": {
			prepare: func(*testenv.Env) {},
			class:   func(c *v1alpha1.ProxmoxNodeClass) { c.Spec.InstanceTemplateRef.Kind = "ProxmoxTemplate" },
			want:    `spec.instanceTemplateRef names ProxmoxTemplate "NAME-ubuntu", which does not exist`,
		},
		"on no host": {
			prepare: func(w *testenv.Env) { found(w) },
			want:    `ProxmoxUnmanagedTemplate "NAME-ubuntu" is on no host yet: nobody has it`,
		},
		"on other hosts only": {
			prepare: func(w *testenv.Env) { found(w, "region-1/pve7/9000") },
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
			class := checked(w, w.NewClass(changes...))
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

func TestAHostThatLacksAStorageIsLeftOutWithTheRemedy(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		scenario func(*pvesim.Scenario)
		class    func(*v1alpha1.ProxmoxNodeClass)
		want     string
	}{
		"boot device on a storage that is not there": {
			class: func(c *v1alpha1.ProxmoxNodeClass) { c.Spec.BootDevice.Storage = "ceph" },
			want:  `spec.bootDevice.storage "ceph" is not on this host, which has local, local-lvm`,
		},
		"boot device on a storage without images": {
			scenario: func(s *pvesim.Scenario) { s.Storages[0].Content = []string{"iso"} },
			class:    func(c *v1alpha1.ProxmoxNodeClass) { c.Spec.BootDevice.Storage = "local" },
			want:     `spec.bootDevice.storage "local" takes iso but no disk images; run: pvesm set local --content images,iso`,
		},
		"no storage for boot drives": {
			scenario: func(s *pvesim.Scenario) { s.Storages[0].Content = []string{"images"} },
			want:     "no storage takes iso content, which the boot drive needs; run: pvesm set local --content iso,images",
		},
		"boot drives on a storage that is not there": {
			class: func(c *v1alpha1.ProxmoxNodeClass) { c.Spec.MetadataOptions.Storage = "nas" },
			want:  `spec.metadataOptions.storage "nas" is not on this host, which has local, local-lvm`,
		},
		"boot drives on a storage that takes none": {
			scenario: func(s *pvesim.Scenario) {
				s.Storages = append(s.Storages, pvesim.Storage{ID: "nas", Type: "nfs", Content: []string{"backup"}, Shared: true, Size: pvesim.TiB})
			},
			class: func(c *v1alpha1.ProxmoxNodeClass) { c.Spec.MetadataOptions.Storage = "nas" },
			want:  `spec.metadataOptions.storage "nas" takes backup but no iso content; run: pvesm set nas --content iso,backup`,
		},
		"boot drives on a storage that can take none": {
			class: func(c *v1alpha1.ProxmoxNodeClass) { c.Spec.MetadataOptions.Storage = "local-lvm" },
			want:  `spec.metadataOptions.storage "local-lvm" is of type lvmthin, which takes no iso content; name one that holds files`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			options := []testenv.Option{testenv.NoPolling()}
			if c.scenario != nil {
				options = append(options, testenv.Scenario(c.scenario))
			}
			w := testenv.New(t, options...)
			found(w, "region-1/pve1/9000")
			changes := []func(*v1alpha1.ProxmoxNodeClass){}
			if c.class != nil {
				changes = append(changes, c.class)
			}
			class := checked(w, w.NewClass(changes...))
			w.Expect(class.Status.UnusableZones).To(ConsistOf(v1alpha1.UnusableZone{Zone: "region-1/pve1", Reason: c.want}))
			got := class.StatusConditions().Get(v1alpha1.ConditionStorageReady)
			w.Expect(got.IsFalse()).To(BeTrue())
			w.Expect(got.Reason).To(Equal(v1alpha1.ReasonStorageUnsuitable))
			w.Expect(got.Message).To(Equal("region-1/pve1: " + c.want))
			ready := class.StatusConditions().Get(operatorstatus.ConditionReady)
			w.Expect(ready.IsFalse()).To(BeTrue())
			w.Expect(ready.Message).To(Equal("StorageReady: region-1/pve1: "+c.want), "Ready tells the cause")
		})
	}
}

func TestAClassWithoutBootDriveNeedsNoISOStorage(t *testing.T) {
	t.Parallel()
	w := testenv.New(t, testenv.NoPolling(), testenv.Scenario(func(s *pvesim.Scenario) { s.Storages[0].Content = []string{"images"} }))
	found(w, "region-1/pve1/9000")
	class := checked(w, w.NewClass(func(c *v1alpha1.ProxmoxNodeClass) {
		c.Spec.MetadataOptions = v1alpha1.MetadataOptions{Type: v1alpha1.MetadataTypeNone}
	}))
	w.Expect(class.StatusConditions().Get(operatorstatus.ConditionReady).IsTrue()).To(BeTrue())
}

func TestUnderAManagerAClassIsReadySoonAndThenLeftAlone(t *testing.T) {
	t.Parallel()
	w := testenv.New(t, testenv.Hosts(2))
	w.StartManager(func(kube client.Client) testenv.Registrar {
		return status.NewController(kube, statusDeps(w))
	})
	class := w.NewClass()
	// The template comes later: its coming must wake the class.
	w.Eventually(func() string {
		return message(testenv.Reload(w, class), v1alpha1.ConditionInstanceTemplateReady)
	}).WithTimeout(5 * time.Second).Should(ContainSubstring("does not exist"))
	found(w, "region-1/pve1/9000", "region-1/pve2/9001")
	ready := func() bool {
		return testenv.Reload(w, class).StatusConditions().Get(operatorstatus.ConditionReady).IsTrue()
	}
	w.Eventually(ready).WithTimeout(5 * time.Second).Should(BeTrue())

	// The inventory polls ten times a second: none of that may write the status.
	settled := class.ResourceVersion
	w.Consistently(func() string { return testenv.Reload(w, class).ResourceVersion }).WithTimeout(time.Second).Should(Equal(settled))

	// A change of the Cluster is noticed without anybody touching the class.
	mend := w.Disconnect()
	w.Eventually(ready).WithTimeout(5 * time.Second).Should(BeFalse())
	down := class.ResourceVersion
	w.Consistently(func() string { return testenv.Reload(w, class).ResourceVersion }).WithTimeout(time.Second).Should(Equal(down), "a long outage is told once")
	mend()
	w.Eventually(ready).WithTimeout(5 * time.Second).Should(BeTrue())
}

// replaceName puts the world's name into an expectation.
func replaceName(text, world string) string { return strings.ReplaceAll(text, "NAME", world) }
