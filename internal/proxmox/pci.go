// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox

import (
	"context"
	"fmt"
	"regexp"
	"strings"
)

// PCIMapping is a resource mapping: one name for PCI devices of several Hosts.
// Several devices on one Host are alternatives; a start takes the first free one.
type PCIMapping struct {
	ID string
	// Mediated devices are shares of a device: how many there are, the mapping
	// does not tell.
	Mediated bool
	Devices  []PCIDevice
}

// PCIDevice is a device of a Host that a mapping names.
type PCIDevice struct {
	Host string
	// Path is "0000:01:00.0", without the function where all of them go together,
	// or several paths joined by ";".
	Path string
}

// PCIMappings lists the mappings that the caller may see.
func (c *client) PCIMappings(ctx context.Context) ([]PCIMapping, error) {
	var rows []struct {
		ID   string   `json:"id"`
		MDev numeric  `json:"mdev"`
		Map  []string `json:"map"`
	}
	if err := c.get(ctx, at("/cluster/mapping/pci"), &rows); err != nil {
		return nil, fmt.Errorf("reading the PCI mappings, %w", err)
	}
	mappings := make([]PCIMapping, 0, len(rows))
	for _, row := range rows {
		mapping := PCIMapping{ID: row.ID, Mediated: row.MDev.isSet()}
		for _, entry := range row.Map {
			p := ParseProperties(entry)
			mapping.Devices = append(mapping.Devices, PCIDevice{Host: p.Value("node"), Path: p.Value("path")})
		}
		mappings = append(mappings, mapping)
	}
	return mappings, nil
}

// HostPCI is a device that is passed through to a VM, "hostpciN" in its config.
type HostPCI struct {
	Slot string
	// Mapping names the devices to take one of; empty for a device by its address.
	Mapping string
	// Paths are addresses, as in PCIDevice, where no mapping is used.
	Paths []string
	// Mediated is the type of a share of the device; empty for the whole of it.
	Mediated string
}

var pciSlot = regexp.MustCompile(`^hostpci(\d{1,2})$`)

// HostPCIs in the order of their slots.
func (c VMConfig) HostPCIs() []HostPCI {
	var devices []HostPCI
	for _, slot := range c.slots(pciSlot) {
		p := ParseProperties(c.Options[slot])
		device := HostPCI{Slot: slot, Mapping: p.Value("mapping"), Mediated: p.Value("mdev")}
		hosts, ok := p.bare()
		if !ok {
			hosts = p.Value("host")
		}
		for path := range strings.SplitSeq(hosts, ";") {
			if path == "" {
				continue
			}
			if strings.Count(path, ":") == 1 {
				path = "0000:" + path // the domain may be left out
			}
			device.Paths = append(device.Paths, path)
		}
		devices = append(devices, device)
	}
	return devices
}
