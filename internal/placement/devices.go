// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"slices"
	"strings"
)

// DeviceNeed is a number of PCI devices of one kind.
type DeviceNeed struct {
	// Resource is what pods call it: "nvidia.com/gpu".
	Resource string
	// Mappings of the Cluster that offer such devices; any of them will do.
	Mappings []string
	Count    int
}

// checkDevices finds a device for each that is wanted.
func checkDevices(s *site, need *Need, why report) bool {
	if len(need.Devices) == 0 && len(s.inherited) == 0 {
		return true
	}
	_, missing, ok := assign(s.host.FreeDevices, s.inherited, need.Devices)
	if ok || why == nil {
		return ok
	}
	free, known := 0, false
	for _, mapping := range missing.Mappings {
		n, ok := s.host.FreeDevices[mapping]
		free, known = free+n, known || ok
	}
	if !known {
		why("no device of mapping %s, or the token lacks Mapping.Use on /mapping/pci", strings.Join(missing.Mappings, " or "))
	} else {
		why("%d %s free (mapping %s), %d wanted", free, missing.Resource, strings.Join(missing.Mappings, " or "), missing.Count)
	}
	return false
}

// assign picks a mapping for each device: those that the template passes on, and
// then, until each need has its number, of those that will do the one with the most
// left. Otherwise it tells which need has no devices.
func assign(free map[string]int, inherited []string, needs []DeviceNeed) (mappings []string, missing DeviceNeed, ok bool) {
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
