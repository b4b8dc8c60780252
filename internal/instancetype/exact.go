// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package instancetype

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"sort"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"sigs.k8s.io/karpenter/pkg/cloudprovider"
	"sigs.k8s.io/karpenter/pkg/scheduling"
	"sigs.k8s.io/karpenter/pkg/utils/resources"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/observed"
)

// Defaults of spec.vmSize.
const (
	defaultMinMemory  = gib
	defaultMemoryStep = 256 * mib
)

// sizing is how the VMs of a NodeClass are sized. The scheduler of Karpenter selects from
// the types of the catalog. A VM of exact size then gets only the part of the selected type
// that the Claim needs.
type sizing struct {
	exact                bool
	min, max, step       observed.Amount // max 0 = no limit
	minPerCPU, maxPerCPU int64           // bytes; 0 = no limit
	headroomPercent      int64
}

// HasExactSizes reports whether the VMs of a NodeClass can have other sizes than the types.
func (p *Provider) HasExactSizes(nodeClass *v1alpha1.ProxmoxNodeClass) bool {
	return newSizing(nodeClass.Spec.VMSize, p.deps.VMSizePolicy, 0).exact
}

// newSizing returns the sizing of a NodeClass. The API server has validated the sizes.
func newSizing(spec v1alpha1.VMSizing, policy v1alpha1.VMSizePolicy, pageBytes int64) sizing {
	s := sizing{
		exact: cmp.Or(spec.Policy, policy) == v1alpha1.VMSizeExact,
		min:   amount(spec.Min, observed.Amount{CPUs: 1, MemoryBytes: defaultMinMemory}),
		max:   amount(spec.Max, observed.Amount{}),
		step:  amount(spec.Step, observed.Amount{CPUs: 1, MemoryBytes: defaultMemoryStep}),

		minPerCPU: bytes(spec.MemoryPerCPU.Min), maxPerCPU: bytes(spec.MemoryPerCPU.Max),
		headroomPercent: int64(spec.HeadroomPercent),
	}
	// Proxmox rejects memory that is not a multiple of the page size.
	if pageBytes > 0 {
		s.step.MemoryBytes = roundUp(s.step.MemoryBytes, pageBytes)
	}
	return s
}

func amount(size v1alpha1.VMSize, defaults observed.Amount) observed.Amount {
	return observed.Amount{CPUs: cmp.Or(int(size.CPU), defaults.CPUs), MemoryBytes: cmp.Or(bytes(size.Memory), defaults.MemoryBytes)}
}

// bytes returns 0 for a size that the API server would reject.
func bytes(size v1alpha1.MemorySize) int64 {
	n, err := size.Bytes()
	if err != nil {
		return 0
	}
	return n
}

func roundUp(n, step int64) int64 { return (n + step - 1) / step * step }

// excludedReason returns why the NodeClass excludes a type; empty if it does not.
func (s sizing) excludedReason(t Type) string {
	perCPU := t.MemoryBytes / int64(t.CPUs)
	switch {
	case t.CPUs < s.min.CPUs:
		return fmt.Sprintf("has fewer CPUs than spec.vmSize.min.cpu (%d)", s.min.CPUs)
	case t.MemoryBytes < s.min.MemoryBytes:
		return fmt.Sprintf("has less memory than spec.vmSize.min.memory (%s)", quantity(s.min.MemoryBytes))
	case s.max.CPUs > 0 && t.CPUs > s.max.CPUs:
		return fmt.Sprintf("has more CPUs than spec.vmSize.max.cpu (%d)", s.max.CPUs)
	case s.max.MemoryBytes > 0 && t.MemoryBytes > s.max.MemoryBytes:
		return fmt.Sprintf("has more memory than spec.vmSize.max.memory (%s)", quantity(s.max.MemoryBytes))
	case s.minPerCPU > 0 && perCPU < s.minPerCPU:
		return fmt.Sprintf("has less memory for each CPU than spec.vmSize.memoryPerCPU.min (%s)", quantity(s.minPerCPU))
	case s.maxPerCPU > 0 && perCPU > s.maxPerCPU:
		return fmt.Sprintf("has more memory for each CPU than spec.vmSize.memoryPerCPU.max (%s)", quantity(s.maxPerCPU))
	}
	return ""
}

