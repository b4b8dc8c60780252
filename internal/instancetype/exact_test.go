// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package instancetype_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/cloudprovider"
	"sigs.k8s.io/karpenter/pkg/utils/resources"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instancetype"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

func newExactProvider(v instancetype.Viewer) *instancetype.Provider {
	return must(instancetype.New(instancetype.Deps{Inventory: v, Pricing: pricing(), VMMemoryOverheadPercent: new(0.075), VMSizePolicy: v1alpha1.VMSizeExact}))
}

func TestExactSize(t *testing.T) {
	t.Parallel()
	overlaid := func(types []*cloudprovider.InstanceType) ([]*cloudprovider.InstanceType, error) {
		var out []*cloudprovider.InstanceType
		for _, it := range types {
			changed := &cloudprovider.InstanceType{Name: it.Name, Requirements: it.Requirements, Offerings: it.Offerings, Capacity: it.Capacity.DeepCopy(), Overhead: it.Overhead}
			changed.ApplyCapacityOverlay(corev1.ResourceList{"example.com/device": resource.MustParse("1")})
			out = append(out, changed)
		}
		return out, nil
	}
	for name, c := range map[string]struct {
		sizing      v1alpha1.VMSizing
		cpu, memory string
		requires    []karpv1.NodeSelectorRequirementWithMinValues
		options     instancetype.RequestOptions
		want        string
	}{
		"small":           {cpu: "100m", memory: "100Mi", want: "e1.1VCPU-1GB"},
		"CPU":             {cpu: "2500m", memory: "3Gi", want: "e1.3VCPU-4GB"},
		"memory":          {cpu: "500m", memory: "10Gi", want: "e1.1VCPU-12GB"},
		"reserved_CPU":    {cpu: "2", memory: "1Gi", want: "e1.3VCPU-1792MB"},
		"whole_type":      {cpu: "900m", memory: "1300Mi", want: "c1.1VCPU-2GB"},
		"minimum":         {sizing: v1alpha1.VMSizing{Min: v1alpha1.VMSize{CPU: 2, Memory: "3Gi"}}, cpu: "100m", memory: "100Mi", want: "e1.2VCPU-3GB"},
		"maximum":         {sizing: v1alpha1.VMSizing{Max: v1alpha1.VMSize{CPU: 2}}, cpu: "3", memory: "1Gi", want: ""},
		"steps":           {sizing: v1alpha1.VMSizing{Step: v1alpha1.VMSize{CPU: 2, Memory: "2Gi"}}, cpu: "2500m", memory: "3Gi", want: "e1.4VCPU-4GB"},
		"least_memory":    {sizing: v1alpha1.VMSizing{MemoryPerCPU: v1alpha1.MemoryRange{Min: "3Gi"}}, cpu: "2500m", memory: "1Gi", want: "t1.3VCPU-9GB"},
		"most_memory":     {sizing: v1alpha1.VMSizing{MemoryPerCPU: v1alpha1.MemoryRange{Max: "4Gi"}}, cpu: "100m", memory: "9Gi", want: "e1.3VCPU-11008MB"},
		"headroom":        {sizing: v1alpha1.VMSizing{HeadroomPercent: 50}, cpu: "2500m", memory: "4Gi", want: "e1.4VCPU-7680MB"},
		"by_class":        {sizing: v1alpha1.VMSizing{Policy: v1alpha1.VMSizeInstanceType}, cpu: "2500m", memory: "3Gi", want: "c1.4VCPU-8GB"},
		"fixed":           {options: instancetype.RequestOptions{FixedSize: true}, cpu: "2500m", memory: "3Gi", want: "c1.4VCPU-8GB"},
		"overlay":         {options: instancetype.RequestOptions{Overlay: overlaid}, cpu: "2500m", memory: "3Gi", want: "c1.4VCPU-8GB"},
		"listed_types":    {requires: []karpv1.NodeSelectorRequirementWithMinValues{requirement(corev1.LabelInstanceTypeStable, corev1.NodeSelectorOpIn, "s1.4VCPU-16GB")}, cpu: "2500m", memory: "3Gi", want: "e1.3VCPU-4GB"},
		"CPU_requirement": {requires: []karpv1.NodeSelectorRequirementWithMinValues{requirement(v1alpha1.LabelInstanceCPU, corev1.NodeSelectorOpIn, "4", "8")}, cpu: "2500m", memory: "3Gi", want: "c1.4VCPU-8GB"},
		"family":          {requires: []karpv1.NodeSelectorRequirementWithMinValues{requirement(v1alpha1.LabelInstanceFamily, corev1.NodeSelectorOpIn, "t1")}, cpu: "2500m", memory: "3Gi", want: "t1.4VCPU-12GB"},
		"beyond_catalog":  {sizing: v1alpha1.VMSizing{Max: v1alpha1.VMSize{CPU: 40, Memory: "256Gi"}}, cpu: "30", memory: "30Gi", want: "e1.31VCPU-35072MB"},
	} {
		p, class := newExactProvider(newViewer()), newNodeClassWithAllHosts()
		class.Spec.VMSize = c.sizing
		got := ""
		if request := must(p.Request(class, newClaim(c.cpu, c.memory, c.requires...), c.options)); len(request.Options) > 0 {
			got = request.Options[0].InstanceType
		}
		NewWithT(t).Expect(got).To(Equal(c.want), "%s: %s CPUs and %s memory become a", name, c.cpu, c.memory)
	}
}

