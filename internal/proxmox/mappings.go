// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox

import (
	"context"
	"fmt"
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

// DirectoryMapping is a resource mapping: one name for a directory of several Hosts.
type DirectoryMapping struct {
	ID string
	// Paths by Host.
	Paths map[string]string
}

// DirectoryMappings lists the mappings that the caller may see. There are none before
// Proxmox VE 8.4.
func (c *client) DirectoryMappings(ctx context.Context) ([]DirectoryMapping, error) {
	var rows []struct {
		ID  string   `json:"id"`
		Map []string `json:"map"`
	}
	if err := c.get(ctx, at("/cluster/mapping/dir"), &rows); err != nil {
		return nil, fmt.Errorf("reading the directory mappings, %w", err)
	}
	mappings := make([]DirectoryMapping, 0, len(rows))
	for _, row := range rows {
		mapping := DirectoryMapping{ID: row.ID, Paths: map[string]string{}}
		for _, entry := range row.Map {
			p := ParseProperties(entry)
			mapping.Paths[p.Value("node")] = p.Value("path")
		}
		mappings = append(mappings, mapping)
	}
	return mappings, nil
}
