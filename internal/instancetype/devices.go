// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package instancetype

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/placement"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// Devices maps extended resources to PCI mappings: a pod that requests "nvidia.com/gpu"
// gets a device of one of these mappings.
type Devices map[corev1.ResourceName][]string

// ParseDevices parses "gpu-a100=nvidia.com/gpu,gpu-t4=nvidia.com/gpu". Several mappings
// may provide one resource, but each mapping provides only one.
func ParseDevices(text string) (Devices, error) {
	devices := Devices{}
	seen := map[string]bool{}
	for entry := range strings.SplitSeq(text, ",") {
		if entry = strings.TrimSpace(entry); entry == "" {
			continue
		}
		mapping, name, ok := strings.Cut(entry, "=")
		if !ok || mapping == "" || !strings.Contains(name, "/") || !isResource(name) {
			return nil, fmt.Errorf("found %q, want <PCI mapping>=<resource>, for example gpu-a100=nvidia.com/gpu", entry)
		}
		if seen[mapping] {
			return nil, fmt.Errorf("found mapping %q twice, want one resource per mapping", mapping)
		}
		seen[mapping] = true
		devices[corev1.ResourceName(name)] = append(devices[corev1.ResourceName(name)], mapping)
	}
	for _, mappings := range devices {
		slices.Sort(mappings)
	}
	return devices, nil
}

// resources returns the resources in a fixed order.
func (d Devices) resources() []corev1.ResourceName { return slices.Sorted(maps.Keys(d)) }

// resourceOf returns the resource that a mapping provides; empty for none.
func (d Devices) resourceOf(mapping string) corev1.ResourceName {
	for name, mappings := range d {
		if slices.Contains(mappings, mapping) {
			return name
		}
	}
	return ""
}

// fixedDevices returns the mappings of a template, which its clones inherit, and those
// that the class adds, as one comparable string. A mapping that both have counts once.
// The number of mediated devices is unknown, so they are not planned.
func fixedDevices(config proxmox.VMConfig, added []v1alpha1.PCIDevice) string {
	var mappings []string
	for _, device := range config.HostDevices().PCI() {
		if device.Mapping != "" && device.Mediated == "" {
			mappings = append(mappings, device.Mapping)
		}
	}
	rest := slices.Clone(mappings)
	for _, device := range added {
		if n := slices.Index(rest, device.Mapping); n >= 0 {
			rest = slices.Delete(rest, n, n+1)
		} else if device.MDev == "" {
			mappings = append(mappings, device.Mapping)
		}
	}
	slices.Sort(mappings)
	return strings.Join(mappings, ",")
}

// deviceNeeds returns the devices that a type requires.
func (d Devices) deviceNeeds(t Type) []placement.DeviceNeed {
	var needs []placement.DeviceNeed
	for _, name := range d.resources() {
		if quantity, ok := t.Extra[name]; ok {
			needs = append(needs, placement.DeviceNeed{Resource: string(name), Mappings: d[name], Count: int(quantity.Value())})
		}
	}
	return needs
}

// deviceCount returns the number of devices that a type requires.
func (d Devices) deviceCount(t Type) int {
	n := 0
	for name := range d {
		if quantity, ok := t.Extra[name]; ok {
			n += int(quantity.Value())
		}
	}
	return n
}

// sharedResources returns the resources that the templates of all zones provide, so
// every type has them.
func (d Devices) sharedResources(zones []zone) corev1.ResourceList {
	var common map[corev1.ResourceName]int64
	for _, z := range zones {
		if !z.ready {
			continue
		}
		here := map[corev1.ResourceName]int64{}
		for _, mapping := range z.inherited() {
			if name := d.resourceOf(mapping); name != "" {
				here[name]++
			}
		}
		if common == nil {
			common = here
		}
		for name := range common {
			common[name] = min(common[name], here[name])
		}
	}
	list := corev1.ResourceList{}
	for name, n := range common {
		if n > 0 {
			list[name] = *resource.NewQuantity(n, resource.DecimalSI)
		}
	}
	return list
}

// WithDevices adds types with one device of each resource to a catalog: family g1, with
// 4 GiB per vCPU. It is meant for catalogs that were not read from a file.
func (c Catalog) WithDevices(devices Devices) (Catalog, error) {
	types := slices.Clone(c.types)
	for _, name := range devices.resources() {
		_, short, _ := strings.Cut(string(name), "/")
		for _, cpus := range []int{4, 8, 16} {
			memory := int64(cpus) * 4 * gib
			types = append(types, Type{
				Name: fmt.Sprintf("g1.%dVCPU-%dGB-%s", cpus, memory/gib, short), Family: "g1", CPUs: cpus, MemoryBytes: memory,
				Pods: defaultPods(memory), EphemeralBytes: defaultEphemeralBytes,
				Extra: corev1.ResourceList{name: *resource.NewQuantity(1, resource.DecimalSI)},
			})
		}
	}
	return NewCatalog(types)
}