// largerTypes returns types above the on-demand types of the catalog, up to the largest VM of the
// NodeClass: CPUs double from size to size.
func (s sizing) largerTypes(catalog Catalog) []Type {
	largest := observed.Amount{}
	for _, t := range catalog.Types() {
		if !t.Spot {
			largest.CPUs, largest.MemoryBytes = max(largest.CPUs, t.CPUs), max(largest.MemoryBytes, t.MemoryBytes)
		}
	}
	if !s.exact || largest.CPUs == 0 || (s.max.CPUs <= largest.CPUs && s.max.MemoryBytes <= largest.MemoryBytes) {
		return nil
	}
	limit := observed.Amount{CPUs: cmp.Or(s.max.CPUs, largest.CPUs), MemoryBytes: cmp.Or(s.max.MemoryBytes, largest.MemoryBytes)}
	sizes := map[observed.Amount]bool{}
	for cpus := min(largest.CPUs, limit.CPUs); ; cpus = min(2*cpus, limit.CPUs) {
		for _, perCPU := range []int64{2, 4, 8, 16} {
			size := observed.Amount{CPUs: cpus, MemoryBytes: min(int64(cpus)*perCPU*gib, limit.MemoryBytes)}
			if size.CPUs > largest.CPUs || size.MemoryBytes > largest.MemoryBytes {
				sizes[size] = true
			}
		}
		if cpus == limit.CPUs {
			break
		}
	}
	sizes[limit] = true
	var types []Type
	for _, size := range sortedSizes(sizes) {
		t := sizedType(size)
		if _, listed := catalog.byName[t.Name]; !listed && s.excludedReason(t) == "" {
			types = append(types, t)
		}
	}
	return types
}

// typesAndCorners returns the types that the NodeClass allows and, of the exact sizes that can
// be cut from each of them, those with the fewest or most CPUs and the least or most memory.
func (s sizing) typesAndCorners(catalog Catalog) []Type {
	var out []Type
	sizes := map[observed.Amount]bool{}
	for _, t := range append(slices.Clone(catalog.Types()), s.largerTypes(catalog)...) {
		if s.excludedReason(t) != "" {
			continue
		}
		out = append(out, t)
		if !s.canCut(t) {
			continue
		}
		for _, cpus := range []int{int(roundUp(int64(s.min.CPUs), int64(s.step.CPUs))), t.CPUs} {
			for _, memory := range []int64{roundUp(s.min.MemoryBytes, s.step.MemoryBytes), t.MemoryBytes} {
				sizes[s.withRatio(observed.Amount{CPUs: min(cpus, t.CPUs), MemoryBytes: min(memory, t.MemoryBytes)}, t)] = true
			}
		}
	}
	for _, size := range sortedSizes(sizes) {
		out = append(out, sizedType(size))
	}
	return out
}

// canCut reports whether VMs can have a part of the type. The name of an exact size contains
// neither a capacity type nor more than CPUs and memory.
func (s sizing) canCut(t Type) bool {
	return s.exact && !t.Spot && len(t.Extra) == 0 && !t.Overhead.isSpecified()
}

// exactName matches the names of sizedType, without the suffix for arm64.
var exactName = regexp.MustCompile(`^[a-z]1\.([1-9][0-9]{0,3})VCPU-([1-9][0-9]{0,7})(MB|GB)$`)

// parseSize returns the type of exact size with the name. It returns false if sizedType
// returns no such name.
func parseSize(name string) (Type, bool) {
	match := exactName.FindStringSubmatch(strings.TrimSuffix(name, arm64Suffix))
	if match == nil {
		return Type{}, false
	}
	unit := map[string]int64{"MB": mib, "GB": gib}[match[3]]
	cpus, _ := strconv.Atoi(match[1]) // the expression limits both numbers
	memory, _ := strconv.ParseInt(match[2], 10, 64)
	t := sizedType(observed.Amount{CPUs: cpus, MemoryBytes: memory * unit})
	if t.Name != strings.TrimSuffix(name, arm64Suffix) {
		return Type{}, false
	}
	t.Name = name
	return t, true
}

// fit returns the smallest VM for the requested resources that the sizing allows. It
// returns false if the VM would have the size of the type, or if the type has more than
// CPUs and memory, such as devices.
func (s sizing) fit(t Type, requests corev1.ResourceList, allocatable func(Type) corev1.ResourceList) (Type, bool) {
	if !s.canCut(t) || requests.Cpu().IsZero() && requests.Memory().IsZero() {
		return Type{}, false
	}
	needed := s.withHeadroom(requests, allocatable(t))
	size := observed.Amount{CPUs: t.CPUs, MemoryBytes: t.MemoryBytes}
	with := func(cpus int, memory int64, names ...corev1.ResourceName) bool {
		a := allocatable(sizedType(observed.Amount{CPUs: cpus, MemoryBytes: memory}))
		return !slices.ContainsFunc(names, func(name corev1.ResourceName) bool {
			return a.Name(name, resource.DecimalSI).Cmp(*needed.Name(name, resource.DecimalSI)) < 0
		})
	}
	cpuSteps := sort.Search(t.CPUs/s.step.CPUs, func(n int) bool {
		return with((n+1)*s.step.CPUs, t.MemoryBytes, corev1.ResourceCPU)
	})
	size.CPUs = min(t.CPUs, max((cpuSteps+1)*s.step.CPUs, int(roundUp(int64(s.min.CPUs), int64(s.step.CPUs)))))
	memorySteps := sort.Search(int(t.MemoryBytes/s.step.MemoryBytes), func(n int) bool {
		return with(size.CPUs, int64(n+1)*s.step.MemoryBytes, corev1.ResourceMemory, corev1.ResourcePods)
	})
	size.MemoryBytes = min(t.MemoryBytes, max(int64(memorySteps+1)*s.step.MemoryBytes, roundUp(s.min.MemoryBytes, s.step.MemoryBytes)))
	size = s.withRatio(size, t)
	exact := sizedType(size)
	exact.EphemeralBytes = t.EphemeralBytes
	if strings.HasSuffix(t.Name, arm64Suffix) {
		exact.Name += arm64Suffix
	}
	return exact, exact.Name != t.Name && resources.Fits(requests, allocatable(exact))
}

