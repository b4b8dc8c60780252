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
	if len(need.Devices) == 0 {
		return true
	}
	_, missing := assign(s.host.FreeDevices, need.Devices)
	if missing < 0 || why == nil {
		return missing < 0
	}
	want := need.Devices[missing]
	free, known := 0, false
	for _, mapping := range want.Mappings {
		n, ok := s.host.FreeDevices[mapping]
		free, known = free+n, known || ok
	}
	if !known {
		why("no device of mapping %s, or the token lacks Mapping.Use on /mapping/pci", strings.Join(want.Mappings, " or "))
	} else {
		why("%d %s free (mapping %s), %d wanted", free, want.Resource, strings.Join(want.Mappings, " or "), want.Count)
	}
	return false
}

// assign picks a mapping for each device: of those that will do, the one with the
// most left. Otherwise it tells which need has no devices; -1 where all have.
func assign(free map[string]int, needs []DeviceNeed) (mappings []string, missing int) {
	taken := map[string]int{}
	for n, need := range needs {
		for range need.Count {
			best := ""
			for _, mapping := range need.Mappings {
				left := free[mapping] - taken[mapping]
				if left > 0 && (best == "" || left > free[best]-taken[best]) {
					best = mapping
				}
			}
			if best == "" {
				return nil, n
			}
			taken[best]++
			mappings = append(mappings, best)
		}
	}
	slices.Sort(mappings)
	return mappings, -1
}
