// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package cloudprovider_test

import (
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	corecloudprovider "sigs.k8s.io/karpenter/pkg/cloudprovider"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/cloudprovider"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance/plan"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/placement"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

// create calls Create, which must succeed.
func create(w *testenv.Env, claim *karpv1.NodeClaim) *karpv1.NodeClaim {
	w.T.Helper()
	filled, err := w.CloudProvider().Create(w.T.Context(), claim)
	w.Expect(err).NotTo(HaveOccurred())
	return filled
}

// full is a scenario without free CPUs.
func full(s *pvesim.Scenario) {
	for i := range s.Hosts {
		s.Hosts[i].Cores = 2
	}
}

func TestCreate(t *testing.T) {
	t.Parallel()
	testenv.With(testenv.NoPolling()).Subtest(t, "planned", func(w *testenv.Env, _ *testenv.Process) {
		class := w.Class()
		claim := w.Claim("a", class)
		w.Sim.ResetRequests()
		filled := create(w, claim)
		w.Expect(testenv.Reload(w, claim).Annotations).To(BeEmpty(), "core stores the result")

		in := w.Intent(w.Store(claim, filled))
		w.Expect(filled.Name).To(Equal(claim.Name))
		w.Expect(filled.Status.ProviderID).To(Equal(in.ProviderID()))
		w.Expect(filled.Status.ImageID).To(And(Equal(in.ImageID), Not(BeEmpty())))
		w.Expect(filled.Labels).To(And(
			HaveKeyWithValue(corev1.LabelInstanceTypeStable, testenv.InstanceType),
			HaveKeyWithValue(corev1.LabelTopologyRegion, testenv.Region),
			HaveKeyWithValue(corev1.LabelTopologyZone, "pve1"),
			HaveKeyWithValue(karpv1.CapacityTypeLabelKey, karpv1.CapacityTypeOnDemand),
			HaveKeyWithValue(corev1.LabelArchStable, "amd64"),
			HaveKeyWithValue(corev1.LabelOSStable, "linux"),
			HaveKeyWithValue(v1alpha1.LabelInstanceFamily, "t1"),
		))
		w.Expect(filled.Annotations).To(And(
			HaveKey(v1alpha1.AnnotationHolds),
			HaveKeyWithValue(v1alpha1.AnnotationLaunchedBy, v1alpha1.LaunchedByVersion),
			HaveKeyWithValue(v1alpha1.AnnotationNodeClassHash, class.Hash()),
			HaveKeyWithValue(v1alpha1.AnnotationNodeClassHashVersion, v1alpha1.HashVersion),
		))
		w.Expect(filled.Status.Capacity.Cpu().Value()).To(BeEquivalentTo(2))
		for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage, corev1.ResourcePods} {
			capacity, allocatable := filled.Status.Capacity[name], filled.Status.Allocatable[name]
			w.Expect(allocatable.Sign()).To(BeNumerically(">", 0), string(name))
			w.Expect(allocatable.Cmp(capacity)).To(BeNumerically("<=", 0), string(name))
		}
		w.Expect(w.Sim.Requests()).To(BeEmpty(), "no requests to Proxmox")
		w.Expect(w.VMs()).To(BeEmpty())
	})
	// A launch in progress would lose its owner without the claim.
	testenv.With(testenv.NoPolling(), testenv.Hosts(2)).Subtest(t, "twice", func(w *testenv.Env, _ *testenv.Process) {
		class := w.Class()
		claim := w.Claim("a", class)
		first := create(w, claim)
		before, _ := w.Inventory.View().Host(testenv.Region, first.Labels[corev1.LabelTopologyZone])
		class.StatusConditions().SetFalse(v1alpha1.ConditionClustersReachable, "ClustersUnreachable", "down")
		w.Expect(w.Kube.Status().Update(w.Context(), class)).To(Succeed())
		w.Expect(create(w, testenv.Reload(w, claim)).Status.ProviderID).To(Equal(first.Status.ProviderID))
		after, _ := w.Inventory.View().Host(testenv.Region, first.Labels[corev1.LabelTopologyZone])
		w.Expect(after.Free).To(Equal(before.Free), "reserved once")

		// Another process, whose cache does not show yet what core stored.
		stale := claim.DeepCopy()
		stored := w.Store(claim, first)
		w.Restart(true)
		again := create(w, stale)
		w.Expect(again.Status.ProviderID).To(Equal(first.Status.ProviderID))
		w.Expect(again.Annotations).To(Equal(stored.Annotations))
		after, _ = w.Inventory.View().Host(testenv.Region, first.Labels[corev1.LabelTopologyZone])
		w.Expect(after.Free).To(Equal(before.Free), "reserved once")
	})
	testenv.With(testenv.NoPolling()).Subtest(t, "NodeClass_not_ready", func(w *testenv.Env, _ *testenv.Process) {
		cp := w.CloudProvider()
		class := w.NewClass(func(c *v1alpha1.ProxmoxNodeClass) { c.Finalizers = []string{"example.com/hold"} })
		claim := w.Claim("a", class)
		refused := func(part string) {
			w.T.Helper()
			_, err := cp.Create(w.Context(), claim)
			w.Expect(corecloudprovider.IsNodeClassNotReadyError(err)).To(BeTrue(), "%v", err)
			w.Expect(err).To(MatchError(ContainSubstring(part)))
			w.Expect(testenv.Reload(w, claim).Annotations).To(BeEmpty())
		}
		w.Clock.Advance(2 * time.Minute)
		refused("was not checked yet") // a class that cannot be checked must not block all NodePools

		class.Status.SelectedZones = []string{"region-1/pve1/9000"}
		class.StatusConditions().SetFalse(v1alpha1.ConditionInstanceTemplateReady, "TemplatesNotFound", "there is no template")
		w.Expect(w.Kube.Status().Update(w.Context(), class)).To(Succeed())
		refused("InstanceTemplateReady=False")

		w.MarkReady(class)
		create(w, w.Claim("b", class))

		w.Expect(w.Kube.Delete(w.Context(), class)).To(Succeed())
		refused("is being deleted")

		testenv.Reload(w, class).Finalizers = nil
		w.Expect(w.Kube.Update(w.Context(), class)).To(Succeed())
		_, err := cp.Create(w.Context(), claim)
		w.Expect(corecloudprovider.IsInsufficientCapacityError(err)).To(BeTrue(), "%v", err)
		w.Expect(err).To(MatchError(ContainSubstring(class.Name)))
	})
}

