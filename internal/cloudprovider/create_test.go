// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package cloudprovider_test

import (
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	corecloudprovider "sigs.k8s.io/karpenter/pkg/cloudprovider"
	"sigs.k8s.io/karpenter/pkg/controllers/nodeoverlay"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/cloudprovider"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

// provider returns a CloudProvider of an Env.
func provider(w *testenv.Env, changes ...func(*cloudprovider.Deps)) *cloudprovider.CloudProvider {
	deps := cloudprovider.Deps{
		Kube: w.Kube, VMs: w.Instances.VMs, Planner: w.Instances.Planner, Deleter: w.Instances.Deleter, Power: w.Instances.Power,
		Types: w.Types, Recorder: w.Events, Clock: w.Clock, Overlays: nodeoverlay.NewInstanceTypeStore(),
	}
	for _, change := range changes {
		change(&deps)
	}
	return cloudprovider.New(deps)
}

// full is a scenario without free CPUs.
func full(s *pvesim.Scenario) {
	for i := range s.Hosts {
		s.Hosts[i].Cores = 2
	}
}

func TestCreate(t *testing.T) {
	t.Parallel()
	w := testenv.New(t, testenv.NoPolling())
	class := w.Class()
	claim := w.Claim("a", class)
	w.Sim.ResetRequests()
	filled, err := provider(w).Create(t.Context(), claim)
	w.Expect(err).NotTo(HaveOccurred())

	in := w.Intent(testenv.Reload(w, claim))
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
	w.Expect(filled.Annotations).To(BeEmpty(), "core would replace an intent that was changed since")
	w.Expect(testenv.Reload(w, claim).Annotations).To(And(
		HaveKey(v1alpha1.AnnotationLaunchIntent),
		HaveKeyWithValue(v1alpha1.AnnotationNodeClassHash, class.Hash()),
		HaveKeyWithValue(v1alpha1.AnnotationNodeClassHashVersion, v1alpha1.HashVersion),
		HaveKeyWithValue(v1alpha1.AnnotationInPlaceUpdateHash, class.InPlaceHash()),
	))
	w.Expect(filled.Status.Capacity.Cpu().Value()).To(BeEquivalentTo(2))
	for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage, corev1.ResourcePods} {
		capacity, allocatable := filled.Status.Capacity[name], filled.Status.Allocatable[name]
		w.Expect(allocatable.Sign()).To(BeNumerically(">", 0), string(name))
		w.Expect(allocatable.Cmp(capacity)).To(BeNumerically("<=", 0), string(name))
	}
	w.Expect(w.Sim.Requests()).To(BeEmpty(), "no requests to Proxmox")
	w.Expect(w.VMs()).To(BeEmpty())
}

func TestCreateTwice(t *testing.T) {
	t.Parallel()
	w := testenv.New(t, testenv.NoPolling(), testenv.Hosts(2))
	claim := w.Claim("a", w.Class())
	first, err := provider(w).Create(t.Context(), claim)
	w.Expect(err).NotTo(HaveOccurred())
	before, _ := w.Inventory.View().Host(testenv.Region, first.Labels[corev1.LabelTopologyZone])
	second, err := provider(w).Create(t.Context(), testenv.Reload(w, claim))
	w.Expect(err).NotTo(HaveOccurred())
	w.Expect(second.Status.ProviderID).To(Equal(first.Status.ProviderID))
	after, _ := w.Inventory.View().Host(testenv.Region, first.Labels[corev1.LabelTopologyZone])
	w.Expect(after.Free).To(Equal(before.Free), "reserved once")

	// After a restart the ledger is empty, and the claim has an intent.
	w.Restart(true)
	third, err := provider(w).Create(t.Context(), testenv.Reload(w, claim))
	w.Expect(err).NotTo(HaveOccurred())
	w.Expect(third.Status.ProviderID).To(Equal(first.Status.ProviderID))
}