// withRatio returns the size with the memory for each CPU that the sizing allows, at most
// that of the type.
func (s sizing) withRatio(size observed.Amount, t Type) observed.Amount {
	size.MemoryBytes = min(t.MemoryBytes, max(size.MemoryBytes, roundUp(int64(size.CPUs)*s.minPerCPU, s.step.MemoryBytes)))
	if s.maxPerCPU > 0 {
		cpus := roundUp((size.MemoryBytes+s.maxPerCPU-1)/s.maxPerCPU, int64(s.step.CPUs))
		size.CPUs = min(t.CPUs, max(size.CPUs, int(cpus)))
	}
	return size
}

// withHeadroom adds the headroom to CPU and memory, at most what is allocatable.
func (s sizing) withHeadroom(requests, allocatable corev1.ResourceList) corev1.ResourceList {
	needed := corev1.ResourceList{}
	for name, quantity := range requests {
		if name == corev1.ResourceCPU || name == corev1.ResourceMemory {
			limit := allocatable[name]
			quantity = *resource.NewMilliQuantity(min(quantity.MilliValue()*(100+s.headroomPercent)/100, limit.MilliValue()), quantity.Format)
		}
		needed[name] = quantity
	}
	return needed
}

func (o Overhead) isSpecified() bool {
	return o.KubeReserved != nil || o.SystemReserved != nil || o.EvictionThreshold != nil
}

// exactSizes are the exact sizes for a Claim that were computed for some types.
type exactSizes []Type

// partOf returns a size that is a part of the type too, for the same architecture. The size that
// would be computed for the type is not smaller: a larger type only allows more.
func (s exactSizes) partOf(v variant) (Type, bool) {
	n := slices.IndexFunc(s, func(t Type) bool {
		return t.CPUs <= v.CPUs && t.MemoryBytes <= v.MemoryBytes && t.EphemeralBytes == v.EphemeralBytes && t.Name != v.Name &&
			strings.HasSuffix(t.Name, arm64Suffix) == strings.HasSuffix(v.Name, arm64Suffix)
	})
	if n < 0 {
		return Type{}, false
	}
	return s[n], true
}

// exactSize returns the VM of exact size for a Claim that may get the type. It returns
// false if the Claim gets the type itself. A type that a NodeOverlay changes keeps its size,
// because the NodeOverlay does not include the exact one. Computed sizes are added to known.
func (p *Provider) exactSize(l *list, v variant, it *cloudprovider.InstanceType, requirements scheduling.Requirements, requests corev1.ResourceList, known *exactSizes) (Type, bool) {
	if it.IsPricingOverlayApplied() || it.IsCapacityOverlayApplied() || !l.params.sizing.canCut(v.Type) {
		return Type{}, false
	}
	if t, ok := known.partOf(v); ok {
		return t, true
	}
	t, ok := l.params.sizing.fit(v.Type, requests, func(t Type) corev1.ResourceList {
		capacity, overhead := p.resources(l.params, t)
		for name, quantity := range it.Capacity {
			if _, ok := capacity[name]; !ok {
				capacity[name] = quantity // a device of the template
			}
		}
		return (&cloudprovider.InstanceType{Capacity: capacity, Overhead: overhead}).Allocatable()
	})
	if !ok || l.params.kubelet.For(t.CPUs, t.MemoryBytes).err != nil || p.checkKubeletSize(l.params, t) != nil {
		return Type{}, false
	}
	labels := t.labels()
	// The requirement lists the types that core selected, which this size is a part of. Another
	// type of the catalog may be excluded.
	if p.isExactSize(t.Name) {
		delete(labels, corev1.LabelInstanceTypeStable)
	}
	if !requirements.IsCompatible(scheduling.NewLabelRequirements(labels), scheduling.AllowUndefinedWellKnownLabels) {
		return Type{}, false
	}
	*known = append(*known, t)
	return t, true
}

// priceRatio returns the price of an exact size relative to that of the variant.
func (p *Provider) priceRatio(exact Type, v variant) float64 {
	if v.price == 0 {
		return 0
	}
	return p.deps.Pricing.Price(exact, 0) / v.price
}