// Core recreates a refused claim of a static NodePool without delay, so none is refused. Core plans pods
// for the capacity in the status of a claim, also if it waits for capacity.
func TestCreateStaticNodePool(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		key, value, why string
		placed          bool
	}{
		"full_host":     {corev1.LabelTopologyZone, "pve2", "pve2: 0 CPUs free, 2 requested", true},
		"unusable_host": {corev1.LabelTopologyZone, "pve1", "no iso storage", true},
		"no_offering":   {karpv1.CapacityTypeLabelKey, karpv1.CapacityTypeSpot, "no instance type has karpenter.sh/capacity-type In [spot]", false},
		"unknown_host":  {corev1.LabelTopologyZone, "pve-typo", "pve-typo", false},
	} {
		testenv.With(testenv.NoPolling(), testenv.Hosts(2), testenv.Scenario(full)).Subtest(t, name, func(w *testenv.Env, _ *testenv.Process) {
			class := w.Class()
			class.Status.UnusableZones = []v1alpha1.UnusableZone{{Zone: "region-1/pve1", Reason: "no iso storage"}}
			class.Status.SelectedZones = class.Status.SelectedZones[1:]
			w.Expect(w.Kube.Status().Update(w.Context(), class)).To(Succeed())
			only := requires(c.key, c.value)
			w.Pool(class, func(p *karpv1.NodePool) {
				p.Spec.Replicas = new(int64(1))
				p.Spec.Template.Spec.Requirements = append(p.Spec.Template.Spec.Requirements, only...)
			})
			claim := w.Claim("a", class, func(c *karpv1.NodeClaim) { c.Spec.Requirements = append(c.Spec.Requirements, only...) })
			filled := create(w, claim)
			w.Expect(filled.Status.ProviderID).NotTo(BeEmpty(), "core continues with the other NodePools")
			w.Expect(filled.Status.Capacity).To(BeEmpty(), "no capacity that pods would wait for")
			w.Expect(filled.Status.Allocatable).To(BeEmpty())
			w.Expect(w.Events.Messages("WaitingForCapacity")).To(ConsistOf(ContainSubstring(c.why)))
			if c.placed {
				w.Expect(filled.Labels).To(HaveKeyWithValue(corev1.LabelTopologyZone, c.value))
			} else {
				w.Expect(filled.Labels).To(BeEmpty(), "no label that its NodePool excludes")
			}
			w.Expect(create(w, claim).Status.ProviderID).To(Equal(filled.Status.ProviderID))
			w.Expect(w.Intent(w.Store(claim, filled)).Parked).To(BeTrue())
		})
	}
}

