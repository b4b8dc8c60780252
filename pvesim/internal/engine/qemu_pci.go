// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"slices"
	"strconv"
	"strings"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/qm"
)

// maxHostPCI is the number of hostpci slots.
const maxHostPCI = 16

// reservePCI gives a VM that starts its devices: of a mapping the first one on its host that no running VM has.
func (e *Engine) reservePCI(g *Guest) error {
	g.pci = nil
	for n := range maxHostPCI {
		value, ok := g.Config.Options["hostpci"+strconv.Itoa(n)]
		if !ok {
			continue
		}
		fields := qm.ParseFields(value)
		if fields["mdev"] != "" {
			continue
		}
		candidates := []string{fields["host"]}
		if fields["host"] == "" {
			candidates = []string{strings.Split(value, ",")[0]}
		}
		if id := fields["mapping"]; id != "" {
			if candidates = e.mappedPaths("pci", id, g.Host); len(candidates) == 0 {
				return failf("PCI device mapping not found for '%s'", id)
			}
		}
		if err := e.takePCI(g, candidates); err != nil {
			return err
		}
	}
	return nil
}

// takePCI takes the first candidate that is free.
func (e *Engine) takePCI(g *Guest, candidates []string) error {
	for _, path := range candidates {
		if e.userOfPCI(g.Host, path) == 0 && !slices.Contains(g.pci, path) {
			g.pci = append(g.pci, path)
			return nil
		}
	}
	path := candidates[len(candidates)-1]
	if owner := e.userOfPCI(g.Host, path); owner != 0 {
		return failf("PCI device '%s' already in use by VMID '%d'", path, owner)
	}
	return failf("PCI device '%s' is used twice", path)
}

// userOfPCI is the VM that runs or starts with a device; 0 where there is none.
func (e *Engine) userOfPCI(host, path string) int {
	for _, other := range e.guests {
		if other.Host == host && slices.Contains(other.pci, path) {
			return other.VMID
		}
	}
	return 0
}
