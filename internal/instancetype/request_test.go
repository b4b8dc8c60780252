// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package instancetype_test

import (
	"cmp"
	"slices"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/cloudprovider"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instancetype"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/placement"
)

func newClaim(cpu, memory string, requirements ...karpv1.NodeSelectorRequirementWithMinValues) *karpv1.NodeClaim {
	return &karpv1.NodeClaim{
		ObjectMeta: metav1.ObjectMeta{UID: "uid-1", Labels: map[string]string{karpv1.NodePoolLabelKey: "pool"}},
		Spec: karpv1.NodeClaimSpec{
			Requirements: requirements,
			Resources: karpv1.ResourceRequirements{Requests: corev1.ResourceList{
				corev1.ResourceCPU: resource.MustParse(cpu), corev1.ResourceMemory: resource.MustParse(memory),
			}},
		},
	}
}

func requirement(key string, operator corev1.NodeSelectorOperator, values ...string) karpv1.NodeSelectorRequirementWithMinValues {
	return karpv1.NodeSelectorRequirementWithMinValues{Key: key, Operator: operator, Values: values}
}

// hosts returns the Hosts of a request's cheapest size.
func hosts(r placement.Request) []string {
	var names []string
	for _, option := range r.Options {
		if option.Price != r.Options[0].Price || option.Need.CPUs != r.Options[0].Need.CPUs {
			break
		}
		for _, z := range option.Zones {
			names = append(names, z.Host)
		}
	}
	return names
}

func TestRequestOperators(t *testing.T) {
	t.Parallel()
	p, _ := newProvider(t, newViewer())
	const zoneKey, regionKey = corev1.LabelTopologyZone, corev1.LabelTopologyRegion
	for name, c := range map[string]struct {
		requirement karpv1.NodeSelectorRequirementWithMinValues
		want        []string
	}{
		"zone_In":                {requirement(zoneKey, corev1.NodeSelectorOpIn, "pve2"), []string{"pve2"}},
		"zone_NotIn":             {requirement(zoneKey, corev1.NodeSelectorOpNotIn, "pve2"), []string{"pve1", "pve9"}},
		"zone_Exists":            {requirement(zoneKey, corev1.NodeSelectorOpExists), []string{"pve1", "pve2", "pve9"}},
		"zone_DoesNotExist":      {requirement(zoneKey, corev1.NodeSelectorOpDoesNotExist), nil},
		"region_In":              {requirement(regionKey, corev1.NodeSelectorOpIn, "west"), []string{"pve9"}},
		"region_NotIn":           {requirement(regionKey, corev1.NodeSelectorOpNotIn, "west"), []string{"pve1", "pve2"}},
		"CPU_type_In":            {requirement(v1alpha1.LabelInstanceCPUType, corev1.NodeSelectorOpIn, "host"), []string{"pve1"}},
		"CPU_type_NotIn":         {requirement(v1alpha1.LabelInstanceCPUType, corev1.NodeSelectorOpNotIn, "host"), []string{"pve2", "pve9"}},
		"image_In":               {requirement(v1alpha1.LabelInstanceImageID, corev1.NodeSelectorOpIn, "902"), []string{"pve2"}},
		"image_Gt":               {requirement(v1alpha1.LabelInstanceImageID, corev1.NodeSelectorOpGt, "901"), []string{"pve2", "pve9"}},
		"image_Lt":               {requirement(v1alpha1.LabelInstanceImageID, corev1.NodeSelectorOpLt, "902"), []string{"pve1"}},
		"capacity_type_spot":     {requirement(karpv1.CapacityTypeLabelKey, corev1.NodeSelectorOpIn, "spot"), nil},
		"spot_or_on-demand":      {requirement(karpv1.CapacityTypeLabelKey, corev1.NodeSelectorOpIn, "spot", "on-demand"), []string{"pve1", "pve2", "pve9"}},
		"arch_arm64":             {requirement(corev1.LabelArchStable, corev1.NodeSelectorOpIn, "arm64"), nil},
		"user_defined_label":     {requirement("example.com/team", corev1.NodeSelectorOpIn, "a"), []string{"pve1", "pve2", "pve9"}},
		"windows_is_not_offered": {requirement(corev1.LabelOSStable, corev1.NodeSelectorOpIn, "windows"), nil},
	} {
		request := requestFor(p, newNodeClassWithAllHosts(), newClaim("100m", "100Mi", c.requirement))
		NewWithT(t).Expect(hosts(request)).To(Equal(c.want), "%s: the claim may go", name)
	}
}

func TestRequestOptions(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	p, _ := newProvider(t, newViewer())
	class := newNodeClassWithAllHosts()
	class.Spec.PlacementStrategy.ZoneBalance = v1alpha1.ZoneBalanceAvailabilityFirst
	request := requestFor(p, class, newClaim("1500m", "5Gi"))
	g.Expect(request).To(And(HaveField("ClaimUID", BeEquivalentTo("uid-1")), HaveField("NodePool", "pool"), HaveField("Strategy", v1alpha1.ZoneBalanceAvailabilityFirst)))
	g.Expect(request.Options[0].InstanceType).To(Equal("s1.2VCPU-8GB"), "6 GB have less than 5 GiB allocatable")
	g.Expect(slices.IsSortedFunc(request.Options, func(a, b placement.Option) int { return cmp.Compare(a.Price, b.Price) })).To(BeTrue())
	g.Expect(request.Storages[zone("east", "pve1")]).To(Equal("local"), "want the template's")

	two := requirement(corev1.LabelInstanceTypeStable, corev1.NodeSelectorOpIn, "m1.1VCPU-8GB", "c1.4VCPU-8GB")
	only := requestFor(p, class, newClaim("100m", "100Mi", two)).Options
	g.Expect(only).To(HaveExactElements(HaveField("InstanceType", "m1.1VCPU-8GB"), HaveField("InstanceType", "c1.4VCPU-8GB")))
	g.Expect(requestFor(p, class, newClaim("64", "1Gi")).Options).To(BeEmpty())
}