// A claim gets its capacity when it is launched, also if the controller stopped before it wrote that.
func TestLaunchParkedClaim(t *testing.T) {
	testenv.With(testenv.NoPolling(), testenv.Scenario(full)).Test(t, func(w *testenv.Env, _ *testenv.Process) {
		class := w.Class()
		w.Pool(class, func(p *karpv1.NodePool) { p.Spec.Replicas = new(int64(1)) })
		claim := w.Claim("a", class)
		filled := create(w, claim)
		w.DestroyByHand("pve1", 101)
		w.Refresh()
		w.Store(claim, filled)
		planned, err := w.Instances.Planner.Unpark(w.Context(), claim, class, w.Intent(claim))
		w.Expect(err).NotTo(HaveOccurred())
		w.Annotate(claim, planned.Annotations(class)) // and not the capacity
		w.Restart(true)
		w.MustLaunch(claim, class)
		it, _ := w.Types.Get(class, w.Intent(claim).InstanceType)
		allocatable, launched := it.Allocatable(), testenv.Reload(w, claim)
		w.Expect(w.Instances.VMs.IsLaunched(launched)).To(BeTrue())
		w.Expect(launched.Status.Capacity.Cpu().Value()).To(Equal(it.Capacity.Cpu().Value()))
		w.Expect(launched.Status.Allocatable.Memory().Value()).To(Equal(allocatable.Memory().Value()))
		w.Expect(launched.Status.ProviderID).To(Equal(filled.Status.ProviderID))
	})
}

func TestGetInstanceTypes(t *testing.T) {
	testenv.With(testenv.NoPolling(), testenv.Hosts(2)).Test(t, func(w *testenv.Env, _ *testenv.Process) {
		class := w.Class()
		pool := w.Pool(class)
		w.Expect(w.CloudProvider().GetInstanceTypes(w.Context(), pool)).To(And(
			ContainElement(HaveField("Name", testenv.InstanceType)), HaveEach(HaveField("Offerings", HaveLen(2)))), "one offering for each host")
		pool.Spec.Template.Spec.NodeClassRef.Name = "nowhere"
		_, err := w.CloudProvider().GetInstanceTypes(w.Context(), pool)
		w.Expect(apierrors.IsNotFound(err)).To(BeTrue(), "%v", err)
		w.Expect(err).To(MatchError(ContainSubstring("nowhere")))

		pool.Spec.Template.Spec.NodeClassRef = &karpv1.NodeClassReference{Group: "karpenter.k8s.aws", Kind: "EC2NodeClass", Name: class.Name}
		w.Expect(w.CloudProvider().GetInstanceTypes(w.Context(), pool)).To(BeEmpty(), "a NodePool of another provider")
	})
}

func TestNameAndNodeClasses(t *testing.T) {
	t.Parallel()
	cp := cloudprovider.New(cloudprovider.Deps{})
	NewWithT(t).Expect(cp.Name()).To(Equal("proxmox"))
	NewWithT(t).Expect(cp.GetSupportedNodeClasses()).To(ConsistOf(BeAssignableToTypeOf(&v1alpha1.ProxmoxNodeClass{})))
}

// expectLaunch runs core's lifecycle until a claim is launched. It must not be deleted
// while its class is checked; check does that.
func expectLaunch(k *karpenter, claim *karpv1.NodeClaim, check func()) {
	k.T.Helper()
	_, err := k.lifecycle.Reconcile(k.ctx, testenv.Reload(k.Env, claim))
	k.Expect(err).To(HaveOccurred(), "core retries it")
	k.Expect(testenv.Reload(k.Env, claim).DeletionTimestamp.IsZero()).To(BeTrue(), "core deleted the claim")
	launched := claim.StatusConditions().Get(karpv1.ConditionTypeLaunched)
	k.Expect(launched.IsUnknown()).To(BeTrue())
	k.Expect(launched.Reason).To(Equal("NodeClassReadinessUnknown"))

	check()
	_, err = k.lifecycle.Reconcile(k.ctx, claim)
	k.Expect(err).NotTo(HaveOccurred())
	k.Expect(testenv.Reload(k.Env, claim).StatusConditions().Get(karpv1.ConditionTypeLaunched).IsTrue()).To(BeTrue())
	k.Expect(claim.Status.ProviderID).To(Equal(k.Intent(claim).ProviderID()))
}

