// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package instancetype

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
)

// shares are the parts that Hosts are divided into: so many equal VMs fill one.
var shares = []int{1, 2, 3, 4, 6, 8, 12, 16}

// largeNodePods keeps large Nodes useful: 110 pods leave a Node of 64 vCPUs empty.
const largeNodePods = 250

// Generate makes a catalogue that fits these Hosts: of each kind of Host the whole
// and its equal parts, so that VMs of one type fill it without waste, and of the
// default sizes those that some Host can take. What a Host can give is what is
// allocatable there, reserves and overcommit counted.
//
// It is made for a file, not for the running controller: a type that vanished with
// its Host would take all Nodes of that type with it.
func Generate(hosts []inventory.Amount) Catalog {
	sizes := map[inventory.Amount]bool{}
	for _, host := range hosts {
		for _, n := range shares {
			part := inventory.Amount{CPUs: host.CPUs / n, MemoryBytes: host.MemoryBytes / int64(n) / gib * gib}
			if part.CPUs > 0 && host.CPUs%n == 0 && part.MemoryBytes >= gib {
				sizes[part] = true
			}
		}
	}
	for _, t := range DefaultCatalog().Types() {
		if slices.ContainsFunc(hosts, func(host inventory.Amount) bool { return t.CPUs <= host.CPUs && t.MemoryBytes <= host.MemoryBytes }) {
			sizes[inventory.Amount{CPUs: t.CPUs, MemoryBytes: t.MemoryBytes}] = true
		}
	}
	c := Catalog{byName: map[string]int{}}
	for _, size := range sorted(sizes) {
		t := sizedType(size)
		c.byName[t.Name] = len(c.types)
		c.types = append(c.types, t)
	}
	return c
}

func sorted(sizes map[inventory.Amount]bool) []inventory.Amount {
	var all []inventory.Amount
	for size := range sizes {
		all = append(all, size)
	}
	slices.SortFunc(all, func(a, b inventory.Amount) int {
		return cmp.Or(cmp.Compare(a.CPUs, b.CPUs), cmp.Compare(a.MemoryBytes, b.MemoryBytes))
	})
	return all
}

// sizedType names a size as the default catalogue does.
func sizedType(size inventory.Amount) Type {
	family := familyOf("", size.CPUs, size.MemoryBytes)
	t := Type{
		Name: fmt.Sprintf("%s.%dVCPU-%dGB", family, size.CPUs, size.MemoryBytes/gib), Family: family,
		CPUs: size.CPUs, MemoryBytes: size.MemoryBytes, Pods: defaultPods(size.MemoryBytes), EphemeralBytes: defaultEphemeralBytes,
	}
	if size.CPUs > 16 {
		t.Pods = largeNodePods
	}
	return t
}

// Encode writes the catalogue as an instance-types file, which Load reads. Computed
// overhead is left out: it is computed again.
func (c Catalog) Encode() ([]byte, error) {
	type entry struct {
		Name     string            `json:"name"`
		Capacity map[string]string `json:"capacity"`
	}
	entries := make([]entry, 0, len(c.types))
	for _, t := range c.types {
		e := entry{Name: t.Name, Capacity: map[string]string{
			"cpu": strconv.Itoa(t.CPUs), "memory": quantity(t.MemoryBytes), "pods": strconv.FormatInt(t.Pods, 10), "ephemeral-storage": quantity(t.EphemeralBytes),
		}}
		for name, value := range t.Extra {
			e.Capacity[string(name)] = value.String()
		}
		entries = append(entries, e)
	}
	data, err := json.MarshalIndent(entries, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("writing the instance types, %w", err)
	}
	return append(data, '\n'), nil
}

func quantity(bytes int64) string {
	if bytes%gib == 0 {
		return strconv.FormatInt(bytes/gib, 10) + "Gi"
	}
	return strconv.FormatInt(bytes/mib, 10) + "Mi"
}