func TestCreateNodeClassNotReady(t *testing.T) {
	t.Parallel()
	w := testenv.New(t, testenv.NoPolling())
	cp := provider(w)
	class := w.NewClass(func(c *v1alpha1.ProxmoxNodeClass) { c.Finalizers = []string{"example.com/hold"} })
	claim := w.Claim("a", class)
	refused := func(part string) {
		t.Helper()
		_, err := cp.Create(t.Context(), claim)
		w.Expect(corecloudprovider.IsNodeClassNotReadyError(err)).To(BeTrue(), "%v", err)
		w.Expect(err.Error()).To(ContainSubstring(part))
		w.Expect(testenv.Reload(w, claim).Annotations).NotTo(HaveKey(v1alpha1.AnnotationLaunchIntent))
	}
	class.Status.SelectedZones = []string{"region-1/pve1/9000"}
	class.StatusConditions().SetFalse(v1alpha1.ConditionInstanceTemplateReady, "TemplatesNotFound", "there is no template")
	w.Expect(w.Kube.Status().Update(t.Context(), class)).To(Succeed())
	refused("InstanceTemplateReady=False")

	w.MarkReady(class)
	_, err := cp.Create(t.Context(), w.Claim("b", class))
	w.Expect(err).NotTo(HaveOccurred(), "the class is ready")

	w.Expect(w.Kube.Delete(t.Context(), class)).To(Succeed())
	refused("is being deleted")

	testenv.Reload(w, class).Finalizers = nil
	w.Expect(w.Kube.Update(t.Context(), class)).To(Succeed())
	_, err = cp.Create(t.Context(), claim)
	w.Expect(corecloudprovider.IsInsufficientCapacityError(err)).To(BeTrue(), "%v", err)
	w.Expect(err.Error()).To(ContainSubstring(class.Name))
}

func TestCreatePlannedClaimOfUnreadyNodeClass(t *testing.T) {
	t.Parallel()
	w := testenv.New(t, testenv.NoPolling())
	cp, class := provider(w), w.Class()
	claim := w.Claim("a", class)
	first, err := cp.Create(t.Context(), claim)
	w.Expect(err).NotTo(HaveOccurred())
	class.StatusConditions().SetFalse(v1alpha1.ConditionClustersReachable, "ClustersUnreachable", "down")
	w.Expect(w.Kube.Status().Update(t.Context(), class)).To(Succeed())
	again, err := cp.Create(t.Context(), testenv.Reload(w, claim))
	w.Expect(err).NotTo(HaveOccurred(), "a launch in progress would lose its owner")
	w.Expect(again.Status.ProviderID).To(Equal(first.Status.ProviderID))
}

func TestCreateInsufficientCapacity(t *testing.T) {
	t.Parallel()
	w := testenv.New(t, testenv.NoPolling(), testenv.Hosts(2), testenv.Scenario(full))
	class := w.Class()
	w.Pool(class)
	claim := w.Claim("a", class)
	_, err := provider(w).Create(t.Context(), claim)
	w.Expect(corecloudprovider.IsInsufficientCapacityError(err)).To(BeTrue(), "%v", err)
	w.Expect(err.Error()).To(And(ContainSubstring("pve1"), ContainSubstring("pve2"), ContainSubstring("CPU")))
	w.Expect(testenv.Reload(w, claim).Annotations).NotTo(HaveKey(v1alpha1.AnnotationLaunchIntent))
}

func TestCreateStaticNodePoolWaits(t *testing.T) {
	t.Parallel()
	w := testenv.New(t, testenv.NoPolling(), testenv.Scenario(full))
	class := w.Class()
	w.Pool(class, func(p *karpv1.NodePool) { p.Spec.Replicas = new(int64(3)) })
	claim := w.Claim("a", class)
	filled, err := provider(w).Create(t.Context(), claim)
	w.Expect(err).NotTo(HaveOccurred())
	w.Expect(filled.Status.ProviderID).NotTo(BeEmpty(), "core continues with the other NodePools")
	w.Expect(w.Intent(testenv.Reload(w, claim)).Parked).To(BeTrue())
	w.Expect(w.Events.Messages("WaitingForCapacity")).To(ConsistOf(And(ContainSubstring("pve1"), ContainSubstring("CPU"))))
	again, err := provider(w).Create(t.Context(), claim)
	w.Expect(err).NotTo(HaveOccurred())
	w.Expect(again.Status.ProviderID).To(Equal(filled.Status.ProviderID))
}

