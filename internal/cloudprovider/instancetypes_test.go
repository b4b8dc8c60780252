// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package cloudprovider_test

import (
	"maps"
	"slices"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	corev1alpha1 "sigs.k8s.io/karpenter/pkg/apis/v1alpha1"
	corecloudprovider "sigs.k8s.io/karpenter/pkg/cloudprovider"
	"sigs.k8s.io/karpenter/pkg/controllers/nodeoverlay"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instancetype"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/placement"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

// withSpot makes a Process with two on-demand types and a spot type.
func withSpot(t *testing.T) testenv.Option {
	t.Helper()
	catalog, err := instancetype.Parse([]byte(`[
		{"name": "small", "capacity": {"cpu": "2", "memory": "4Gi"}},
		{"name": "large", "capacity": {"cpu": "8", "memory": "16Gi"}, "capacitytype": "on-demand"},
		{"name": "large-spot", "capacity": {"cpu": "8", "memory": "16Gi"}, "capacitytype": "spot"}]`))
	if err != nil {
		t.Fatal(err)
	}
	return testenv.Catalog(catalog)
}

// TestScheduleSpot lets core's scheduler select between spot and on-demand types.
func TestScheduleSpot(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		policy v1alpha1.VMSizePolicy
		// required and selected are the capacity types that the NodePool requires and that the pod selects.
		required, selected, cpu string
		want, capacityType      string
	}{
		"cheapest":                      {cpu: "4", want: "large-spot", capacityType: karpv1.CapacityTypeSpot},
		"cheapest_is_on_demand":         {cpu: "1", want: "small", capacityType: karpv1.CapacityTypeOnDemand},
		"pod_selects_spot":              {cpu: "1", selected: karpv1.CapacityTypeSpot, want: "large-spot", capacityType: karpv1.CapacityTypeSpot},
		"pod_selects_on_demand":         {cpu: "4", selected: karpv1.CapacityTypeOnDemand, want: "large", capacityType: karpv1.CapacityTypeOnDemand},
		"NodePool_requires_spot":        {cpu: "1", required: karpv1.CapacityTypeSpot, want: "large-spot", capacityType: karpv1.CapacityTypeSpot},
		"NodePool_requires_on_demand":   {cpu: "4", required: karpv1.CapacityTypeOnDemand, want: "large", capacityType: karpv1.CapacityTypeOnDemand},
		"exact_size":                    {policy: v1alpha1.VMSizeExact, cpu: "2500m", want: "e1.3VCPU-1GB", capacityType: karpv1.CapacityTypeOnDemand},
		"spot_is_cheaper_than_the_size": {policy: v1alpha1.VMSizeExact, cpu: "6500m", want: "large-spot", capacityType: karpv1.CapacityTypeSpot},
		"spot_has_no_exact_size": {
			policy: v1alpha1.VMSizeExact, cpu: "1", selected: karpv1.CapacityTypeSpot, want: "large-spot", capacityType: karpv1.CapacityTypeSpot,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			k := newKarpenter(t, testenv.NoPolling(), withSpot(t))
			k.readyPool(func(class *v1alpha1.ProxmoxNodeClass, p *karpv1.NodePool) {
				class.Spec.VMSize.Policy = c.policy
				if c.required != "" {
					p.Spec.Template.Spec.Requirements = requires(karpv1.CapacityTypeLabelKey, c.required)
				}
			})
			k.PendingPod("pod", c.cpu, func(p *corev1.Pod) {
				if c.selected != "" {
					p.Spec.NodeSelector = map[string]string{karpv1.CapacityTypeLabelKey: c.selected}
				}
			})
			claim := k.launchOne()
			in := k.Intent(claim)
			k.Expect(in.InstanceType).To(Equal(c.want))
			k.Expect(in.CapacityType).To(Equal(c.capacityType))
			k.Expect(claim.Labels).To(And(
				HaveKeyWithValue(corev1.LabelInstanceTypeStable, c.want), HaveKeyWithValue(karpv1.CapacityTypeLabelKey, c.capacityType)))
			k.expectScheduled(claim)
			k.expectDrift(claim, "")
		})
	}
}

// TestCreateAssumedSpot checks Claims for the replacement of an on-demand Node: core lists cheaper types and
// requires spot if the NodePool allows both, also if on-demand types are cheaper. If a pod requires spot, it
// lists only spot types.
func TestCreateAssumedSpot(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		listed []string
		want   string
	}{
		"on_demand":       {[]string{"small"}, "small"},
		"both":            {[]string{"small", "large-spot"}, "small"},
		"required_by_pod": {[]string{"large-spot"}, "large-spot"},
	} {
		testenv.With(testenv.NoPolling(), withSpot(t)).Subtest(t, name, func(w *testenv.Env, _ *testenv.Process) {
			class := w.Class()
			w.Pool(class, func(p *karpv1.NodePool) { p.Spec.Template.Spec.Requirements = nil })
			claim := w.Claim("a", class, func(claim *karpv1.NodeClaim) {
				claim.Spec.Requirements = append(requires(corev1.LabelInstanceTypeStable, c.listed...), requires(karpv1.CapacityTypeLabelKey, karpv1.CapacityTypeSpot)...)
			})
			filled, err := w.CloudProvider().Create(w.Context(), claim)
			w.Expect(err).NotTo(HaveOccurred())
			w.Expect(filled.Labels).To(HaveKeyWithValue(corev1.LabelInstanceTypeStable, c.want))
		})
	}
}

