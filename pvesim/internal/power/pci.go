// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package power

import (
	"slices"
	"strconv"
	"strings"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/api"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/kernel"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/mapping"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/qm"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/storage"
)

// maxHostPCI is the number of hostpci slots.
const maxHostPCI = 16

// devices checks and reserves what a VM needs from its host to start.
type devices struct {
	k        *kernel.Kernel
	store    *storage.Store
	mappings *mapping.Mappings
}

// reservePCI gives a VM that starts its devices: of a mapping the first one on its host that no running VM has.
func (dv *devices) reservePCI(g *kernel.Guest) error {
	g.PCI = nil
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
			if candidates = dv.mappings.Paths("pci", id, g.Host); len(candidates) == 0 {
				return api.Failf("PCI device mapping not found for '%s'", id)
			}
		}
		if err := dv.takePCI(g, candidates); err != nil {
			return err
		}
	}
	return nil
}

// takePCI takes the first candidate that is free.
func (dv *devices) takePCI(g *kernel.Guest, candidates []string) error {
	for _, path := range candidates {
		if dv.userOfPCI(g.Host, path) == 0 && !slices.Contains(g.PCI, path) {
			g.PCI = append(g.PCI, path)
			return nil
		}
	}
	path := candidates[len(candidates)-1]
	if owner := dv.userOfPCI(g.Host, path); owner != 0 {
		return api.Failf("PCI device '%s' already in use by VMID '%d'", path, owner)
	}
	return api.Failf("PCI device '%s' is used twice", path)
}

// userOfPCI is the VM that runs or starts with a device; 0 where there is none.
func (dv *devices) userOfPCI(host, path string) int {
	for _, other := range dv.k.Guests {
		if other.Host == host && slices.Contains(other.PCI, path) {
			return other.VMID
		}
	}
	return 0
}
