// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"slices"
	"strings"
)

// DeviceNeed is a number of PCI devices of one extended resource.
type DeviceNeed struct {
	// Resource is the name in pod requests, for example "nvidia.com/gpu".
	Resource string
	// Mappings are the Cluster's PCI mappings that provide such devices.
	Mappings []string
	Count    int
}

// checkDevices checks whether the Host has all requested devices free.
func checkDevices(s *zoneState, need *Need, addReason reasonFunc) bool {
	if len(need.Devices) == 0 && len(s.inherited) == 0 {
		return true
	}
	_, missing, ok := assignDevices(s.host.FreeDevices, s.inherited, need.Devices)
	if ok || addReason == nil {
		return ok
	}
	free, known := 0, false
	for _, mapping := range missing.Mappings {
		n, ok := s.host.FreeDevices[mapping]
		free, known = free+n, known || ok
	}
	if !known {
		addReason("no device of mapping %s, or the token lacks Mapping.Use on /mapping/pci", strings.Join(missing.Mappings, " or "))
	} else {
		addReason("%d %s free (mapping %s), %d requested", free, missing.Resource, strings.Join(missing.Mappings, " or "), missing.Count)
	}
	return false
}

// assignDevices picks a mapping for each device: first those that the template inherits,
// then, until each need is met, the matching mapping with the most free devices. If a
// need cannot be met, it returns that need and false.
func assignDevices(free map[string]int, inherited []string, needs []DeviceNeed) (mappings []string, missing DeviceNeed, ok bool) {
	taken := map[string]int{}
	for _, mapping := range inherited {
		if taken[mapping]++; taken[mapping] > free[mapping] {
			return nil, DeviceNeed{Resource: "devices", Mappings: []string{mapping}, Count: taken[mapping]}, false
		}
	}
	mappings = slices.Clone(inherited)
	for _, need := range needs {
		count := need.Count
		for _, mapping := range inherited {
			if slices.Contains(need.Mappings, mapping) {
				count--
			}
		}
		for range count {
			best := ""
			for _, mapping := range need.Mappings {
				left := free[mapping] - taken[mapping]
				if left > 0 && (best == "" || left > free[best]-taken[best]) {
					best = mapping
				}
			}
			if best == "" {
				return nil, need, false
			}
			taken[best]++
			mappings = append(mappings, best)
		}
	}
	slices.Sort(mappings)
	return mappings, DeviceNeed{}, true
}
