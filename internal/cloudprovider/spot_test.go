// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package cloudprovider_test

import (
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instancetype"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
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
	capacityType := func(value string) []karpv1.NodeSelectorRequirementWithMinValues {
		return []karpv1.NodeSelectorRequirementWithMinValues{{Key: karpv1.CapacityTypeLabelKey, Operator: corev1.NodeSelectorOpIn, Values: []string{value}}}
	}
	for name, c := range map[string]struct {
		policy v1alpha1.VMSizePolicy
		// requires is what the NodePool requires; selects is the capacity type that the pod selects.
		requires           []karpv1.NodeSelectorRequirementWithMinValues
		selects, cpu       string
		want, capacityType string
	}{
		"cheapest":                      {cpu: "4", want: "large-spot", capacityType: karpv1.CapacityTypeSpot},
		"cheapest_is_on_demand":         {cpu: "1", want: "small", capacityType: karpv1.CapacityTypeOnDemand},
		"pod_selects_spot":              {cpu: "1", selects: karpv1.CapacityTypeSpot, want: "large-spot", capacityType: karpv1.CapacityTypeSpot},
		"pod_selects_on_demand":         {cpu: "4", selects: karpv1.CapacityTypeOnDemand, want: "large", capacityType: karpv1.CapacityTypeOnDemand},
		"NodePool_requires_spot":        {cpu: "1", requires: capacityType(karpv1.CapacityTypeSpot), want: "large-spot", capacityType: karpv1.CapacityTypeSpot},
		"NodePool_requires_on_demand":   {cpu: "4", requires: capacityType(karpv1.CapacityTypeOnDemand), want: "large", capacityType: karpv1.CapacityTypeOnDemand},
		"exact_size":                    {policy: v1alpha1.VMSizeExact, cpu: "2500m", want: "e1.3VCPU-1GB", capacityType: karpv1.CapacityTypeOnDemand},
		"spot_is_cheaper_than_the_size": {policy: v1alpha1.VMSizeExact, cpu: "6500m", want: "large-spot", capacityType: karpv1.CapacityTypeSpot},
		"spot_has_no_exact_size": {
			policy: v1alpha1.VMSizeExact, cpu: "1", selects: karpv1.CapacityTypeSpot, want: "large-spot", capacityType: karpv1.CapacityTypeSpot,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			k := newKarpenter(t, testenv.NoPolling(), withSpot(t))
			k.readyPool(func(class *v1alpha1.ProxmoxNodeClass, p *karpv1.NodePool) {
				class.Spec.VMSize.Policy, p.Spec.Template.Spec.Requirements = c.policy, c.requires
			})
			k.PendingPod("pod", c.cpu, func(p *corev1.Pod) {
				if c.selects != "" {
					p.Spec.NodeSelector = map[string]string{karpv1.CapacityTypeLabelKey: c.selects}
				}
			})
			claims := k.launchPending()
			k.Expect(claims).To(HaveLen(1))
			in := k.Intent(claims[0])
			k.Expect(in.InstanceType).To(Equal(c.want))
			k.Expect(in.CapacityType).To(Equal(c.capacityType))
			k.Expect(claims[0].Labels).To(And(
				HaveKeyWithValue(corev1.LabelInstanceTypeStable, c.want), HaveKeyWithValue(karpv1.CapacityTypeLabelKey, c.capacityType)))
			k.expectScheduled(claims)
			k.expectNotDrifted(claims[0])
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
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := testenv.New(t, testenv.NoPolling(), withSpot(t))
			class := w.Class()
			w.Pool(class, func(p *karpv1.NodePool) {
				p.Spec.Template.Spec.Requirements = []karpv1.NodeSelectorRequirementWithMinValues{}
			})
			claim := w.Claim("a", class, func(claim *karpv1.NodeClaim) {
				claim.Spec.Requirements = []karpv1.NodeSelectorRequirementWithMinValues{
					{Key: corev1.LabelInstanceTypeStable, Operator: corev1.NodeSelectorOpIn, Values: c.listed},
					{Key: karpv1.CapacityTypeLabelKey, Operator: corev1.NodeSelectorOpIn, Values: []string{karpv1.CapacityTypeSpot}},
				}
			})
			filled, err := provider(w).Create(t.Context(), claim)
			w.Expect(err).NotTo(HaveOccurred())
			w.Expect(filled.Labels).To(HaveKeyWithValue(corev1.LabelInstanceTypeStable, c.want))
		})
	}
}