func TestRequestExcluded(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	v := newViewer()
	p, _ := newProvider(t, v)
	class := newNodeClass("east/pve1/901", "east/pve2/999")
	class.Status.UnusableZones = []v1alpha1.UnusableZone{{Zone: "west/pve9", Reason: "storage ceph is missing"}}
	p.MarkUnavailable(instancetype.OfferingSelector{Zone: zone("east", "pve1")}, "clone failed", time.Minute)
	_, err := choose(v, p, class, newClaim("1", "1Gi"))
	for _, want := range []string{"east/pve1: failed recently", "clone failed", "east/pve2: template 999 does not exist", "west/pve9: storage ceph is missing"} {
		g.Expect(err).To(MatchError(ContainSubstring(want)))
	}
}

// TestRequestMatchesOfferings checks that Choose places a type exactly where it is
// available.
func TestRequestMatchesOfferings(t *testing.T) {
	t.Parallel()
	v := newViewer()
	p, _ := newProvider(t, v)
	class := newNodeClassWithAllHosts()
	for _, it := range p.List(class, "") {
		for _, o := range it.Offerings {
			claim := newClaim("1m", "1Mi", requirement(corev1.LabelInstanceTypeStable, corev1.NodeSelectorOpIn, it.Name),
				requirement(corev1.LabelTopologyZone, corev1.NodeSelectorOpIn, o.Zone()))
			_, err := choose(v, p, class, claim)
			NewWithT(t).Expect(o.Available).To(Equal(err == nil), "%s on %s: available", it.Name, o.Zone())
		}
	}
}

func TestLabels(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	p, _ := newProvider(t, newViewer())
	class := newNodeClassWithAllHosts()
	labels := p.Labels(class, "t1.2VCPU-6GB", zone("east", "pve2"))
	for key, want := range map[string]string{
		corev1.LabelInstanceTypeStable: "t1.2VCPU-6GB", corev1.LabelArchStable: "amd64", corev1.LabelOSStable: "linux",
		corev1.LabelTopologyRegion: "east", corev1.LabelTopologyZone: "pve2", karpv1.CapacityTypeLabelKey: "on-demand",
		v1alpha1.LabelInstanceFamily: "t1", v1alpha1.LabelInstanceCPU: "2", v1alpha1.LabelInstanceMemory: "6144", v1alpha1.LabelInstanceCPUType: "x86-64-v2-AES", v1alpha1.LabelInstanceImageID: "902",
	} {
		g.Expect(labels[key]).To(Equal(want))
	}
	g.Expect(p.Labels(class, "nano", zone("east", "pve2"))).To(BeNil(), "a type that does not exist has labels")
	it, _ := p.Get(class, "t1.2VCPU-6GB")
	g.Expect(it).To(BeIdenticalTo(find(t, p.List(class, ""), "t1.2VCPU-6GB")))
	_, ok := p.Get(class, "nano")
	g.Expect(ok).To(BeFalse())
}

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

// TestRequestWithOverlay checks that a type planned with an overlay can be launched: the
// overlay's resources count, and its price decides which type is cheapest.
func TestRequestWithOverlay(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	p, _ := newProvider(t, newViewer())
	class := newNodeClassWithAllHosts()
	claim := newClaim("100m", "100Mi")
	claim.Spec.Resources.Requests["example.com/fuse"] = resource.MustParse("1")
	g.Expect(requestFor(p, class, claim).Options).To(BeEmpty(), "without the overlay")
	overlay := func(types []*cloudprovider.InstanceType) ([]*cloudprovider.InstanceType, error) {
		out := make([]*cloudprovider.InstanceType, 0, len(types))
		for _, it := range types {
			changed := &cloudprovider.InstanceType{Name: it.Name, Requirements: it.Requirements, Overhead: it.Overhead, Capacity: it.Capacity}
			changed.ApplyCapacityOverlay(corev1.ResourceList{"example.com/fuse": resource.MustParse("1")})
			for _, offering := range it.Offerings {
				price := offering.Price
				if it.Name == "m1.4VCPU-32GB" {
					price = 0.0001
				}
				changed.Offerings = append(changed.Offerings, &cloudprovider.Offering{Requirements: offering.Requirements, Price: price, Available: offering.Available})
			}
			out = append(out, changed)
		}
		return out, nil
	}
	request := must(p.Request(class, claim, instancetype.RequestOptions{Overlay: overlay}))
	g.Expect(request.Options[0].InstanceType).To(Equal("m1.4VCPU-32GB"), "want the cheapest type of the overlay first")
}
