// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package instancetype

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
)

const (
	mib = int64(1) << 20
	gib = int64(1) << 30
)

// Type is an instance type: a size of VM.
type Type struct {
	Name   string
	Family string
	// Spot is set if Nodes of the type are spot capacity, at half of the price. VMs are not reclaimed.
	Spot bool
	// CPUs and MemoryBytes are those of the VM, before any overhead.
	CPUs        int
	MemoryBytes int64
	Pods        int64
	// EphemeralBytes is the minimum size of the boot disk.
	EphemeralBytes int64
	// Extra are the hugepages and extended resources of the Node.
	Extra corev1.ResourceList
	// Overhead is the specified overhead; nil parts are computed.
	Overhead Overhead
}

// capacityType returns Karpenter's capacity type of Nodes of the type.
func (t Type) capacityType() string {
	if t.Spot {
		return karpv1.CapacityTypeSpot
	}
	return karpv1.CapacityTypeOnDemand
}

// Overhead is the part of a Node's capacity that is not available to pods.
type Overhead struct {
	KubeReserved      corev1.ResourceList
	SystemReserved    corev1.ResourceList
	EvictionThreshold corev1.ResourceList
}

// Catalog is an ordered set of types. The zero value is empty.
type Catalog struct {
	types  []Type
	byName map[string]int
}

// NewCatalog returns a catalog of the types. It returns an error if a name is duplicate.
func NewCatalog(types []Type) (Catalog, error) {
	c := Catalog{types: types, byName: make(map[string]int, len(types))}
	for n, t := range types {
		if first, twice := c.byName[t.Name]; twice {
			return Catalog{}, fmt.Errorf("[%d].name: found %q again, which entry %d already has", n, t.Name, first)
		}
		c.byName[t.Name] = n
	}
	return c, nil
}

// Types returns the types in order. The slice must not be modified.
func (c Catalog) Types() []Type { return c.types }

// Get returns the type with the name, which may be that of a variant for arm64, or of an
// exact size that the catalog does not list. It returns false if there is none.
func (c Catalog) Get(name string) (Type, bool) {
	n, ok := c.byName[name]
	if size, isVariant := strings.CutSuffix(name, arm64Suffix); !ok && isVariant {
		n, ok = c.byName[size]
	}
	if !ok {
		return parseSize(name)
	}
	t := c.types[n]
	t.Name = name
	return t, true
}

// DefaultCatalog returns 20 types: 1 to 16 vCPUs with 2, 3, 4 or 8 GiB each.
func DefaultCatalog() Catalog {
	c := Catalog{byName: map[string]int{}}
	for _, cpus := range []int{1, 2, 4, 8, 16} {
		for _, ratio := range []int{2, 3, 4, 8} {
			memory := cpus * ratio
			t := Type{
				Name:           fmt.Sprintf("%s.%dVCPU-%dGB", familyByRatio(ratio), cpus, memory),
				Family:         familyByRatio(ratio),
				CPUs:           cpus,
				MemoryBytes:    int64(memory) * gib,
				Pods:           defaultPods(int64(memory) * gib),
				EphemeralBytes: defaultEphemeralBytes,
			}
			c.byName[t.Name] = len(c.types)
			c.types = append(c.types, t)
		}
	}
	return c
}

// defaultEphemeralBytes is the boot disk of a type that specifies none.
const defaultEphemeralBytes = 30 * gib

// defaultPods limits the pods of small VMs by their memory.
func defaultPods(memoryBytes int64) int64 {
	switch {
	case memoryBytes <= gib:
		return 32
	case memoryBytes <= 2*gib:
		return 64
	}
	return 110
}

// familyByRatio returns the family for a number of GiB per vCPU.
func familyByRatio(ratio int) string {
	switch ratio {
	case 2:
		return "c1"
	case 3:
		return "t1"
	case 4:
		return "s1"
	case 8:
		return "m1"
	case 16:
		return "x1"
	}
	return "e1"
}

// familyOf returns the part of a name before the first dot ("t1.2VCPU-6GB"), else the
// family for its GiB per vCPU.
func familyOf(name string, cpus int, memoryBytes int64) string {
	if family, _, ok := strings.Cut(name, "."); ok && family != "" {
		return family
	}
	if memoryBytes%(int64(cpus)*gib) != 0 {
		return familyByRatio(0)
	}
	return familyByRatio(int(memoryBytes / gib / int64(cpus)))
}
