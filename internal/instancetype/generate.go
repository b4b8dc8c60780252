// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package instancetype

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/observed"
)

// hostParts are the numbers of equal VMs that fill a Host.
var hostParts = []int{1, 2, 3, 4, 6, 8, 12, 16}

// largeNodePods is the pod limit of Nodes with more than 16 vCPUs: 110 pods would leave
// a Node of 64 vCPUs mostly unused.
const largeNodePods = 250

// Generate returns a catalog for the given allocatable capacity of Hosts (after reserves
// and overcommitment): for each kind of Host the whole Host and its equal parts, so VMs
// of one type fill it without waste, and the default sizes that fit on some Host.
//
// The result is meant for a file, not for the running controller: a type that
// disappeared with its Host would cause the replacement of all Nodes of that type.
func Generate(hosts []observed.Amount) Catalog {
	sizes := map[observed.Amount]bool{}
	for _, host := range hosts {
		for _, n := range hostParts {
			part := observed.Amount{CPUs: host.CPUs / n, MemoryBytes: host.MemoryBytes / int64(n) / gib * gib}
			if part.CPUs > 0 && host.CPUs%n == 0 && part.MemoryBytes >= gib {
				sizes[part] = true
			}
		}
	}
	for _, t := range DefaultCatalog().Types() {
		if slices.ContainsFunc(hosts, func(host observed.Amount) bool { return t.CPUs <= host.CPUs && t.MemoryBytes <= host.MemoryBytes }) {
			sizes[observed.Amount{CPUs: t.CPUs, MemoryBytes: t.MemoryBytes}] = true
		}
	}
	c := Catalog{byName: map[string]int{}}
	for _, size := range sortedSizes(sizes) {
		t := sizedType(size)
		c.byName[t.Name] = len(c.types)
		c.types = append(c.types, t)
	}
	return c
}

func sortedSizes(sizes map[observed.Amount]bool) []observed.Amount {
	var all []observed.Amount
	for size := range sizes {
		all = append(all, size)
	}
	slices.SortFunc(all, func(a, b observed.Amount) int {
		return cmp.Or(cmp.Compare(a.CPUs, b.CPUs), cmp.Compare(a.MemoryBytes, b.MemoryBytes))
	})
	return all
}

// sizedType returns a type with a name like those of the default catalog, such as
// t1.3VCPU-9GB or e1.3VCPU-4864MB.
func sizedType(size observed.Amount) Type {
	family := familyOf("", size.CPUs, size.MemoryBytes)
	t := Type{
		Name: fmt.Sprintf("%s.%dVCPU-%dGB", family, size.CPUs, size.MemoryBytes/gib), Family: family,
		CPUs: size.CPUs, MemoryBytes: size.MemoryBytes, Pods: defaultPods(size.MemoryBytes), EphemeralBytes: defaultEphemeralBytes,
	}
	if size.MemoryBytes%gib != 0 {
		t.Name = fmt.Sprintf("%s.%dVCPU-%dMB", family, size.CPUs, size.MemoryBytes/mib)
	}
	if size.CPUs > 16 {
		t.Pods = largeNodePods
	}
	return t
}

// Encode encodes the catalog as an instance-types file for Load. Computed overhead is
// omitted.
func (c Catalog) Encode() ([]byte, error) {
	type entry struct {
		Name         string            `json:"name"`
		Capacity     map[string]string `json:"capacity"`
		CapacityType string            `json:"capacitytype,omitempty"`
	}
	entries := make([]entry, 0, len(c.types))
	for _, t := range c.types {
		e := entry{Name: t.Name, Capacity: map[string]string{
			"cpu": strconv.Itoa(t.CPUs), "memory": quantity(t.MemoryBytes), "pods": strconv.FormatInt(t.Pods, 10), "ephemeral-storage": quantity(t.EphemeralBytes),
		}}
		if t.Spot {
			e.CapacityType = t.capacityType()
		}
		for name, value := range t.Extra {
			e.Capacity[string(name)] = value.String()
		}
		entries = append(entries, e)
	}
	data, err := json.MarshalIndent(entries, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("encoding instance types: %w", err)
	}
	return append(data, '\n'), nil
}

func quantity(bytes int64) string {
	if bytes%gib == 0 {
		return strconv.FormatInt(bytes/gib, 10) + "Gi"
	}
	return strconv.FormatInt(bytes/mib, 10) + "Mi"
}
