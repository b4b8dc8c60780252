// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox

import (
	"fmt"
	"strconv"
	"strings"

	"k8s.io/utils/cpuset"
)

// maxCPU is above the number of any CPU or NUMA cell that Linux supports.
const maxCPU = 1<<14 - 1

// ParseCPUs parses a list of CPUs or NUMA cells in the kernel's format, "0-3,8". An
// empty list is valid. Unlike cpuset.Parse it limits the size of the set: users of
// Proxmox can write lists into the configuration and notes of their guests, and
// "0-999999999999" must not exhaust the memory of a process that reads them.
func ParseCPUs(list string) (cpuset.CPUSet, error) {
	if list == "" {
		return cpuset.New(), nil
	}
	var cpus []int
	for part := range strings.SplitSeq(list, ",") {
		low, high, ranged := strings.Cut(part, "-")
		first, err := strconv.Atoi(low)
		last := first
		if err == nil && ranged {
			last, err = strconv.Atoi(high)
		}
		if err != nil || first < 0 || last < first || last > maxCPU || len(cpus) > maxCPU {
			return cpuset.New(), fmt.Errorf("found %.40q, want a list of CPUs up to %d, such as 0-3,8", list, maxCPU)
		}
		for cpu := first; cpu <= last; cpu++ {
			cpus = append(cpus, cpu)
		}
	}
	return cpuset.New(cpus...), nil
}