// TestExactSizeBeyondOnDemand checks that an on-demand VM may be larger than all on-demand types also if
// a spot type is as large.
func TestExactSizeBeyondOnDemand(t *testing.T) {
	t.Parallel()
	const spot = `{"name": "%s", "capacity": {"cpu": "32", "memory": "64Gi"}, "capacitytype": "spot"}`
	class := newNodeClassWithAllHosts()
	class.Spec.VMSize = v1alpha1.VMSizing{Policy: v1alpha1.VMSizeExact, Max: v1alpha1.VMSize{CPU: 32, Memory: "64Gi"}}
	claim := newClaim("15", "1Gi", requirement(karpv1.CapacityTypeLabelKey, corev1.NodeSelectorOpIn, karpv1.CapacityTypeOnDemand))
	for name, c := range map[string]struct {
		file string
		want int
	}{
		"both":           {`[{"name": "small", "capacity": {"cpu": "8", "memory": "32Gi"}}, ` + fmt.Sprintf(spot, "large-spot") + `]`, 16},
		"name_of_a_size": {`[{"name": "small", "capacity": {"cpu": "8", "memory": "32Gi"}}, ` + fmt.Sprintf(spot, "c1.32VCPU-64GB") + `]`, 16},
		"only_spot":      {`[` + fmt.Sprintf(spot, "large-spot") + `]`, 0},
	} {
		p := must(instancetype.New(instancetype.Deps{Inventory: newViewer(), Pricing: pricing(), Catalog: must(instancetype.Parse([]byte(c.file)))}))
		names, cpus := map[string]bool{}, 0
		for _, it := range p.List(class, "") {
			NewWithT(t).Expect(names[it.Name]).To(BeFalse(), "%s: two types have the name %s", name, it.Name)
			names[it.Name] = true
		}
		if request := requestFor(p, class, claim); len(request.Options) > 0 {
			cpus = request.Options[0].Need.CPUs
		}
		NewWithT(t).Expect(cpus).To(Equal(c.want), name)
	}
}

// TestExactSizeHoldsRequests checks that the VM of exact size holds what the Claim requests,
// that a smaller one does not, and that no instance type is cheaper.
func TestExactSizeHoldsRequests(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	p, class := newExactProvider(newViewer()), newNodeClassWithAllHosts()
	random := rand.New(rand.NewPCG(18, 18))
	for range 300 {
		claim := newClaim(fmt.Sprintf("%dm", 1+random.IntN(15000)), fmt.Sprintf("%dMi", 1+random.IntN(100000)))
		claim.Spec.Resources.Requests[corev1.ResourcePods] = *resource.NewQuantity(int64(1+random.IntN(100)), resource.DecimalSI)
		requests := claim.Spec.Resources.Requests
		exact := requestFor(p, class, claim).Options[0]
		it, ok := p.Get(class, exact.InstanceType)
		g.Expect(ok).To(BeTrue(), "no instance type %s", exact.InstanceType)
		g.Expect(resources.Fits(requests, it.Allocatable())).To(BeTrue(),
			"%s has %s for pods, want %s", it.Name, resources.String(it.Allocatable()), resources.String(requests))
		g.Expect(it.Capacity.Cpu().Value()).To(Equal(int64(exact.Need.CPUs)), "%s reports", it.Name)
		for _, smaller := range []string{sizeName(exact.Need.CPUs-1, exact.Need.MemoryBytes), sizeName(exact.Need.CPUs, exact.Need.MemoryBytes-gib/4)} {
			other, ok := p.Get(class, smaller)
			if ok && exact.Need.MemoryBytes > gib && resources.Fits(requests, other.Allocatable()) {
				t.Errorf("a %s would hold %s, found %s", smaller, resources.String(requests), it.Name)
			}
		}
	}
}