// Core recreates a refused claim of a static NodePool without delay, so none is refused.
func TestCreateStaticNodePoolUnplaceable(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		key, value, why string
	}{
		"unusable_host": {corev1.LabelTopologyZone, "pve1", "no iso storage"},
		"no_offering":   {karpv1.CapacityTypeLabelKey, karpv1.CapacityTypeSpot, "no instance type has karpenter.sh/capacity-type In [spot]"},
		"unknown_host":  {corev1.LabelTopologyZone, "pve-typo", "pve-typo"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := testenv.New(t, testenv.NoPolling(), testenv.Hosts(2))
			class := w.Class()
			class.Status.UnusableZones = []v1alpha1.UnusableZone{{Zone: strings.Join(strings.Split(class.Status.SelectedZones[0], "/")[:2], "/"), Reason: "no iso storage"}}
			class.Status.SelectedZones = class.Status.SelectedZones[1:]
			w.Expect(w.Kube.Status().Update(t.Context(), class)).To(Succeed())
			only := karpv1.NodeSelectorRequirementWithMinValues{Key: c.key, Operator: corev1.NodeSelectorOpIn, Values: []string{c.value}}
			w.Pool(class, func(p *karpv1.NodePool) {
				p.Spec.Replicas = new(int64(1))
				p.Spec.Template.Spec.Requirements = append(p.Spec.Template.Spec.Requirements, only)
			})
			claim := w.Claim("a", class, func(c *karpv1.NodeClaim) { c.Spec.Requirements = append(c.Spec.Requirements, only) })
			filled, err := provider(w).Create(t.Context(), claim)
			w.Expect(err).NotTo(HaveOccurred())
			w.Expect(filled.Status.ProviderID).NotTo(BeEmpty())
			w.Expect(w.Events.Messages("WaitingForCapacity")).To(ConsistOf(ContainSubstring(c.why)))
			if in := w.Intent(testenv.Reload(w, claim)); in.InstanceType == "" {
				w.Expect(filled.Labels).To(BeEmpty(), "no label that its NodePool excludes")
				w.Expect(filled.Status.Capacity).To(BeEmpty(), "no capacity that pods would wait for")
			} else {
				w.Expect(filled.Labels).To(HaveKeyWithValue(corev1.LabelTopologyZone, "pve1"))
			}
		})
	}
}

func TestGetInstanceTypes(t *testing.T) {
	t.Parallel()
	w := testenv.New(t, testenv.NoPolling(), testenv.Hosts(2))
	class := w.Class()
	pool := w.Pool(class)
	types, err := provider(w).GetInstanceTypes(t.Context(), pool)
	w.Expect(err).NotTo(HaveOccurred())
	w.Expect(types).To(ContainElement(HaveField("Name", testenv.InstanceType)))
	for _, it := range types {
		w.Expect(it.Offerings).To(HaveLen(2), "%s is offered on each host", it.Name)
	}
	pool.Spec.Template.Spec.NodeClassRef.Name = "nowhere"
	_, err = provider(w).GetInstanceTypes(t.Context(), pool)
	w.Expect(apierrors.IsNotFound(err)).To(BeTrue(), "%v", err)
	w.Expect(err).To(MatchError(ContainSubstring("nowhere")))

	pool.Spec.Template.Spec.NodeClassRef = &karpv1.NodeClassReference{Group: "karpenter.k8s.aws", Kind: "EC2NodeClass", Name: class.Name}
	types, err = provider(w).GetInstanceTypes(t.Context(), pool)
	w.Expect(err).NotTo(HaveOccurred(), "a NodePool of another provider")
	w.Expect(types).To(BeEmpty())
}

func TestNameAndNodeClasses(t *testing.T) {
	t.Parallel()
	cp := cloudprovider.New(cloudprovider.Deps{})
	NewWithT(t).Expect(cp.Name()).To(Equal("proxmox"))
	NewWithT(t).Expect(cp.GetSupportedNodeClasses()).To(ConsistOf(BeAssignableToTypeOf(&v1alpha1.ProxmoxNodeClass{})))
}