// Core deletes a standalone claim if its class is not ready, but not while that is unknown.
func TestCreateWithUncheckedNodeClass(t *testing.T) {
	t.Parallel()
	k := newKarpenter(t, testenv.NoPolling())
	standalone := func(c *karpv1.NodeClaim) { c.Labels = nil }
	class := k.NewClass()
	check := func() {
		class.Status.SelectedZones = testenv.Zones(1)
		k.MarkReady(class)
	}
	expectLaunch(k, k.Claim("with-class", class, standalone), check)

	// The result of the previous generation does not count.
	class.StatusConditions().SetFalse(v1alpha1.ConditionStorageReady, v1alpha1.ReasonStorageUnsuitable, "too small")
	k.Expect(k.Kube.Status().Update(k.ctx, class)).To(Succeed())
	class.Spec.BootDevice.Size = "50G"
	k.Expect(k.Kube.Update(k.ctx, class)).To(Succeed())
	expectLaunch(k, k.Claim("with-fixed-class", class, standalone), check)
}

// After a start the addresses in use are not known yet. Claims that core creates before would be
// refused, and a claim does not wait for the next poll: its launch reads them itself.
func TestCreateAddressPoolExhausted(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		metrics := prometheus.NewRegistry()
		w := testenv.New(t, testenv.Hosts(2), testenv.NoPolling(), testenv.Metrics(instance.NewMetrics(metrics)))
		class := w.Class(func(c *v1alpha1.ProxmoxNodeClass) {
			c.Spec.Network = &v1alpha1.Network{Interfaces: []v1alpha1.VMInterface{{
				Name: "net0", Address4: &v1alpha1.AddressSource{CIDR: "10.0.0.0/24", Ranges: []string{"10.0.0.5-10.0.0.6"}, Gateway: "10.0.0.1"},
			}}}
		})
		pool := w.Pool(class)
		w.Expect(plan.RegisterAddressPoolMetrics(metrics, w.Kube, w.Inventory)).To(Succeed())
		available := func() (n int) {
			types, err := w.CloudProvider().GetInstanceTypes(t.Context(), pool)
			w.Expect(err).NotTo(HaveOccurred())
			for _, it := range types {
				n += len(it.Offerings.Available())
			}
			return n
		}
		expectReason := func(reason string) {
			w.Expect(available()).To(BeZero())
			w.Expect(w.Types.UnavailableReasons(class, testenv.InstanceType)).To(HaveKeyWithValue(
				placement.Zone{Region: testenv.Region, Host: "pve2"}, ContainSubstring(reason)))
		}
		expectReason("the addresses of the guests in region " + testenv.Region + " are still being read")
		first := w.Claim("a", class)
		create(w, first)

		pooled, _ := plan.AddressPoolState(w.Inventory, class) // like the status controller
		w.Expect(pooled).To(BeTrue())
		w.Refresh()
		w.Expect(available()).To(BeNumerically(">", 0))
		create(w, w.Claim("b", class))
		const reason = "spec.network.interfaces[0].address4: all 2 addresses of 10.0.0.0/24 are taken"
		expectReason(reason)
		_, err := w.CloudProvider().Create(t.Context(), w.Claim("c", class))
		w.Expect(corecloudprovider.IsInsufficientCapacityError(err)).To(BeTrue(), "%v", err)
		w.Expect(err).To(MatchError(ContainSubstring(reason)))
		w.Expect(testutil.GatherAndCompare(metrics, strings.NewReader(`
# HELP karpenter_proxmox_address_pool_exhausted_total VMs that could not be launched because all addresses of a pool were taken.
# TYPE karpenter_proxmox_address_pool_exhausted_total counter
karpenter_proxmox_address_pool_exhausted_total{nodeclass="default",pool="10.0.0.0/24"} 1
# HELP karpenter_proxmox_address_pool_size Addresses of a pool of a NodeClass.
# TYPE karpenter_proxmox_address_pool_size gauge
karpenter_proxmox_address_pool_size{interface="net0",nodeclass="default",pool="10.0.0.0/24"} 2
# HELP karpenter_proxmox_address_pool_used Addresses of a pool of a NodeClass that are in use or reserved.
# TYPE karpenter_proxmox_address_pool_used gauge
karpenter_proxmox_address_pool_used{interface="net0",nodeclass="default",pool="10.0.0.0/24"} 2
`), "karpenter_proxmox_address_pool_exhausted_total", "karpenter_proxmox_address_pool_size", "karpenter_proxmox_address_pool_used")).To(Succeed())

		w.Instances.Planner.Release(string(first.UID))
		w.Expect(available()).To(BeNumerically(">", 0), "an address was released")
	})
}