// sizeName returns a name with the family for sizes that are not whole GiB per vCPU, or
// that of a size in the catalog; only the former is checked.
func sizeName(cpus int, memory int64) string { return fmt.Sprintf("e1.%dVCPU-%dMB", cpus, memory>>20) }

// nodesOfTypes returns a function that reads the Claims of Nodes of these types.
func nodesOfTypes(names ...string) func() ([]karpv1.NodeClaim, error) {
	claims := make([]karpv1.NodeClaim, len(names))
	for n, name := range names {
		claims[n].Labels = map[string]string{corev1.LabelInstanceTypeStable: name}
	}
	return func() ([]karpv1.NodeClaim, error) { return claims, nil }
}

// TestSizesInUse checks that the sizes of existing Nodes are listed with a price, but offered only
// where no larger type fits, and that the other types keep their objects.
func TestSizesInUse(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	const name = "e1.3VCPU-4352MB"
	p, class := newExactProvider(newViewer()), newNodeClassWithAllHosts()
	before := p.List(class, "")
	g.Expect(p.RefreshNodes(nodesOfTypes(name, "c1.1VCPU-2GB", "m5.large", "e1.2VCPU-4GB"))).To(Succeed())
	after := p.List(class, "")
	g.Expect(after).To(HaveLen(len(before) + 1))
	g.Expect(before).To(Equal(after[:len(before)]))
	it := find(t, after, name)
	g.Expect(it.Offerings).To(HaveEach(HaveField("Price", BeNumerically(">", 0))))
	g.Expect(offered(it)).To(Equal("!pve1 !pve2 !pve9"))
	g.Expect(it.Capacity.Cpu().Value()).To(BeEquivalentTo(3))
	// As of a static NodePool.
	for _, claim := range []*karpv1.NodeClaim{newClaim("0", "0"), newClaim("0", "0", requirement(corev1.LabelInstanceTypeStable, corev1.NodeSelectorOpExists))} {
		request := must(p.Request(class, claim, instancetype.RequestOptions{FixedSize: true}))
		g.Expect(request.Options).NotTo(ContainElement(HaveField("InstanceType", name)), "the claim lists no types")
	}
}

func TestSizesInUseOnFullHost(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	const name = "e1.3VCPU-4352MB"
	v, class := newViewer(), newNodeClassWithAllHosts()
	p := newExactProvider(v)
	g.Expect(p.RefreshNodes(nodesOfTypes(name))).To(Succeed())
	v.change(func(r map[string]*proxmox.Resources) {
		r["east"].Guests = append(r["east"].Guests, guest(100, "pve1", 13))
	})
	g.Expect(offers(t, p, class, name)).To(Equal("pve1 !pve2 !pve9"))
	listed := requirement(corev1.LabelInstanceTypeStable, corev1.NodeSelectorOpIn, name)
	g.Expect(requestFor(p, class, newClaim("2500m", "1Gi", listed)).Options).To(ContainElement(HaveField("InstanceType", name)))
	g.Expect(p.UnavailableReasons(class, name)[zone("east", "pve2")]).To(ContainSubstring("a larger instance type is available"))
}

func TestExcludedTypes(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	p, class := newExactProvider(newViewer()), newNodeClassWithAllHosts()
	class.Spec.VMSize = v1alpha1.VMSizing{Min: v1alpha1.VMSize{CPU: 2}, Max: v1alpha1.VMSize{Memory: "16Gi"}, MemoryPerCPU: v1alpha1.MemoryRange{Max: "4Gi"}}
	var offered []string
	for _, it := range p.List(class, "") {
		if len(it.Offerings.Available()) > 0 {
			offered = append(offered, it.Name)
		}
	}
	g.Expect(strings.Join(offered, " ")).To(Equal("c1.2VCPU-4GB t1.2VCPU-6GB s1.2VCPU-8GB c1.4VCPU-8GB t1.4VCPU-12GB s1.4VCPU-16GB c1.8VCPU-16GB"))
	reason := p.UnavailableReasons(class, "m1.2VCPU-16GB")[zone("east", "pve1")]
	g.Expect(reason).To(Equal("instance type m1.2VCPU-16GB has more memory for each CPU than spec.vmSize.memoryPerCPU.max (4Gi)"))
	class.Spec.VMSize = v1alpha1.VMSizing{Min: v1alpha1.VMSize{CPU: 64}}
	g.Expect(p.CheckCapacity(class)).To(MatchError(ContainSubstring("instance type c1.1VCPU-2GB has fewer CPUs than spec.vmSize.min.cpu (64)")),
		"no type is allowed")
}
