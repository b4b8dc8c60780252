// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package instancetype

import (
	"maps"
	"math"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
)

// Terms of the estimate, fitted to the guests in docs/real-guests.md with a margin.
const (
	// memoryOverheadBase is what firmware and kernel use regardless of the VM's size.
	memoryOverheadBase = 56 * mib
	// memoryOverheadDivisor is for what Linux uses for each page: 2 % of the memory.
	memoryOverheadDivisor = 50
	// memoryOverheadPerCPU is what Linux uses for each CPU.
	memoryOverheadPerCPU = mib / 4
	// bounceBuffers is what Linux reserves if the VM has memory above 4 GiB. QEMU's q35
	// places memory there if the VM has minSplitMemory or more.
	bounceBuffers  = 64 * mib
	minSplitMemory = 2816 * mib
)

// memoryEstimate estimates the memory of a VM that its Node does not report.
type memoryEstimate struct {
	// percent is the fraction that is specified in the settings; nil = the fitted estimate.
	percent *float64
}

func (e memoryEstimate) overhead(cpus int, memory int64) int64 {
	if e.percent != nil {
		return memory - int64(float64(memory)*(1-*e.percent))
	}
	overhead := memoryOverheadBase + memory/memoryOverheadDivisor + int64(cpus)*memoryOverheadPerCPU
	if memory >= minSplitMemory {
		overhead += bounceBuffers
	}
	return overhead
}

// memoryModel is what Nodes reported about the images of a NodeClass's templates.
type memoryModel struct {
	// images has an entry without sizes for an image that no Node has reported yet.
	images []v1alpha1.MemoryOverhead
}

// newMemoryModel returns the model of the templates in the zones.
func newMemoryModel(zones []zone, observed []v1alpha1.MemoryOverhead) memoryModel {
	var m memoryModel
	seen := map[guestKey]bool{}
	for _, z := range zones {
		if z.guest == (guestKey{}) || seen[z.guest] {
			continue
		}
		seen[z.guest] = true
		image := z.guest.newOverhead()
		if n := z.guest.indexIn(observed); n >= 0 {
			image = *observed[n].DeepCopy()
		}
		m.images = append(m.images, image)
	}
	return m
}

// sameMemoryOverhead is faster than reflect.DeepEqual, which matters for each use of a list.
func sameMemoryOverhead(a, b v1alpha1.MemoryOverhead) bool {
	return a.Image == b.Image && a.BIOS == b.BIOS && a.Machine == b.Machine && slices.Equal(a.Sizes, b.Sizes) && slices.Equal(a.Hugepages, b.Hugepages)
}

// overhead returns the memory of a VM that its Node does not report. If the class has
// several images, it is that of the image with the most.
func (m memoryModel) overhead(t Type, estimate memoryEstimate) int64 {
	if len(m.images) == 0 {
		return estimate.overhead(t.CPUs, t.MemoryBytes)
	}
	overhead := int64(0)
	for _, image := range m.images {
		overhead = max(overhead, predictOverhead(image.Sizes, t, estimate))
	}
	return overhead
}

// predictOverhead corrects the estimate by what Nodes of an image reported. The result is
// at least the overhead of Nodes of the same or a smaller size. It is at most that of
// Nodes with at least as much memory, because the overhead grows with the memory. Where the
// estimate was too low, the difference is added for all other sizes.
func predictOverhead(sizes []v1alpha1.MemoryOverheadSize, t Type, estimate memoryEstimate) int64 {
	estimated := estimate.overhead(t.CPUs, t.MemoryBytes)
	bucket := sizeBucket(t.MemoryBytes / mib)
	atLeast, atMost, excess := int64(0), int64(math.MaxInt64), int64(0)
	for _, size := range sizes {
		memory, observed := size.MemoryMiB*mib, size.OverheadMiB*mib+int64(t.CPUs)*memoryOverheadPerCPU
		excess = max(excess, observed-estimate.overhead(t.CPUs, memory))
		if sizeBucket(size.MemoryMiB) <= bucket {
			atLeast = max(atLeast, observed)
		}
		if memory >= t.MemoryBytes {
			atMost = min(atMost, observed)
		}
	}
	corrected := min(estimated+excess, max(estimated, t.MemoryBytes/maxOverheadDivisor))
	return min(t.MemoryBytes, max(atLeast, min(corrected, atMost)))
}

// hugepages returns the hugepages of the type, at most those that its Nodes reported.
func (m memoryModel) hugepages(t Type) corev1.ResourceList {
	list := corev1.ResourceList{}
	for name, quantity := range t.Extra {
		if !strings.HasPrefix(string(name), corev1.ResourceHugePagesPrefix) {
			continue
		}
		for _, image := range m.images {
			for _, observed := range image.Hugepages {
				if reported := observed.MemoryMiB * mib; observed.InstanceType == t.Name && observed.Resource == string(name) && reported < quantity.Value() {
					quantity = *resource.NewQuantity(reported, resource.BinarySI)
				}
			}
		}
		list[name] = quantity
	}
	return list
}

// Sizes outside of these share a bucket with the nearest.
const (
	minBucketMiB = 512
	maxBucketMiB = 16 << 20
)

// sizeBucket returns which sizes of VMs are recorded together: there are four buckets
// between a power of two and the next, each including its upper bound. It limits the
// number of sizes to v1alpha1.MaxMemoryOverheadSizes.
func sizeBucket(memoryMiB int64) int {
	memory := max(minBucketMiB, min(memoryMiB, maxBucketMiB))
	lower, power := int64(minBucketMiB/2), 0
	for 2*lower < memory {
		lower, power = 2*lower, power+1
	}
	return 4*power + int((4*(memory-lower)+lower-1)/lower)
}

// withSize returns the sizes with the overhead of another VM.
func withSize(sizes []v1alpha1.MemoryOverheadSize, size v1alpha1.MemoryOverheadSize) []v1alpha1.MemoryOverheadSize {
	byBucket := map[int]v1alpha1.MemoryOverheadSize{}
	for _, s := range append(slices.Clip(sizes), size) {
		known := byBucket[sizeBucket(s.MemoryMiB)]
		byBucket[sizeBucket(s.MemoryMiB)] = v1alpha1.MemoryOverheadSize{
			MemoryMiB: max(known.MemoryMiB, s.MemoryMiB), OverheadMiB: max(known.OverheadMiB, s.OverheadMiB),
		}
	}
	out := make([]v1alpha1.MemoryOverheadSize, 0, len(byBucket))
	for _, bucket := range slices.Sorted(maps.Keys(byBucket)) {
		out = append(out, byBucket[bucket])
	}
	return out
}