// withARM64 makes the second host arm64, which releases before 9.2 do not report.
func withARM64() testenv.Option {
	return testenv.Scenario(func(s *pvesim.Scenario) { s.Version, s.Hosts[1].Arch = "9.2", "aarch64" })
}

// Karpenter counts the host ports of DaemonSets by instance type: those of one architecture
// must not block the other.
func TestScheduleArchitectures(t *testing.T) {
	t.Parallel()
	k := newKarpenter(t, testenv.Hosts(2), withARM64())
	k.readyPool()
	for arch, port := range map[string]int32{karpv1.ArchitectureAmd64: 8000, karpv1.ArchitectureArm64: 9000} {
		ports := []corev1.ContainerPort{{ContainerPort: port, HostPort: port}}
		k.daemonSet(arch, labelIn(corev1.LabelArchStable, arch), corev1.Container{Ports: ports})
		// Without topology spread constraints: core tries one zone per pod, at random.
		k.PendingPod("on-the-other-than-"+arch, "1", func(p *corev1.Pod) { p.Spec.Containers[0].Ports = ports })
	}
	hosts := map[string]string{}
	for _, claim := range k.launchPending() {
		hosts[claim.Labels[corev1.LabelTopologyZone]] = claim.Labels[corev1.LabelArchStable]
		if claim.Labels[corev1.LabelArchStable] == karpv1.ArchitectureArm64 {
			k.Expect(claim.Labels[corev1.LabelInstanceTypeStable]).To(HaveSuffix("-arm64"))
		}
		k.expectDrift(claim, "")
	}
	k.Expect(hosts).To(Equal(map[string]string{"pve1": karpv1.ArchitectureAmd64, "pve2": karpv1.ArchitectureArm64}))
}

// A Node that was created when all hosts of its class were arm64 keeps its type.
func TestScheduleArchitecturesKeepNode(t *testing.T) {
	t.Parallel()
	k := newKarpenter(t, testenv.Hosts(2), withARM64())
	class := k.readyPool()
	claim := k.Launched("a", class, func(c *karpv1.NodeClaim) {
		c.Spec.Requirements[0].Values = append(c.Spec.Requirements[0].Values, testenv.InstanceType+"-arm64")
		c.Spec.Requirements = append(c.Spec.Requirements, requires(corev1.LabelArchStable, karpv1.ArchitectureArm64)...)
	})
	labels := k.Types.Labels(class, testenv.InstanceType, placement.Zone{Region: testenv.Region, Host: "pve2"})
	k.Expect(labels).To(HaveKeyWithValue(corev1.LabelArchStable, karpv1.ArchitectureArm64))
	maps.Copy(claim.Labels, labels)
	k.Expect(k.Kube.Update(k.ctx, claim)).To(Succeed())
	claim.StatusConditions().SetTrue(karpv1.ConditionTypeLaunched)
	k.Expect(k.Kube.Status().Update(k.ctx, claim)).To(Succeed())
	k.expectDrift(claim, "")
}

func TestCreateWithNodeOverlays(t *testing.T) {
	t.Parallel()
	k := newKarpenter(t, testenv.NoPolling())
	class := k.readyPool()
	types := k.Types.List(class, "")
	bigger := types[slices.IndexFunc(types, func(it *corecloudprovider.InstanceType) bool { return it.Capacity.Cpu().Value() == 4 })].Name
	store, cp := k.Instances.Overlays, k.CloudProvider()
	either := func(c *karpv1.NodeClaim) { c.Spec.Requirements[0].Values = []string{testenv.InstanceType, bigger} }
	plain, err := cp.Create(t.Context(), k.Claim("plain", class, either))
	k.Expect(err).NotTo(HaveOccurred(), "NodeOverlays that were not evaluated yet are ignored")
	k.Expect(plain.Labels).To(HaveKeyWithValue(corev1.LabelInstanceTypeStable, testenv.InstanceType))

	k.Create(&corev1alpha1.NodeOverlay{
		ObjectMeta: metav1.ObjectMeta{Name: k.Named("bargain")},
		Spec: corev1alpha1.NodeOverlaySpec{
			Requirements: []corev1alpha1.NodeSelectorRequirement{{Key: corev1.LabelInstanceTypeStable, Operator: corev1.NodeSelectorOpIn, Values: []string{bigger}}},
			Price:        new("0.000001"),
			Capacity:     corev1.ResourceList{"example.com/license": resource.MustParse("1")},
		},
	})
	_, err = nodeoverlay.NewController(k.Clock, k.Kube, cp, store, k.cluster).Reconcile(k.ctx, reconcile.Request{})
	k.Expect(err).NotTo(HaveOccurred())
	filled, err := cp.Create(t.Context(), k.Claim("overlaid", class, either))
	k.Expect(err).NotTo(HaveOccurred())
	k.Expect(filled.Labels).To(HaveKeyWithValue(corev1.LabelInstanceTypeStable, bigger), "price of the overlay")
	k.Expect(filled.Status.Capacity).To(HaveKey(corev1.ResourceName("example.com/license")), "capacity of the overlay")
}
