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

// devices checks and reserves the resources of a host that a VM needs to start.
type devices struct {
	k        *kernel.Kernel
	store    *storage.Store
	mappings *mapping.Mappings
}

// reservePCI reserves the devices of a VM that starts. Of a mapping, it reserves the first free device on the host.
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
		if err := dv.reserveFirstFree(g, candidates); err != nil {
			return err
		}
	}
	return nil
}

// reserveFirstFree reserves the first free candidate.
func (dv *devices) reserveFirstFree(g *kernel.Guest, candidates []string) error {
	for _, path := range candidates {
		if dv.pciOwner(g.Host, path) == 0 && !slices.Contains(g.PCI, path) {
			g.PCI = append(g.PCI, path)
			return nil
		}
	}
	path := candidates[len(candidates)-1]
	if owner := dv.pciOwner(g.Host, path); owner != 0 {
		return api.Failf("PCI device '%s' already in use by VMID '%d'", path, owner)
	}
	return api.Failf("PCI device '%s' is used twice", path)
}

// pciOwner returns the VM that has reserved a device, or 0.
func (dv *devices) pciOwner(host, path string) int {
	for _, other := range dv.k.Guests {
		if other.Host == host && slices.Contains(other.PCI, path) {
			return other.VMID
		}
	}
	return 0
}
